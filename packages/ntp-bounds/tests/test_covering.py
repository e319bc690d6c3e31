"""Covering numbers: closed forms, monotonicity, sandwiches."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from icml25.ntp_bounds import (
    DecoderSpec,
    composition_cover,
    entropy_frobenius,
    entropy_maurey,
    entropy_spectral,
    greedy_cover,
    greedy_packing,
    lipschitz,
    lipschitz_image,
    log_cover,
    product_cover,
)

SPEC = DecoderSpec.random(vocab=9, dim=6, heads=2, ffn_dim=8, n_layers=2, seq_len=10)


def only(name, fro=2.0):
    """One matrix that may move; all others are fixed at zero (in Frobenius norm), but bounded as before for rho."""
    return replace(SPEC, norms=dict.fromkeys(SPEC.shapes, (0.0, 0.0)) | {name: (1.0, fro)})


def test_one_matrix():
    spec = only("W_out")
    p, theta, rho = 54, spec.n_params, lipschitz(spec).rho["W_out"]
    assert rho == pytest.approx(math.sqrt(10))
    for eps in (0.01, 1.0, 50.0):
        assert log_cover(spec, eps) == pytest.approx(p * math.log(1 + 2 * 2 * rho * theta / (p * eps)), rel=1e-12)
        alone = entropy_frobenius(p, 2.0, eps * p / theta / rho)  # its share of eps, in its own norm
        assert log_cover(spec, eps) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("metric", ["frobenius", "token"])
def test_sum_over_matrices(metric):
    rho = lipschitz(SPEC, metric=metric).rho
    terms = {}
    for name, (rows, columns) in SPEC.shapes.items():
        p = rows * columns
        terms[name] = p * math.log(1 + 2 * SPEC.norms[name].fro * rho[name] * SPEC.n_params / (p * 0.3))
    assert log_cover(SPEC, 0.3, metric=metric) == pytest.approx(sum(terms.values()), rel=1e-12)
    assert log_cover(SPEC, 0.3, "predictor", metric=metric) == pytest.approx(terms.pop("W_out"), rel=1e-12)
    assert log_cover(SPEC, 0.3, "representation", metric=metric) == pytest.approx(sum(terms.values()), rel=1e-12)


def test_split_of_the_radius():
    """Shares by parameters: even for equal matrices, and never worse than even for small radii."""
    fro = {name: pair.fro for name, pair in SPEC.norms.items()}
    rho, K = lipschitz(SPEC).rho, len(SPEC.shapes)
    for eps in (1e-2, 1e-4, 1e-8):
        even = sum(entropy_frobenius(a * b, fro[name], eps / K / rho[name]) for name, (a, b) in SPEC.shapes.items())
        assert log_cover(SPEC, eps) <= even
    square = DecoderSpec(4, 4, 1, 4, 1, 4, norms=(1.0, 2.0))
    assert {a * b for a, b in square.shapes.values()} == {16}
    rho, K = lipschitz(square).rho, len(square.shapes)
    even = sum(entropy_frobenius(16, 2.0, 0.1 / K / rho[name]) for name in square.shapes)
    assert log_cover(square, 0.1) == pytest.approx(even, rel=1e-12)


def test_monotone():
    eps = np.geomspace(1e-6, 1e12, 50)
    for metric in ("frobenius", "token"):
        values = log_cover(SPEC, eps, metric=metric)
        assert (np.diff(values) < 0).all() and values[-1] < 1e-2
    assert log_cover(SPEC, math.inf) == 0
    before = log_cover(SPEC, 0.1)
    for name, (op, fro) in SPEC.norms.items():
        assert log_cover(replace(SPEC, norms=SPEC.norms | {name: (1.2 * op, 1.2 * fro)}), 0.1) > before
    for change in ({"seq_len": 20}, {"n_layers": 3}, {"vocab": 18}, {"ffn_dim": 16}, {"b_x": 2.0}):
        base = replace(SPEC, norms=(1.0, 2.0))
        assert log_cover(replace(base, norms=(1.0, 2.0), **change), 0.1) > log_cover(base, 0.1)


def test_mask_enters_by_the_route_l2():
    masks = {"full": "full", "causal": "causal", "window": ("window", 3)}
    covers = {name: log_cover(replace(SPEC, mask=mask), 0.1, softmax="l2") for name, mask in masks.items()}
    assert covers["window"] < covers["causal"] < covers["full"]
    tokens = {name: log_cover(replace(SPEC, mask=mask), 0.1, metric="token") for name, mask in masks.items()}
    assert len(set(tokens.values())) == 1


def test_token_metric_and_length():
    """Frobenius constants grow with m; those of tokens don't, and are smaller by sqrt(m) and more."""
    long = SPEC.resized(seq_len=1000)
    assert lipschitz(long, metric="token").rho["0.Q"] == lipschitz(SPEC, metric="token").rho["0.Q"]
    one, two = lipschitz(long).rho, lipschitz(long, metric="token").rho
    assert all(one[name] >= two[name] for name in long.shapes)
    assert one["1.V"] == pytest.approx(math.sqrt(1000) * two["1.V"])


