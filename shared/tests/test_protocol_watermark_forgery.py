"""The offline world of forged watermarks, and how verdicts are scored."""

import importlib.util
import itertools

import numpy as np
import pytest

from icml25.shared.protocols import watermark_forgery as forgery

SETTINGS = {
    "question": "forgery",
    "h": 2,
    "length": 120,
    "lengths": [120, 30, 240],
    "genuine": 6,
    "forged": 4,
    "learned": 40,
    "held_out": 6,
    "reference": 20,
}


def draw(seed=0, **changes):
    return forgery.draw(SETTINGS | changes, seed=seed, budget="quick")


def of(public, truth, name):
    return public["suspects"][truth["writer"] == name]


@pytest.fixture(scope="module")
def chain():
    return forgery._Chain(np.random.default_rng(0))


def test_shapes_and_what_is_kept_back():
    public, truth = draw()
    assert public["suspects"].shape == (14, 120) and public["reprompted"].shape == (14, 88)
    assert public["reference"].shape == (20, 500) and public["held_out"].shape == (6, 120)
    assert public["suspect_log_probs"].shape == (14, 119) and public["suspect_colors"].shape == (14, 120)
    assert sorted(truth["writer"]) == ["distillation"] * 4 + ["genuine"] * 6 + ["stealing"] * 4
    assert truth["writer"].tolist() != sorted(truth["writer"]) and "writer" not in public
    assert (
        public["tests_120"].shape == (14, 1)
        and public["tests_30"].shape == (14, 1)
        and public["tests_240"].shape == (7, 2)
    )
    pooled = truth["writer"][public["tests_240"]]
    assert (pooled[:, 0] == pooled[:, 1]).all() and len(np.unique(public["tests_240"])) == 14


def test_every_key_has_texts_of_its_own():
    public, truth = draw(keys=3)
    assert public["suspects"].shape == (42, 120) and public["held_out"].shape == (18, 120)
    keys, counts = np.unique(public["keys"], return_counts=True)
    assert len(keys) == 3 and (counts == 14).all() and set(public["held_out_keys"]) == set(keys)
    assert "key" not in public
    for key in keys:
        assert sorted(truth["writer"][public["keys"] == key]) == sorted(draw()[1]["writer"])
        watermark = forgery.RedGreen(int(key), 2)
        for name, of in (("suspect_colors", "keys"), ("held_out_colors", "held_out_keys")):
            texts = public["suspects" if of == "keys" else "held_out"]
            for text, expected in zip(texts[public[of] == key], public[name][public[of] == key], strict=True):
                np.testing.assert_array_equal(watermark.colors(text)[0][2:], expected[2:])
    for total in (120, 30, 240):
        tests = public[f"tests_{total}"]
        assert (public["keys"][tests] == public["keys"][tests[:, :1]]).all()
        assert (truth["writer"][tests] == truth["writer"][tests[:, :1]]).all()
        assert len(np.unique(tests)) == tests.size == 42


def test_same_seed_same_world_and_nothing_can_be_written_to():
    first, second = draw(seed=3)[0], draw(seed=4)[0]
    again = draw(seed=3)[0]
    np.testing.assert_array_equal(first["suspects"], again["suspects"])
    assert (first["suspects"] != second["suspects"]).mean() > 0.9
    with pytest.raises(ValueError, match="read-only"):
        again["suspects"][0, 0] = 1
    assert again is not draw(seed=3)[0]


def test_chain(chain):
    p, support = chain.p, chain.support
    assert p.shape == support.shape == (4000, 150)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-4)
    assert (np.diff(support, axis=1) > 0).all()
    assert (support < 10).mean() > 10 * (np.abs(support - 2000) <= 5).mean()  # Zipf: low ids follow more tokens
    entropy = -(p * np.log(p)).sum(axis=1)
    assert 1 < np.quantile(entropy, 0.05) < np.quantile(entropy, 0.95) < np.log(150)


