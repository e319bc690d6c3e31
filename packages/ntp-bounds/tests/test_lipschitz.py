"""Constants against the formulas written out, and against real decoders."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from conftest import draw_weights, forward, norms_of
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from icml25.ntp_bounds import DecoderSpec, lipschitz

SMALL = {"vocab": 7, "dim": 6, "heads": 2, "ffn_dim": 5, "n_layers": 2, "seq_len": 5}
MASKS = ["causal", "full", ("window", 2), np.tri(5) + np.eye(5, k=1)]
ROUTES = [("best", "frobenius"), ("l1", "frobenius"), ("l2", "frobenius"), ("best", "token")]


def distinct_norms(spec):
    return {name: (1 + 0.07 * k, 1.3 + 0.09 * k) for k, name in enumerate(spec.shapes)}


@pytest.mark.parametrize(("softmax", "metric"), ROUTES)
@pytest.mark.parametrize("mask", MASKS)
def test_formulas(softmax, metric, mask):
    shell = DecoderSpec(**SMALL, norms=(1.0, 1.0), mask=mask, b_x=1.4)
    spec = replace(shell, norms=distinct_norms(shell))
    op = {name: pair.op for name, pair in spec.norms.items()}
    fro = {name: pair.fro for name, pair in spec.norms.items()}
    m, B, H, root = 5, 1.4, 2, math.sqrt(3)
    M = spec.mask_matrix
    nnz, r, c = M.sum(), M.sum(1).max(), M.sum(0).max()
    l2 = 0.5 * math.sqrt(m) * (math.sqrt(r) + math.sqrt(c)), 0.5 * math.sqrt(nnz) * math.sqrt(m)
    l1 = 2 * (1 + math.sqrt(c)), 2 * math.sqrt(m)
    sig_x, sig_p = {"l1": l1, "l2": l2, "best": (min(l1[0], l2[0]), min(l1[1], l2[1]))}[softmax]
    s, mix = math.sqrt(m), math.sqrt(c)
    if metric == "token":
        sig_x, sig_p, s, mix = 4, 2, 1, 1
    att, ffn, expected = [], [], {}
    for k in range(2):
        Q, K, V, O, W1, W2 = (op[f"{k}.{name}"] for name in ("Q", "K", "V", "O", "W1", "W2"))  # noqa: E741
        att.append(1 + O * fro[f"{k}.V"] * (mix + sig_x * B**2 * Q * K / root))
        ffn.append(1 + W1 * W2)
    later = [ffn[0] * att[1] * ffn[1] * op["W_out"], ffn[1] * op["W_out"]]
    for k in range(2):
        Q, K, V, O, W1, W2 = (op[f"{k}.{name}"] for name in ("Q", "K", "V", "O", "W1", "W2"))  # noqa: E741
        expected |= {
            f"{k}.Q": sig_p * B**3 * V * O * K / root * later[k],
            f"{k}.K": sig_p * B**3 * V * O * Q / root * later[k],
            f"{k}.V": s * B * O * later[k],
            f"{k}.O": s * B * min(fro[f"{k}.V"], math.sqrt(H) * V) * later[k],
            f"{k}.W1": s * B * W2 * later[k] / ffn[k],
            f"{k}.W2": s * B * W1 * later[k] / ffn[k],
        }
    whole = att[0] * ffn[0] * att[1] * ffn[1] * op["W_out"]
    expected |= {"embedding": s * whole, "positions": whole, "W_out": s * B}
    report = lipschitz(spec, softmax, metric)
    assert report.att == pytest.approx(att) and report.ffn == pytest.approx(ffn)
    assert report.rho == pytest.approx(expected)
    assert {name: math.exp(value) for name, value in report.log_rho.items()} == pytest.approx(expected)


def test_norm_of_the_output_matrix_bounds_heads():
    """O's constant takes the smaller of |V|_F and sqrt(H) |V|: heads side by side are not bounded by |V| alone."""
    base = DecoderSpec(**SMALL, norms=(1.0, 1.0))
    norms = dict.fromkeys(base.shapes, (1.0, 1.0))
    small, large = (
        lipschitz(replace(base, norms=norms | {"V": pair, "0.V": pair, "1.V": pair})).rho for pair in ((1, 1.2), (1, 2))
    )
    assert small["1.O"] / lipschitz(base).rho["1.O"] == pytest.approx(1.2)
    assert large["1.O"] / lipschitz(base).rho["1.O"] == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("pre_norm", [False, True])
