"""Newton-Schulz schedules against exact factors, scalar polynomials, inverse roots and optax."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

from icml25.modular_duality import SCHEDULES, orthogonalize


def with_singular_values(sigma, m, n, rng):
    r = len(sigma)
    U, V = (np.linalg.qr(rng.normal(size=(k, r)))[0] for k in (m, n))
    return U * np.asarray(sigma) @ V.T


def singular_values(M):
    return np.linalg.svd(np.asarray(M, dtype=np.float64), compute_uv=False)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (7, 7), (1, 5)])
def test_svd_is_the_polar_factor(shape, rng, float64):
    M = rng.normal(size=shape)
    wide = M if shape[0] >= shape[1] else M.T  # scipy's polar factor of a wide matrix has another null space
    expected = scipy.linalg.polar(wide)[0]
    found = orthogonalize(jnp.asarray(M), "svd")
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, expected if shape[0] >= shape[1] else expected.T, atol=1e-13)


def test_inverse_roots(rng, float64):
    G = rng.normal(size=(6, 9))
    root = lambda A, p: scipy.linalg.fractional_matrix_power(A, p)  # noqa: E731
    left = root(G @ G.T, -0.5) @ G
    exact = orthogonalize(jnp.asarray(G), "svd")
    np.testing.assert_allclose(exact, left, atol=1e-12)
    tall = orthogonalize(jnp.asarray(G.T), "svd")
    np.testing.assert_allclose(tall, G.T @ root(G @ G.T, -0.5), atol=1e-12)
    square = G[:, :6]
    shampoo = root(square @ square.T, -0.25) @ square @ root(square.T @ square, -0.25)
    np.testing.assert_allclose(orthogonalize(jnp.asarray(square), "svd"), shampoo, atol=1e-11)
    np.testing.assert_allclose(orthogonalize(jnp.asarray(G), "cubic"), left, atol=1e-12)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_singular_values_follow_the_scalar_polynomial(name, shape, rng, float64):
    sigma = np.geomspace(0.003, 1, 8)
    M = with_singular_values(sigma, *shape, rng)
    expected = sigma / np.linalg.norm(sigma)
    for a, b, c in SCHEDULES[name]:
        expected = a * expected + b * expected**3 + c * expected**5
    U, _, Vt = np.linalg.svd(M, full_matrices=False)
    np.testing.assert_allclose(orthogonalize(jnp.asarray(M), name), U * expected[::-1] @ Vt, atol=1e-9)


TABLE = [  # range of the results for sigma in [low, 1]
    ("cubic", 1e-2, 0.9999, 1.0001),
    ("cubic", 3e-3, 0.8975, 1.0001),
    ("quintic_taylor", 1e-2, 0.9999, 1.0001),
    ("quintic_taylor", 3e-3, 0.9545, 1.0001),
    ("quintic", 1e-3, 0.989, 1.019),
    ("muon", 3e-3, 0.68, 1.205),
    ("six_step", 3e-3, 0.9956, 0.9993),
    ("six_step", 1e-3, 0.8655, 0.9993),
]


@pytest.mark.parametrize(("name", "low", "least", "most"), TABLE)
def test_range_of_singular_values(name, low, least, most):
    sigma = np.geomspace(low, 1, 4000)
    for a, b, c in SCHEDULES[name]:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    assert least - 1e-4 <= sigma.min() and sigma.max() <= most + 1e-4
    if name in ("six_step", "muon", "quintic"):
        assert sigma.max() - sigma.min() > (most - least) / 2  # the table's range is no looser than need be


def test_slope_at_zero_of_six_steps():
    assert np.prod([a for a, _, _ in SCHEDULES["six_step"]]) == pytest.approx(1137.45, abs=0.005)
    assert [len(SCHEDULES[name]) for name in ("cubic", "quintic_taylor", "quintic", "muon", "six_step")] == [
        15,
        10,
        10,
        5,
        6,
    ]


def test_muon_is_that_of_optax(rng):
    M = jnp.asarray(rng.normal(size=(12, 20)), jnp.float32)
    coefficients = jnp.asarray(SCHEDULES["muon"][0])
    theirs = optax.contrib._muon.orthogonalize_via_newton_schulz
    expected = theirs(M, coefficients, 5, "frobenius", 1e-20)
    np.testing.assert_allclose(orthogonalize(M, "muon"), expected, atol=1e-5)
    expected = theirs(M, coefficients, 5, "frobenius", 3.0)
    np.testing.assert_allclose(orthogonalize(M, "muon", eps=3.0), expected, atol=1e-5)


def test_muon_is_the_direction_of_torch(rng):
    torch = pytest.importorskip("torch")
    for shape in ((12, 20), (20, 12)):
        M = rng.normal(size=shape).astype(np.float32)
        weight = torch.nn.Parameter(torch.zeros(shape))
        weight.grad = torch.from_numpy(M)
        torch.optim.Muon([weight], lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0).step()
        moved = -weight.detach().numpy() / np.sqrt(max(1, shape[0] / shape[1]))  # torch's scale of tall matrices
        np.testing.assert_allclose(orthogonalize(jnp.asarray(M), "muon"), moved, atol=2e-2)  # theirs is in bfloat16


def test_custom_coefficients_of_any_order(rng, float64):
    M = rng.normal(size=(4, 6))
    x = M / np.linalg.norm(M)
    gram = x @ x.T
    power = [np.linalg.matrix_power(gram, k) @ x for k in range(5)]
    with pytest.warns(UserWarning, match="sum to 15"):
        found = orthogonalize(jnp.asarray(M), [(1, 2, 3, 4, 5)])
    np.testing.assert_allclose(found, sum((k + 1) * power[k] for k in range(5)), atol=1e-12)
    with pytest.warns(UserWarning, match="not 1"):
        np.testing.assert_allclose(orthogonalize(jnp.asarray(M), [(2.0,)]), 2 * x, atol=1e-12)
    seventh = (35 / 16, -35 / 16, 21 / 16, -5 / 16, 0)  # Taylor of degree 7, converges to the sign
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = orthogonalize(jnp.asarray(M), [seventh], steps=12)
    np.testing.assert_allclose(singular_values(found), 1, atol=1e-9)


def test_steps_cut_or_repeat_the_schedule(rng):
    M = jnp.asarray(rng.normal(size=(5, 8)), jnp.float32)
    first, last = SCHEDULES["six_step"][:2], SCHEDULES["six_step"][-1]
    with pytest.warns(UserWarning, match="not 1"):
        np.testing.assert_array_equal(orthogonalize(M, "six_step", steps=2), orthogonalize(M, first))
    longer = SCHEDULES["six_step"] + (last, last)
    np.testing.assert_array_equal(orthogonalize(M, "six_step", steps=8), orthogonalize(M, longer))


@pytest.mark.parametrize("schedule", ["six_step", "svd", "muon"])
def test_zeros_stay_zero(schedule, rng):
    assert (orthogonalize(jnp.zeros((3, 4)), schedule) == 0).all()
    low_rank = jnp.asarray(with_singular_values([1.0, 0.5], 6, 8, rng), jnp.float32)
    found = singular_values(orthogonalize(low_rank, schedule))
    assert (found[2:] < 1e-3).all() and (found[:2] > 0.67).all()


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e30])
@pytest.mark.parametrize("schedule", ["six_step", "svd"])
def test_sizes_whose_squares_underflow_or_overflow(size, schedule, rng):
    M = jnp.asarray(rng.normal(size=(4, 6)), jnp.float32)
    np.testing.assert_allclose(orthogonalize(M * size, schedule), orthogonalize(M, schedule), atol=1e-5)


@pytest.mark.parametrize("schedule", ["six_step", "svd"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_spreads_over_its_matrix_only(schedule, bad, rng):
    M = rng.normal(size=(2, 4, 6)).astype(np.float32)
    M[0, 1, 2] = bad
    found = orthogonalize(jnp.asarray(M), schedule)
    assert not jnp.isfinite(found[0]).any() and jnp.isfinite(found[1]).all()


@pytest.mark.parametrize("schedule", ["six_step", "svd"])
def test_batch_is_a_loop(schedule, rng):
    M = jnp.asarray(rng.normal(size=(2, 3, 4, 6)), jnp.float32)
    found = orthogonalize(M, schedule)
    loop = np.stack([[orthogonalize(matrix, schedule) for matrix in row] for row in M])
    np.testing.assert_allclose(found, loop, atol=2e-6)
    mapped = jax.vmap(jax.vmap(lambda m: orthogonalize(m, schedule)))(M)
    np.testing.assert_allclose(mapped, loop, atol=2e-6)
    np.testing.assert_allclose(jax.jit(lambda m: orthogonalize(m, schedule))(M), found, atol=2e-6)
    np.testing.assert_array_equal(orthogonalize(M, schedule), found)


def test_dtypes(rng):
    M = jnp.asarray(rng.normal(size=(8, 12)), jnp.float32)
    exact = orthogonalize(M)
    short = orthogonalize(M.astype(jnp.bfloat16))
    assert short.dtype == jnp.bfloat16
    np.testing.assert_allclose(short.astype(jnp.float32), exact, atol=2e-2)
    fast = orthogonalize(M, dtype=jnp.bfloat16)
    assert fast.dtype == jnp.float32 and not (fast == exact).all()
    np.testing.assert_allclose(fast, exact, atol=3e-2)
    text = str(jax.make_jaxpr(lambda m: orthogonalize(m, dtype=jnp.bfloat16))(M))
    assert text.count("preferred_element_type=float32") == text.count("dot_general") == 18
    assert str(jax.make_jaxpr(lambda m: orthogonalize(m, "cubic"))(M)).count("dot_general") == 30  # no useless A @ A


def test_products_are_on_the_smaller_side():
    for shape in ((3, 50), (50, 3)):
        text = str(jax.make_jaxpr(orthogonalize)(jnp.zeros(shape)))
        assert "f32[3,3]" in text and "f32[50,50]" not in text


@pytest.mark.parametrize(
    ("schedule", "match"),
    [
        ("sixstep", "schedule must be 'svd'"),
        ([], "odd length"),
        ([()], "odd length"),
        ([(1.5, -0.5)], "odd length"),
        ([(1.5, -0.5, float("nan"))], "finite"),
    ],
)
def test_bad_schedules(schedule, match):
    with pytest.raises(ValueError, match=match):
        orthogonalize(jnp.eye(2), schedule)


def test_bad_input():
    with pytest.raises(ValueError, match="steps must be at least 1 and an integer, got 0"):
        orthogonalize(jnp.eye(2), steps=0)
    with pytest.raises(TypeError, match="int32"):
        orthogonalize(jnp.eye(2, dtype=jnp.int32))
    with pytest.raises(TypeError, match="complex64"):
        orthogonalize(jnp.eye(2, dtype=jnp.complex64))
    with pytest.raises(ValueError, match=r"not empty, got shape \(0, 3\)"):
        orthogonalize(jnp.ones((0, 3)))
    assert orthogonalize(jnp.ones((0, 3, 3))).shape == (0, 3, 3)
    with pytest.raises(ValueError, match="eps must be at least 0"):
        orthogonalize(jnp.eye(2), eps=-1.0)
    with pytest.raises(TypeError, match="dtype must be a real floating type, got int32"):
        orthogonalize(jnp.eye(2), dtype=jnp.int32)
    with pytest.raises((ValueError, TypeError), match="M"):  # jaxtyping, when it checks, is first
        orthogonalize(jnp.ones(3))
    for wrong in ({"M": [[1.0, 2.0]]}, {"steps": 1.5}, {"eps": "small"}, {"schedule": 3}, {"schedule": (1.5, -0.5, 0)}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            orthogonalize(**{"M": jnp.eye(2), **wrong})
