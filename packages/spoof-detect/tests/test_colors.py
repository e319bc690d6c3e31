"""Colours against transformers' own processors and detectors, and against what their hashes promise."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from icml25.spoof_detect import CallableColors, Colors, GumbelColors, HashColors, KGWColors, SynthIDColors

VOCAB = 200


def random_ids(n=300, seed=0, vocab=VOCAB):
    return np.random.default_rng(seed).integers(0, vocab, n)


def tiny_model(seed=0):
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


SCHEMES = [("lefthash", 1), ("lefthash", 3), ("selfhash", 1), ("selfhash", 2), ("selfhash", 4)]


@pytest.mark.parametrize(("scheme", "width"), SCHEMES)
def test_kgw_agrees_with_transformers_detector_token_by_token(scheme, width):
    pytest.importorskip("torch")
    import torch
    from transformers import LlamaConfig, WatermarkDetector, WatermarkingConfig

    config = WatermarkingConfig(greenlist_ratio=0.25, seeding_scheme=scheme, context_width=width)
    detector = WatermarkDetector(LlamaConfig(vocab_size=VOCAB), "cpu", config)
    ids = random_ids(120)
    x, valid = KGWColors(config, VOCAB).colors(ids)
    n = width + (scheme == "lefthash")
    assert valid.sum() == len(ids) - n + 1 and valid[n - 1 :].all()
    for t in range(n - 1, len(ids)):  # the detector's score of a passage that holds this n-gram alone
        passage = torch.tensor(ids[t - n + 1 : t + 1])[None]
        assert x[t] == detector._score_ngrams_in_passage(passage)[1][0]
    assert x.sum() == detector._score_ngrams_in_passage(torch.tensor(ids)[None])[1][0]
    assert 0.1 < x[valid].mean() < 0.4


@pytest.mark.parametrize(("scheme", "width"), SCHEMES)
def test_kgw_text_of_a_large_bias_is_all_green(scheme, width):
    torch = pytest.importorskip("torch")
    from transformers import WatermarkingConfig

    model = tiny_model()
    config = WatermarkingConfig(bias=50.0, greenlist_ratio=0.5, seeding_scheme=scheme, context_width=width)
    prompt = torch.tensor(random_ids(6))[None]
    out = model.generate(prompt, watermarking_config=config, do_sample=False, max_new_tokens=40)[0].numpy()
    x, valid = KGWColors(config, VOCAB).colors(out)
    assert valid[6:].all() and (x[6:] == 1).all()


@pytest.mark.parametrize(("scheme", "width", "h"), [("lefthash", 5, 1), ("selfhash", 1, 0), ("selfhash", 4, 3)])
def test_kgw_colour_depends_on_h_tokens_of_context(scheme, width, h):
    colors = KGWColors({"seeding_scheme": scheme, "context_width": width, "greenlist_ratio": 0.5}, VOCAB)
    assert colors.context_width == h and isinstance(colors, Colors)
    gram = random_ids(h + 1, seed=3)
    ends = set()
    for seed in range(8):
        x, valid = colors.colors(np.r_[random_ids(9, seed=seed), gram])
        ends.add((x[-1], valid[-1]))
    assert len(ends) == 1
    differs = [colors.colors(np.r_[random_ids(9), random_ids(h + 1, seed=s)])[0][-1] for s in range(20)]
    assert len(set(differs)) == 2


def test_selfhash_ignores_the_order_of_its_context():
    colors = KGWColors({"seeding_scheme": "selfhash", "context_width": 4}, VOCAB)
    for seed in range(20):
        a, b, c, d = random_ids(4, seed=seed)
        assert colors.colors([a, b, c, d])[0][-1] == colors.colors([c, a, b, d])[0][-1]


def test_kgw_cache_is_bounded_and_changes_nothing():
    ids = random_ids(400)
    small = KGWColors({}, VOCAB, cache_size=3)
    np.testing.assert_array_equal(small.colors(ids)[0], KGWColors({}, VOCAB).colors(ids)[0])
    np.testing.assert_array_equal(small.colors(ids)[0], KGWColors({}, VOCAB).colors(ids)[0])
    assert len(small._green) == 3


@pytest.mark.parametrize("ids", [[], [5], [5, 6]])
def test_short_texts(ids):
    for colors in (
        KGWColors({}, VOCAB),
        HashColors(1, 1),
        GumbelColors(1, 1),
        SynthIDColors({"ngram_len": 2, "keys": [1, 2]}),
    ):
        x, valid = colors.colors(ids)
        assert x.shape == valid.shape == (len(ids),) and valid.sum() == max(len(ids) - 1, 0)


def synthid():
    return {"ngram_len": 4, "keys": [11, 22, 33, 44, 55, 66, 77, 88], "context_history_size": 64}


def test_synthid_is_the_mean_of_its_g_values():
    torch = pytest.importorskip("torch")
    from transformers import SynthIDTextWatermarkingConfig

    ids = np.r_[random_ids(60), 1, 2, 3, 4, 9, 1, 2, 3, 5]
    colors = SynthIDColors(synthid(), vocab_size=VOCAB)
    x, valid = colors.colors(ids)
    processor = SynthIDTextWatermarkingConfig(**synthid()).construct_processor(VOCAB, "cpu")
    g = processor.compute_g_values(torch.tensor(ids)[None])[0].numpy()
    np.testing.assert_allclose(x[3:], g.mean(axis=1))
    assert colors.context_width == 3 and not valid[:3].any()
    assert valid[63] and not valid[68]  # the context 1, 2, 3 comes a second time
    assert valid[3:].sum() == len(ids) - 3 - 1


def test_synthid_watermark_raises_the_colour():
    import torch
    from transformers import SynthIDTextWatermarkingConfig

    model = tiny_model()
    torch.manual_seed(1)
    prompt = torch.tensor(random_ids(16).reshape(4, 4))
    config = SynthIDTextWatermarkingConfig(**synthid())
    out = model.generate(prompt, watermarking_config=config, do_sample=True, top_k=0, max_new_tokens=60)
    plain = model.generate(prompt, do_sample=True, top_k=0, max_new_tokens=60)
    colors = SynthIDColors(config)
    marked, unmarked = ([x[v] for x, v in (colors.colors(row) for row in texts.numpy())] for texts in (out, plain))
    assert np.concatenate(marked).mean() > np.concatenate(unmarked).mean() + 0.05
    assert np.concatenate(unmarked).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("gamma", [0.25, 0.5])
@pytest.mark.parametrize("h", [1, 2, 3])
def test_hash_colours_are_green_with_probability_gamma(gamma, h):
    ids = random_ids(40_000, vocab=50_000)
    x, valid = HashColors(7, h, gamma).colors(ids)
    assert not valid[:h].any() and valid[h:].all() and set(x) == {0.0, 1.0}
    assert x[valid].mean() == pytest.approx(gamma, abs=0.01)
    other = HashColors(8, h, gamma).colors(ids)[0]
    assert np.corrcoef(x[valid], other[valid])[0, 1] == pytest.approx(0, abs=0.02)
    assert np.corrcoef(x[h:-1], x[h + 1 :])[0, 1] == pytest.approx(0, abs=0.02)


def test_hash_colours_depend_on_the_whole_ngram_and_its_order():
    x = {tuple(g): HashColors(3, 2).colors(list(g))[0][-1] for g in np.ndindex(6, 6, 6)}
    swapped = [x[a, b, c] == x[b, a, c] for a, b, c in x if a != b]
    shifted = [x[a, b, c] == x[a, b, (c + 1) % 6] for a, b, c in x]
    first = [x[a, b, c] == x[(a + 1) % 6, b, c] for a, b, c in x]
    assert all(0.35 < np.mean(v) < 0.65 for v in (swapped, shifted, first))
    ids = random_ids(50)
    np.testing.assert_array_equal(HashColors(3, 2).colors(ids)[0][10:], HashColors(3, 2).colors(ids[8:])[0][2:])


def test_gumbel_scores_are_exponential_and_grow_with_u():
    ids = random_ids(20_000, vocab=50_000)
    colors = GumbelColors(5, 2)
    x, valid = colors.colors(ids)
    assert stats.kstest(x[valid], "expon").pvalue > 0.001
    u = colors.uniforms(np.lib.stride_tricks.sliding_window_view(ids, 3))
    np.testing.assert_allclose(x[2:], -np.log(1 - u))
    assert (u >= 0).all() and (u < 1).all()


def test_gumbel_sampling_raises_the_score():
    rng = np.random.default_rng(0)
    colors, ids = GumbelColors(5, 1), [0]
    for _ in range(500):
        p = rng.dirichlet(np.ones(VOCAB))
        u = colors.uniforms(np.column_stack([np.full(VOCAB, ids[-1]), np.arange(VOCAB)]))
        ids.append(int(np.argmax(u ** (1 / p))))
    x, valid = colors.colors(ids)
    assert x[valid].mean() > 2


def test_callable_colours():
    colors = CallableColors(lambda ids: ids * 0.5, 2, vocab_size=9)
    x, valid = colors.colors(np.arange(5))
    assert x.tolist() == [0, 0.5, 1, 1.5, 2] and valid.tolist() == [False, False, True, True, True]
    given = CallableColors(lambda ids: (ids, ids > 3), 1).colors(np.arange(5))
    assert given[1].tolist() == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: HashColors("secret", 1), TypeError, "key is 'secret'"),
        (lambda: HashColors(True, 1), TypeError, "key is True"),
        (lambda: HashColors(1, 0), ValueError, "h is 0"),
        (lambda: HashColors(1, 1.5), ValueError, "h is 1.5"),
        (lambda: HashColors(1, 1, 1), ValueError, "gamma is 1"),
        (lambda: HashColors(1, 1, float("nan")), ValueError, "gamma is nan"),
        (lambda: GumbelColors(1, -1), ValueError, "h is -1"),
        (lambda: CallableColors(3, 1), TypeError, "fn is 3"),
        (lambda: CallableColors(len, 0), ValueError, "h is 0"),
        (lambda: CallableColors(len, 1, vocab_size="a"), ValueError, "vocab_size is 'a'"),
        (lambda: SynthIDColors({"keys": [1], "ngram_len": 3}, vocab_size=-3), ValueError, "vocab_size is -3"),
        (lambda: HashColors(1, 1, gamma="half"), TypeError, "gamma is 'half'"),
        (lambda: KGWColors(3, 10), TypeError, "config is a int"),
        (lambda: KGWColors({}, 0), ValueError, "vocab_size is 0"),
        (lambda: KGWColors({}, 10, cache_size=0), ValueError, "cache_size is 0"),
        (lambda: KGWColors({"seeding_scheme": "sum"}, 10), ValueError, "seeding_scheme"),
        (lambda: SynthIDColors([]), TypeError, "config is a list"),
        (lambda: HashColors(1, 1).colors([0.5, 1]), TypeError, "float64"),
        (lambda: HashColors(1, 1).colors([[1, 2]]), ValueError, r"shape \(1, 2\)"),
        (lambda: KGWColors({}, 10).colors([1, 10]), ValueError, "id 10 at position 1; expected 0 <= id < 10"),
        (lambda: GumbelColors(1, 1).colors([1, -2]), ValueError, "id -2 at position 1"),
        (lambda: SynthIDColors(synthid(), 10).colors([1, 12]), ValueError, "id 12"),
    ],
    ids=range(22),
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_without_transformers_the_extra_is_named():
    code = """
import sys
sys.modules["transformers"] = None
from icml25.spoof_detect import KGWColors
try:
    KGWColors({}, 10)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "icml25-spoof-detect[transformers]" in done.stdout


def test_import_is_light():
    code = "import sys, icml25.spoof_detect; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "scipy.stats", "icml25.shared"} & set(done.stdout.split())