def test_normalisation_with_a_constant_of_its_own(pre_norm):
    lam = 1 / math.sqrt(0.04)
    spec = DecoderSpec(**SMALL | {"n_layers": 1}, norms=(1.0, 1.0), norm="rmsnorm", rms_eps=0.04, pre_norm=pre_norm)
    with pytest.warns(UserWarning, match="hugely loose"):
        report = lipschitz(spec, "l1")
    B, s, c = math.sqrt(6), math.sqrt(5), 5
    att, ffn = math.sqrt(c) + 2 * (1 + math.sqrt(c)) * 6 / math.sqrt(3), 1.0
    if pre_norm:
        assert report.att == pytest.approx([1 + lam * att]) and report.ffn == pytest.approx([1 + lam * ffn])
        assert report.rho["W_out"] == pytest.approx(s * B)
        assert report.rho["0.W1"] == pytest.approx(s * B * lam)
        assert report.rho["0.V"] == pytest.approx(s * B * (1 + lam) * lam)
        assert report.rho["positions"] == pytest.approx((1 + lam * att) * (1 + lam) * lam)
    else:
        assert report.att == pytest.approx([lam * (1 + att)]) and report.ffn == pytest.approx([2 * lam])
        assert report.rho["0.W1"] == pytest.approx(s * B * lam)
        assert report.rho["0.V"] == pytest.approx(s * B * lam * 2 * lam)
        assert report.rho["positions"] == pytest.approx(lam * lam * (1 + att) * 2 * lam)


@given(
    seed=st.integers(0, 10**6),
    size=st.floats(-4, 1),
    scale=st.floats(0.2, 2.5),
    mask=st.sampled_from(range(4)),
    moved=st.sets(st.integers(0, 14), min_size=1),
)
@hypothesis_settings(max_examples=120)
def test_logits_move_by_at_most_the_sum(seed, size, scale, mask, moved):
    rng = np.random.default_rng(seed)
    shell = DecoderSpec(**SMALL, norms=(1.0, 1.0), mask=MASKS[mask], b_x=1.5)
    one = draw_weights(shell, rng, scale)
    names = list(shell.shapes)
    step = {names[k]: 10**size * rng.standard_normal(shell.shapes[names[k]]) for k in moved}
    two = {name: w + step.get(name, 0) for name, w in one.items()}
    spec = replace(shell, norms=norms_of(one, two))
    tokens = rng.integers(0, 7, 5)
    change = forward(spec, one, tokens) - forward(spec, two, tokens)
    for softmax, metric in ROUTES:
        rho = lipschitz(spec, softmax, metric).rho
        bound = sum(rho[name] * np.linalg.norm(d) for name, d in step.items())
        found = np.linalg.norm(change) if metric == "frobenius" else np.linalg.norm(change, axis=1).max()
        assert found <= bound * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("name", "place"), [("W_out", (0, 0)), ("embedding", (0, 0))])