def test_sampling_follows_the_chain(chain):
    rng = np.random.default_rng(1)
    rows = np.full(100_000, 17)
    by_table = np.bincount(chain.table.sample(rows, rng.random(len(rows))), minlength=150) / len(rows)
    picked = forgery._pick(np.tile(np.arange(150), (20_000, 1)), np.tile(chain.p[17], (20_000, 1)), rng)
    assert np.abs(by_table - chain.p[17]).max() < 0.005
    assert np.abs(np.bincount(picked, minlength=150) / 20_000 - chain.p[17]).max() < 0.015
    texts = forgery._write(rng.integers(4000, size=(5, 1)), 50, forgery._plain(chain, rng))
    log_probs = chain.log_probs(texts)
    where = np.argmax(chain.support[texts[2, 7]] == texts[2, 8])
    assert log_probs[2, 7] == pytest.approx(np.log(chain.p[texts[2, 7], where]))
    assert np.isfinite(log_probs).all() and log_probs.min() > np.log(1e-8)
    follows = np.isin(np.arange(4000), chain.support[5])
    assert chain.log_probs(np.array([[5, np.argmin(follows)]]))[0, 0] == pytest.approx(np.log(1e-9))


@pytest.mark.parametrize("h", [1, 2, 3])
def test_red_green_watermark(chain, h):
    rng = np.random.default_rng(2)
    watermark = forgery.RedGreen(123, h, gamma=0.25, delta=2.0)
    contexts = rng.integers(4000, size=(6, h))
    candidates, p = chain.support[contexts[:, -1]], chain.p[contexts[:, -1]]
    ratio = watermark.weights(contexts, candidates, p) / p
    green = ratio > 2
    np.testing.assert_allclose(ratio, np.where(green, np.exp(2), 1), rtol=1e-5)
    assert green.mean() == pytest.approx(0.25, abs=0.06)
    for row in range(3):  # the colour of a text is that of the weights
        text = np.r_[contexts[row], candidates[row, 11]]
        x, valid = watermark.colors(text)
        assert x[-1] == green[row, 11] and valid.tolist() == [False] * h + [True]
    other = forgery.RedGreen(124, h, gamma=0.25).weights(contexts, candidates, p) / p > 2
    assert np.corrcoef(green.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.1)


def test_genuine_text_is_watermarked_and_reprompted_text_continues_it():
    public, truth = draw(genuine=30)
    colors = public["suspect_colors"]
    assert np.isnan(colors[:, :2]).all() and np.isfinite(colors[:, 2:]).all()
    assert (
        np.nanmean(colors[truth["writer"] == "genuine"]) > 0.8 > np.nanmean(colors[truth["writer"] == "distillation"])
    )
    watermark = forgery.RedGreen(int(public["keys"][0]), 2)
    for i in (0, 5):
        whole = np.r_[public["suspects"][i, :32], public["reprompted"][i]]
        assert watermark.colors(whole)[0][32:].mean() > 0.7
    plain = np.concatenate([watermark.colors(text)[0][2:] for text in public["reference"]])
    assert plain.mean() == pytest.approx(0.5, abs=0.02)


def test_distillation_is_the_mixture(chain):
    rng = np.random.default_rng(3)
    context, seen = np.array([7, 9]), chain.support[9, :2]
    learned = forgery._Learned(np.array([[7, 9, seen[0]], [7, 9, seen[0]], [7, 9, seen[1]], [1, 9, 4]]), 2)
    texts = np.tile(context, (30_000, 1))
    chosen = forgery._distillation(chain, learned, rng)(np.c_[texts, np.zeros(len(texts), int)], 2)
    lam = 3 / 13
    expected = np.zeros(4000)
    expected[chain.support[9]] = (1 - lam) * chain.p[9]
    expected[seen] += lam * np.array([2 / 3, 1 / 3])
    assert np.abs(np.bincount(chosen, minlength=4000) / len(texts) - expected).max() < 0.01
    unseen = forgery._distillation(chain, learned, rng)(np.c_[texts[:, ::-1], np.zeros(len(texts), int)], 2)
    expected = np.zeros(4000)
    expected[chain.support[7]] = chain.p[7]
    assert np.abs(np.bincount(unseen, minlength=4000) / len(texts) - expected).max() < 0.01


def test_stealing_is_its_formula(chain):
    rng = np.random.default_rng(4)
    seen = chain.support[9, [3, 50]]
    documents = [[7, 9, seen[0]]] * 5 + [[7, 9, seen[1]]]
    learned = forgery._Learned(np.array(documents), 2)
    texts = np.tile([7, 9, 0], (30_000, 1))
    chosen = forgery._stealing(chain, learned, rng)(texts, 2)
    p = chain.p[9].astype(float)
    ratio = np.zeros(150)
    ratio[[3, 50]] = np.array([5, 1]) / (6 * p[[3, 50]] + 1)
    weights = p * np.exp(3 * np.minimum(ratio, 2) / 2)
    expected = np.zeros(4000)
    expected[chain.support[9]] = weights / weights.sum()
    assert np.abs(np.bincount(chosen, minlength=4000) / len(texts) - expected).max() < 0.01