def test_arrays_keep_their_shape():
    eps = np.array([[0.1, 1.0], [2.0, 3.0]])
    values = log_cover(SPEC, eps)
    assert values.shape == (2, 2) and values[1, 0] == pytest.approx(log_cover(SPEC, 2.0))
    assert isinstance(log_cover(SPEC, 2), float)


def test_huge_models_do_not_overflow():
    deep = DecoderSpec(50_000, 4096, 32, 16384, 300, 4096, norms=(8.0, 400.0))
    assert deep.n_params > 1e10 and deep.n_params < log_cover(deep, 1e-3) < math.inf


def test_tied_matrix_counts_once():
    untied = replace(SPEC, norms=(1.0, 2.0))
    tied = replace(untied, tied=True, norms=(1.0, 2.0))
    assert log_cover(tied, 0.1) < log_cover(untied, 0.1)
    rho, p = lipschitz(tied).rho["W_out"], 54
    expected = p * math.log(1 + 2 * 2 * rho * tied.n_params / (p * 0.1))
    assert log_cover(tied, 0.1, "predictor") == pytest.approx(expected)


@given(B=st.floats(0.1, 10), eps=st.floats(0.01, 30))
def test_interval_grid(B, eps):
    """In one dimension: ceil(B / eps) intervals of length 2 eps cover [-B, B]."""
    assert math.log(math.ceil(B / eps)) <= entropy_frobenius(1, B, eps) + 1e-12
    if eps > 3 * B:
        assert math.log(3 * B / eps) < 0 <= entropy_frobenius(1, B, eps)


def test_volumetric_cover_of_a_disc():
    """A maximal packing of points of the disc is a cover of it, and no larger than the bound."""
    rng = np.random.default_rng(0)
    disc = rng.uniform(-1, 1, (4000, 2))
    disc = disc[np.linalg.norm(disc, axis=1) <= 1]
    for eps in (0.2, 0.5, 1.0):
        assert math.log(len(greedy_packing(disc, eps))) <= entropy_frobenius(2, 1.0, eps)
    assert entropy_spectral(3, 5, 2.0, 0.5) == pytest.approx(15 * math.log(1 + 4 * math.sqrt(3) / 0.5))


def test_maurey():
    assert entropy_maurey(3, 4, 2.0, 5.0, 1.0) == pytest.approx(100 * math.log(24))
    assert entropy_maurey(3, 4, 2.0, 5.0, 3.0) == pytest.approx(12 * math.log(24))
    assert (np.diff(entropy_maurey(3, 4, 1.0, 1.0, np.array([0.1, 0.2, 0.4]))) < 0).all()
    # less than the volume's for many parameters and a coarse radius
    assert entropy_maurey(1000, 1000, 1.0, 1.0, 0.2) < entropy_frobenius(10**6, 1.0, 0.2)


clouds = hnp.arrays(float, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=st.floats(-5, 5))


@given(points=clouds, eps=st.floats(0.05, 6))
def test_covers_and_packings(points, eps):
    cover, packing, wide = greedy_cover(points, eps), greedy_packing(points, eps), greedy_packing(points, 2 * eps)
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    assert (distances[:, cover].min(1) <= eps).all() and (distances[:, packing].min(1) <= eps).all()
    for chosen, least in ((packing, eps), (wide, 2 * eps)):
        apart = distances[np.ix_(chosen, chosen)][~np.eye(len(chosen), dtype=bool)]
        assert (apart > least).all()
    assert len(wide) <= len(cover) <= len(packing)


def test_greedy_cover_takes_the_middle():
    points = np.array([[0.0], [1.0], [-1.0]])
    assert greedy_cover(points, 1.0).tolist() == [0]
    assert len(greedy_packing(points, 0.9)) == 3
    assert sorted(greedy_cover(np.array([[0.0], [1.0], [2.0], [10.0]]), 1.0)) == [1, 3]


def test_rules():
    ball = lambda eps: entropy_frobenius(3, 1.0, eps)  # noqa: E731
    assert lipschitz_image(ball, 2.0)(0.5) == ball(0.25)
    assert product_cover(ball, ball)(0.5) == 2 * ball(0.25)
    assert composition_cover(ball, ball, 4.0)(0.5) == ball(0.25) + ball(0.25 / 4)
    with pytest.raises(ValueError, match="covers is empty"):
        product_cover()
    with pytest.raises(ValueError, match="constant"):
        lipschitz_image(ball, 0.0)


@pytest.mark.parametrize("eps", [0.0, -1.0, math.nan, [1.0, 0.0], []])
def test_radii_are_refused(eps):
    for call in (
        lambda: log_cover(SPEC, eps),
        lambda: entropy_frobenius(1, 1.0, eps),
        lambda: entropy_maurey(1, 1, 1, 1, eps),
    ):
        with pytest.raises(ValueError, match="eps must be positive"):
            call()


def test_bad_input():
    with pytest.raises(ValueError, match="part must be one of"):
        log_cover(SPEC, 1.0, "head")
    with pytest.raises(TypeError, match="eps must hold numbers"):
        log_cover(SPEC, "small")
    with pytest.raises(ValueError, match="p must be an integer"):
        entropy_frobenius(0, 1.0, 1.0)
    for points in (np.zeros((0, 2)), np.zeros(3), np.full((2, 2), np.nan)):
        with pytest.raises(ValueError, match="points"):
            greedy_cover(points, 1.0)
