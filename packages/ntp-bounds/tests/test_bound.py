"""The bound from its parts, the three kinds of dependence, sweeps."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from icml25.ntp_bounds import (
    DecoderSpec,
    Graph,
    MarkovChain,
    Mixing,
    bound,
    dudley,
    hoeffding,
    lipschitz,
    log_cover,
    norm_based,
    parameter_counting,
    sweep,
)
from icml25.ntp_bounds.bound import _loss_to_logits

SPEC = DecoderSpec.random(vocab=9, dim=6, heads=2, ffn_dim=8, n_layers=2, seq_len=12)
WINDOWED = replace(SPEC, mask=("window", 2))
LONG = DecoderSpec.random(vocab=2, dim=4, heads=1, ffn_dim=4, n_layers=1, seq_len=64, mask=("window", 2), scale=0.3)


def parts(spec, n_eff, colours=1, metric="frobenius", part="all"):
    """Rademacher bound from the public pieces: a radius in the loss is so much in the logits."""
    scale = math.sqrt(spec.seq_len / (2 * colours)) if metric == "frobenius" else math.sqrt(0.5)
    return dudley(lambda eps: log_cover(spec, eps * scale, part, metric=metric), spec.loss_range / 2, n_eff)


@pytest.mark.parametrize("metric", ["frobenius", "token"])
def test_from_its_parts(metric):
    n, delta = 10**9, 0.01
    report = bound(SPEC, n, delta, metric=metric)
    B = math.log(9) + 2 * SPEC.norms["W_out"].op
    value, alpha = parts(SPEC, n, metric=metric)
    assert report.loss_range == pytest.approx(B) and report.n_eff == n and report.block is None
    assert report.rademacher == pytest.approx(value) and report.alpha == pytest.approx(alpha)
    assert report.confidence == pytest.approx(B * math.sqrt(math.log(1 / delta) / (2 * n)))
    assert report.gap == pytest.approx(2 * value + report.confidence) and report.gap < math.log(9)
    assert not report.vacuous
    for name in ("predictor", "representation"):
        assert getattr(report, name) == pytest.approx(parts(SPEC, n, metric=metric, part=name).value)
    assert report.rademacher <= report.predictor + report.representation


@given(exponent=st.floats(0, 14), seed=st.integers(0, 99))
def test_decomposition_and_cap(exponent, seed):
    spec = DecoderSpec.random(vocab=5, dim=4, heads=2, ffn_dim=4, n_layers=1, seq_len=6, seed=seed)
    report = bound(spec, round(10**exponent))
    assert report.rademacher <= (report.predictor + report.representation) * (1 + 1e-9)
    assert 0 < report.gap <= report.loss_range and report.rademacher <= report.loss_range / 2
    assert report.vacuous == (report.gap >= math.log(5))


def test_table():
    report = bound(SPEC, 10**8)
    assert [row["matrix"] for row in report.table] == list(SPEC.shapes)
    assert sum(row["params"] for row in report.table) == SPEC.n_params
    assert sum(row["share"] for row in report.table) == pytest.approx(1)

    def shared(eps):  # of sqrt(log N)
        return log_cover(SPEC, eps * math.sqrt(6), "predictor") / math.sqrt(log_cover(SPEC, eps * math.sqrt(6)))

    ends = report.alpha, report.loss_range / 2
    whole = quad(lambda eps: math.sqrt(log_cover(SPEC, eps * math.sqrt(6))), *ends)[0]
    assert report.table[-1]["share"] == pytest.approx(quad(shared, *ends)[0] / whole, rel=0.01)
    capped = bound(SPEC, 1)
    eps = capped.loss_range / 2 * math.sqrt(6)
    assert capped.table[-1]["share"] == pytest.approx(log_cover(SPEC, eps, "predictor") / log_cover(SPEC, eps))
    assert report.table[0] == {
        "matrix": "embedding",
        "params": 54,
        "op": SPEC.norms["embedding"].op,
        "fro": SPEC.norms["embedding"].fro,
        "rho": report.table[0]["rho"],
        "log_rho": pytest.approx(math.log(report.table[0]["rho"])),
        "share": report.table[0]["share"],
    }


def test_trends():
    sizes = [10**k for k in range(7, 13)]
    gaps = [bound(SPEC, n).gap for n in sizes]
    assert (np.diff(gaps) < 0).all() and gaps[-2] / gaps[-1] == pytest.approx(math.sqrt(10), rel=0.01)
    assert bound(SPEC, 10**9, 0.001).gap > bound(SPEC, 10**9, 0.1).gap
    wide, long = SPEC.resized(dim=24), SPEC.resized(seq_len=100)
    assert bound(wide, 10**10).gap > bound(SPEC, 10**10).gap
    assert bound(long, 10**10).gap > bound(SPEC, 10**10).gap  # no gain in m without an assumption


@pytest.mark.parametrize(
    ("layers", "window", "k", "chi"), [(1, 1, 0, 2), (4, 1, 0, 2), (3, 2, 1, 6), (1, 3, 2, 6), (2, 3, 0, 6)]
)
def test_graph_colours(layers, window, k, chi):
    spec = DecoderSpec.random(n_layers=layers, seq_len=48, mask=("window", window), heads=2, dim=4, vocab=5, ffn_dim=4)
    n = 10**9
    report = bound(spec, n, dependence=Graph(k))
    assert report.n_eff == pytest.approx(n * 48 / chi)
    assert report.rademacher == pytest.approx(parts(spec, n * 48 / chi, chi).value)
    assert report.confidence == pytest.approx(spec.loss_range * math.sqrt(chi * math.log(20) / (2 * n * 48)))
    assert report.gap < bound(spec, n).gap


@pytest.mark.parametrize("spec", [SPEC, WINDOWED, replace(SPEC, mask="full")])
def test_graph_of_long_dependence_is_no_assumption(spec):
    for k in (12, 100):
        assert bound(spec, 10**9, dependence=Graph(k)) == bound(spec, 10**9)


def test_an_assumption_never_hurts():
    """Eleven colours for twelve tokens would: the radius pays more than the sample size gains."""
    n = 10**9
    plain = bound(WINDOWED, n)
    assert parts(WINDOWED, n * 12 / 11, 11).value > parts(WINDOWED, n).value
    assert bound(WINDOWED, n, dependence=Graph(7)) == plain
    gaps = [bound(WINDOWED, n, dependence=Graph(k)).gap for k in range(13)]
    assert (np.diff(gaps) >= 0).all() and gaps[0] < 0.7 * plain.gap == 0.7 * gaps[-1]
    nearly = replace(LONG, mask=("window", 30))  # a = 31: n_eff = 64 / 62 N, but log(2 / delta') and a smaller radius
    assert bound(nearly, n, dependence=Mixing(lambda a: 0.0)) == bound(nearly, n)


def test_radii_of_colours_and_blocks_by_brute_force():
    """What a move of the logits by 1 (Frobenius) costs in root mean square, the worst for each colour or parity, added up.

    Times sqrt(n_eff) it is the radius in the loss: attained by moves that lie in one token, or in one block evenly.
    """
    m, rng = 24, np.random.default_rng(0)
    spec = LONG.resized(seq_len=m)
    for chi in (2, 3, 5, 7, 11):
        classes = [np.arange(m)[j::chi] for j in range(chi)]
        moves = np.concatenate([np.eye(m), rng.standard_normal((200, m))])
        moves /= np.linalg.norm(moves, axis=1, keepdims=True)
        worst = sum(np.sqrt(2 * (moves[:, tokens] ** 2).sum(1)).max() / m for tokens in classes)
        assert worst * math.sqrt(m / chi) * _loss_to_logits(spec, "frobenius", chi) == pytest.approx(1)
    for a in (3, 4, 5, 8, 11):
        blocks = [np.arange(m)[s : s + a] for s in range(0, m, a)]
        worst = sum(max(math.sqrt(2 * len(block)) / m for block in blocks[p::2]) for p in (0, 1))
        ratio = worst * math.sqrt(m / (2 * a)) * _loss_to_logits(spec, "frobenius", 2)
        assert ratio == pytest.approx(1)  # two whole blocks of either parity
        spread = sum(math.sqrt(sum(len(block) ** 2 for block in blocks[p::2])) / m for p in (0, 1))
        assert spread * math.sqrt(m / (2 * a)) <= 1 + 1e-12  # the deviation, by McDiarmid for each parity


def test_causal_masks_gain_nothing_from_independence():
    assert bound(SPEC, 10**9, dependence=Graph(0)).gap == bound(SPEC, 10**9).gap


def test_colours_cost_in_the_frobenius_metric_only():
    """All of the distance may lie in the tokens of one colour, sum over m / chi of them."""
    n = 10**9
    report = bound(WINDOWED, n, dependence=Graph(1), metric="token")  # c = 3, chi = 5
    assert report.rademacher == pytest.approx(parts(WINDOWED, n * 12 / 5, 5, "token").value)
    frobenius = bound(WINDOWED, n, dependence=Graph(1))
    assert frobenius.rademacher > parts(WINDOWED, n * 12 / 5, 1).value


def test_mixing_chooses_the_block():
    chain = MarkovChain([[0.7, 0.3], [0.5, 0.5]])
    n, m, c, delta = 10**7, 64, 2, 0.05
    report = bound(LONG, n, delta, Mixing(chain.beta))
    gaps = {}
    for a in range(c + 1, m // 2):
        left = delta - n * (math.ceil(m / a) - 2) * chain.beta(a - c)
        if left > 0:
            n_eff = n * m / (2 * a)
            gaps[a] = 2 * parts(LONG, n_eff, 2).value + LONG.loss_range * math.sqrt(math.log(2 / left) / (2 * n_eff))
    assert len(gaps) < m // 2 - c - 1  # short blocks are ruled out
    assert report.block == min(gaps, key=gaps.get) and report.gap == pytest.approx(min(gaps.values()))
    assert report.n_eff == pytest.approx(n * m / (2 * report.block))


def test_blocks_that_divide_the_length():
    """mu = m / (2 a) blocks of each parity: n_eff = N mu, delta' = delta - 2 N (mu - 1) beta(a - c)."""
    spec = replace(LONG, mask=("window", 1))
    report = bound(spec, 1000, 0.5, Mixing(lambda gap: 1e-6 if gap >= 7 else 1.0))
    assert report.block == 8 and report.n_eff == 4000
    slower = bound(spec, 1000, 0.5, Mixing(lambda gap: 2e-5 if gap >= 7 else 1.0))
    assert slower.block == 8 and slower.confidence > report.confidence
    left = 0.5 - 2 * 1000 * 3 * 1e-6
    assert report.confidence == pytest.approx(spec.loss_range * math.sqrt(math.log(2 / left) / 8000))