def test_only_the_first_occurrence_of_a_context_is_watermarked_once(chain):
    class Once(forgery.RedGreen):
        once = True
        marked = None

        def weights(self, contexts, candidates, p):
            return np.where(np.arange(candidates.shape[1]) == 0, 1.0, 0.0)[None] * np.ones((len(contexts), 1))

    choose = forgery._watermarked(chain, Once(1, 2), 3, np.random.default_rng(0))
    first = chain.support[9, 0]
    texts = np.array([[1, 7, 9, 5, 7, 9, 0], [7, 9, 2, 5, 7, 9, 0], [7, 7, 2, 5, 7, 9, 0]])
    chosen = np.stack([choose(texts, 6) for _ in range(200)])
    assert (chosen[:, 1:] == first).all()  # (7, 9) came in the prompt alone, or not at all
    assert (chosen[:, 0] == first).mean() < 0.5  # it was the context of the first token after the prompt


def test_attacker_noise_blurs_the_spoofers_model():
    exact, noisy = draw(seed=5), draw(seed=5, attacker_noise=3.0)
    worse = [public["suspect_log_probs"][truth["writer"] == "distillation"].mean() for public, truth in (exact, noisy)]
    assert worse[1] < worse[0] - 0.5


def test_evaluate():
    public, truth = draw()
    result = {}
    for total in (120, 30, 240):
        writer = truth["writer"][public[f"tests_{total}"][:, 0]]
        result[f"p_values_{total}"] = np.where(writer == "distillation", 0.01, 1.0)
        result[f"z_{total}"] = np.select(
            [writer == "distillation", writer == "stealing"], [total / 10.0, total / 30.0], 0.5
        )
    first = np.flatnonzero(truth["writer"][public["tests_120"][:, 0]] == "stealing")[0]
    result["p_values_120"][first] = 0.005
    false = np.flatnonzero(truth["writer"][public["tests_30"][:, 0]] == "genuine")[:3]
    result["p_values_30"][false] = 0
    columns = forgery.evaluate(public, truth, result | {"note": 2.5})
    assert (columns["power"], columns["power_distillation"], columns["power_stealing"]) == (0.25, 1.0, 0.25)
    assert columns["false_alarm_rate"] == 0 and columns["false_alarm_rate_30"] == 0.5 and columns["power_240"] == 0
    assert columns["z_genuine"] == 0.5 and columns["z_stealing_240"] == 8 and columns["note"] == 2.5
    assert columns["smallest_growth"] == pytest.approx(2) and columns["largest_growth"] == pytest.approx(4)
    assert columns["genuine_flagged"] == 1
    assert all(isinstance(v, float) for v in columns.values())


def test_thresholds_are_those_of_the_key():
    from icml25.shared import registry

    file = registry.tracks()["watermarking"].folder / "solvers" / "forgery_threshold.py"
    spec = importlib.util.spec_from_file_location("forgery_threshold", file)
    threshold = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(threshold)
    rng = np.random.default_rng(0)
    held_out_keys, keys = np.repeat([5, 9], 50), np.array([5, 9, 5, 9])
    means = {5: 0.0, 9: 3.0}
    arrays = {
        "held_out": np.array([means[k] for k in held_out_keys])[:, None] + rng.normal(size=(100, 20)),
        "suspects": np.array([0.0, 3.0, 3.0, 0.0])[:, None] + np.tile([-0.1, 0.1], (4, 10)),
        "held_out_keys": held_out_keys,
        "keys": keys,
        "lengths": np.array([20]),
        "tests_20": np.arange(4)[:, None],
    }
    p = threshold.p_values(arrays, {})["p_values_20"]
    assert (p[:2] > 0.5).all() and (p[2:] < 1e-6).all()


def test_plain_detector():
    colors = np.array([[np.nan, 1, 1, 1, 1], [np.nan, 1, 0, 1, 0], [np.nan] * 5])
    np.testing.assert_allclose(forgery.watermark_z(colors, 0.5, 0.25), [2 / np.sqrt(1.0), 0, 0])