def test_constants_that_are_attained(name, place):
    """All six tokens are the first unit vector, and only W_out and the embedding matter: no smaller constant is right."""
    shell = DecoderSpec(5, 4, 1, 4, 1, 6, norms=(1.0, 1.0))
    spec = replace(shell, norms=dict.fromkeys(shell.shapes, (1e-9, 1e-9)) | {"W_out": (1, 1), "embedding": (1, 2)})
    one = {key: np.zeros(shape) for key, shape in shell.shapes.items()}
    one["embedding"][:] = np.eye(5, 4)
    one["W_out"][0, 0] = 1.0
    two = {key: w.copy() for key, w in one.items()}
    two[name][place] -= 0.5
    tokens = np.zeros(6, dtype=int)
    change = np.linalg.norm(forward(spec, one, tokens) - forward(spec, two, tokens))
    assert change == pytest.approx(0.5 * lipschitz(spec).rho[name], rel=1e-6)


def test_attention_matrices_have_spectral_norms_above_one():
    A = np.zeros((9, 9))
    A[:, 0] = 1.0
    assert np.linalg.norm(A, 2) == pytest.approx(3)  # sqrt(m), the largest that sqrt(c) allows


def test_monotone_in_norms_and_routes():
    spec = DecoderSpec.random(n_layers=2, seq_len=12)
    best, l1, l2 = (lipschitz(spec, route).rho for route in ("best", "l1", "l2"))
    for name in spec.shapes:
        assert best[name] <= min(l1[name], l2[name]) * (1 + 1e-12)
        larger = replace(spec, norms=spec.norms | {name: tuple(1.5 * value for value in spec.norms[name])})
        assert all(after >= best[key] * (1 - 1e-12) for key, after in lipschitz(larger).rho.items())
    causal, full, window = (
        lipschitz(replace(spec, mask=mask), "l2").rho["0.Q"] for mask in ("causal", "full", ("window", 3))
    )
    assert window < causal < full


def test_deep_models_do_not_overflow():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = DecoderSpec(100, 64, 4, 64, 400, 64, norms=(8.0, 30.0))
        report = lipschitz(spec)
    assert report.rho["embedding"] == math.inf and 800 < report.log_rho["embedding"] < 1e5
    with pytest.raises(ValueError, match="a constant of a single layer overflows"):
        lipschitz(DecoderSpec(**SMALL, norms=(1e200, 1e200)))
    zero = lipschitz(DecoderSpec(**SMALL, norms=(0.0, 0.0)))
    assert zero.rho["0.Q"] == 0 and zero.log_rho["0.Q"] == -math.inf and zero.rho["W_out"] > 0


def test_tied_embedding_acts_twice():
    untied = DecoderSpec(**SMALL, norms=(1.0, 2.0))
    tied = replace(untied, tied=True, norms=(1.0, 2.0))
    one, two = lipschitz(untied).rho, lipschitz(tied).rho
    assert two["W_out"] == pytest.approx(one["W_out"] + one["embedding"]) and "embedding" not in two


def test_shared_keys_and_gates():
    base = DecoderSpec(**SMALL | {"heads": 6}, norms=(1.0, 1.0))
    shared = replace(base, kv_heads=2, norms=(1.0, 1.0))
    one, two = lipschitz(base).rho, lipschitz(shared).rho
    later = lipschitz(shared).ffn[1] / lipschitz(base).ffn[1]
    assert two["1.Q"] == pytest.approx(one["1.Q"] * later)
    for name in ("1.K", "1.V", "1.O"):
        assert two[name] == pytest.approx(math.sqrt(3) * one[name] * later)
    gated = lipschitz(replace(base, gated=True, b_x=2.0, norms=(1.0, 1.0)))
    assert gated.ffn == pytest.approx([1 + 2.1 * 2] * 2)
    rows = math.sqrt(5) * 4
    assert [gated.rho[f"1.{name}"] for name in ("W1", "W3", "W2")] == pytest.approx([1.1 * rows, rows, rows])


def test_bad_choices():
    spec = DecoderSpec.random()
    with pytest.raises(ValueError, match="softmax must be one of"):
        lipschitz(spec, "l3")
    with pytest.raises(ValueError, match="metric must be one of"):
        lipschitz(spec, metric="spectral")
    with pytest.raises(ValueError, match="no version for metric='token'"):
        lipschitz(spec, "l2", "token")