def test_mixing_without_dependence():
    report = bound(LONG, 10**9, dependence=Mixing(lambda a: 0.0))
    assert report.block == 3 and report.gap < bound(LONG, 10**9).gap
    assert report.confidence == pytest.approx(LONG.loss_range * math.sqrt(math.log(40) / (2 * report.n_eff)))


@pytest.mark.parametrize(("stay", "leave"), [(0.9, 0.2), (0.55, 0.7), (0.95, 0.02)])
@pytest.mark.parametrize("n", [10, 10**4, 10**8])
def test_phi_coefficients_are_valid_and_never_better(stay, leave, n):
    chain = MarkovChain([[stay, 1 - stay], [leave, 1 - leave]])
    gaps = {}
    for name in ("beta", "phi"):
        try:
            gaps[name] = bound(LONG, n, dependence=Mixing(getattr(chain, name))).gap
        except ValueError:  # too slow, as the next test has it
            gaps[name] = math.inf
    assert gaps["phi"] >= gaps["beta"] > 0


def test_slow_mixing_is_refused():
    for beta in (lambda a: 1.0, lambda a: 0.05 / 10):
        with pytest.raises(ValueError, match="mixing too slow"):
            bound(LONG, 1000, dependence=Mixing(beta))
    with pytest.raises(ValueError, match="mixing too slow"):  # the context fills the sequence
        bound(SPEC, 1000, dependence=Mixing(lambda a: 0.0))
    with pytest.raises(ValueError, match=r"beta\(1\) must be in"):
        bound(LONG, 10, dependence=Mixing(lambda a: -1.0))