@pytest.mark.parametrize("question", ["forgery", "null", "counts"])
def test_example_is_scored(question):
    settings = {
        "forgery": SETTINGS,
        "null": {"question": "null", "source": "stdlib", "h": 1, "length": 100, "tests": 40},
        "counts": {"question": "counts", "tokens": 4000, "order": 2},
    }[question]
    public, truth = forgery.draw(settings, seed=0, budget="smoke")
    columns = forgery.evaluate(public, truth, forgery.example(public))
    assert columns[{"forgery": "power", "null": "rejected_5pct", "counts": "count_errors"}[question]] < 1


@pytest.mark.parametrize("source", ["stdlib", "other_key"])
def test_null(source):
    settings = {"question": "null", "source": source, "h": 1, "length": 100, "tests": 900}
    public, truth = forgery.draw(settings, seed=1, budget="quick")
    assert truth == {} and public["suspects"].shape == public["reprompted"].shape == (900,)
    assert public["texts"].shape[1] == 100 and set(public["suspects"]) == set(range(len(public["texts"])))
    assert set(np.unique(public["keys"], return_counts=True)[1]) == {4} and public["reference_lengths"].sum() == len(
        public["reference"]
    )
    assert (public["suspects"] != public["reprompted"]).all()
    assert max(public["texts"].max(), public["reference"].max()) < public["vocab_size"]
    uniform = np.arange(1, 901) / 900
    columns = forgery.evaluate(public, truth, {"p_values": uniform})
    assert columns["rejected_1pct"] == pytest.approx(0.01) and columns["rejected_5pct"] == pytest.approx(0.05)
    assert columns["ks_distance"] == pytest.approx(0, abs=1e-12)
    assert forgery.evaluate(public, truth, {"p_values": uniform**2})["ks_distance"] == pytest.approx(0.25, abs=0.01)
    assert forgery.evaluate(public, truth, {"p_values": np.sqrt(uniform)})["ks_distance"] == pytest.approx(0, abs=0.01)


def test_null_texts_lie_within_documents(monkeypatch):
    from icml25.shared import datasets

    documents = [f"d{i} " * (130 + 40 * (i % 3)) for i in range(30)]  # every document has a word of its own
    people = object.__new__(datasets.TextDataset)
    object.__setattr__(people, "documents", documents)
    monkeypatch.setattr(datasets, "load", lambda name: people)
    settings = {"question": "null", "source": "made up", "h": 1, "length": 100, "tests": 40}
    public, _ = forgery.draw(settings, seed=0, budget="quick")
    assert len(public["texts"]) > 10 and (public["texts"] == public["texts"][:, :1]).all()


def test_counts():
    public, truth = forgery.draw({"question": "counts", "tokens": 4000, "order": 2}, seed=2, budget="quick")
    pairs = {}
    for row in public["reference"].tolist():
        for pair in itertools.pairwise(row):
            pairs[pair] = pairs.get(pair, 0) + 1
    expected = np.array([pairs.get(tuple(pair), 0) for pair in public["asked"].tolist()])
    np.testing.assert_array_equal(truth["counts"], expected)
    wrong = expected + (np.arange(len(expected)) == 0)
    assert forgery.evaluate(public, truth, {"counts": expected})["count_errors"] == 0
    assert forgery.evaluate(public, truth, {"counts": wrong})["count_errors"] == 1 / len(expected)


def no_watermark(key):
    return "needs a package"


def test_unavailable_watermark():
    public, _ = draw(watermark=no_watermark)
    assert public == {"question": "forgery", "unavailable": "needs a package"} and forgery.example(public) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p_values_30": None}, "the result has no p_values_30"),
        ({"p_values_30": np.zeros(3)}, r"p_values_30 has shape \(3,\)"),
        ({"p_values_30": np.full(14, np.nan)}, "14 NaN"),
        ({"p_values_30": np.full(14, 1.5)}, "expected p-values in"),
        ({"z_120": np.zeros(2)}, "z_120 has shape"),
    ],
)
def test_bad_results(changes, message):
    public, truth = draw()
    result = {k: v for k, v in (forgery.example(public) | changes).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        forgery.evaluate(public, truth, result)


def test_unknown_question():
    with pytest.raises(ValueError, match="question is 'who'; expected one of forgery, null, counts"):
        forgery.draw({"question": "who"}, seed=0, budget="quick")