def test_a_window_may_not_be_narrower_than_the_mask():
    with pytest.raises(ValueError, match=r"window=1 is less than the 2 token\(s\)"):
        bound(WINDOWED, 10, dependence=Graph(0, window=1))
    wider = bound(WINDOWED, 10**6, dependence=Graph(0, window=3))
    assert wider.n_eff == pytest.approx(10**6 * 12 / 6)
    banded = replace(WINDOWED, mask=np.array(WINDOWED.mask_matrix))
    assert bound(banded, 10**6, dependence=Graph(0)).n_eff == bound(WINDOWED, 10**6, dependence=Graph(0)).n_eff


@pytest.mark.parametrize("value", [0, -5, 1.5, math.nan])
def test_numbers_of_sequences_are_refused(value):
    with pytest.raises(ValueError, match=f"n_sequences must be an integer of at least 1, got {value}"):
        bound(SPEC, value)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, math.nan])
def test_probabilities_are_refused(value):
    with pytest.raises(ValueError, match=rf"delta must be in \(0, 1\), got {value}"):
        bound(SPEC, 10, value)


def test_bad_coefficients():
    with pytest.raises(TypeError, match="beta"):
        bound(LONG, 10, dependence=Mixing(0.5))
    with pytest.raises(ValueError, match="beta must not increase"):
        bound(LONG, 10, dependence=Mixing(lambda a: 1e-6 * a))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"n": []}, "n must hold at least one number"),
        ({"n": 10}, "n must hold at least one number, got 10"),
        ({"n": [10], "m": ()}, "m must hold"),
        ({"n": [10], "dims": "12"}, "dims must hold"),
        ({"n": [10], "dims": [0]}, "dim must be an integer of at least 1, got 0"),
        ({"n": [10], "m": [6, 0]}, "seq_len must be an integer of at least 1, got 0"),
        ({"n": [10**400]}, "n_sequences must be an integer of at most 1e150"),
    ],
)
def test_bad_grids(grid, message):
    with pytest.raises(ValueError, match=message):
        sweep(SPEC, **grid)


def test_bad_dependence():
    with pytest.raises(ValueError, match="dependence must be"):
        bound(SPEC, 10, dependence="tokens")
    with pytest.raises(ValueError, match="k must be an integer of at least 0"):
        bound(SPEC, 10, dependence=Graph(-1))


def test_sweep():
    rows = sweep(SPEC, n=[10**8, 1e9], m=(6, 12), dims=(6, 12), metric="token")
    assert [(r["dim"], r["seq_len"], r["n_sequences"]) for r in rows[:3]] == [
        (6, 6, 10**8),
        (6, 6, 1e9),
        (6, 12, 10**8),
    ]
    assert len(rows) == 8
    report = bound(SPEC.resized(12, 12), 10**9, metric="token")
    assert rows[-1] | {"gap": report.gap, "vacuous": report.vacuous, "n_eff": 1e9} == rows[-1]
    assert rows[-1]["n_params"] == SPEC.resized(12).n_params and rows[-1]["rademacher"] == report.rademacher
    assert [r["n_sequences"] for r in sweep(SPEC, n=[10])] == [10]
    first = next(r["n_sequences"] for r in sweep(SPEC, n=[10**k for k in range(15)]) if not r["vacuous"])
    assert bound(SPEC, first / 10).vacuous


def test_baselines():
    n = 10**10
    B = SPEC.loss_range
    assert hoeffding(100, 3.0, 0.05) == pytest.approx(3 * math.sqrt(math.log(20) / 200))
    counted = 2 * dudley(lambda eps: SPEC.n_params * np.log(1 + 1 / eps), B / 2, n).value + hoeffding(n, B)
    assert parameter_counting(SPEC, n) == pytest.approx(counted)
    assert parameter_counting(SPEC, 1) == B
    # the norm-based trend: no parameter count but in the logarithm, m only there, and 1/sqrt(n) up to logarithms
    small = replace(SPEC, norms=(0.3, 0.3))
    one, two = norm_based(small, 10**14), norm_based(small, 10**16)
    assert 5 < one / two < 11
    longer = norm_based(small.resized(seq_len=12 * 64), 10**14)
    assert 1 < longer / one < 1.2
    rho = lipschitz(SPEC, metric="token").rho  # |W|_{2,1} <= sqrt(columns) |W|_F, and sqrt(2) from logits to losses
    reach = [math.sqrt(2 * SPEC.shapes[k][1]) * fro * rho[k] for k, (_, fro) in SPEC.norms.items()]
    size = sum(b ** (2 / 3) for b in reach) ** 3 * math.log(10**20 * 12 * SPEC.n_params)
    chained = dudley(lambda eps: size / eps**2, B / 2, 10**20).value
    assert norm_based(SPEC, 10**20) == pytest.approx(2 * chained + hoeffding(10**20, B)) and chained < B / 4
    deep = DecoderSpec(9, 64, 4, 64, 400, 64, norms=(8.0, 20.0))  # rho overflows
    still = replace(deep, norms=deep.norms | {"embedding": (0.0, 0.0)})
    assert norm_based(deep, n) == deep.loss_range == norm_based(still, n)
    with pytest.raises(ValueError, match="n_test"):
        hoeffding(0, 1.0)
    with pytest.raises(ValueError, match="delta"):
        parameter_counting(SPEC, 10, 2.0)
