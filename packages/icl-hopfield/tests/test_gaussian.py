"""Posteriors, risks and softmax limits against dense algebra, quadrature, scikit-learn and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct

from icml25.icl_hopfield import (
    Memory,
    flip_labels,
    ghost_examples,
    posterior_predict,
    posterior_prefix,
    posterior_risk,
    prior_as_ghosts,
    softmax_finite,
    softmax_limit,
)

close = np.testing.assert_allclose
D, S2 = 4, 0.3
WBAR = np.array([0.5, -1.0, 2.0, 0.0])
COV = np.array([[2.0, 0.5, 0.0, 0.1], [0.5, 1.0, 0.2, 0.0], [0.0, 0.2, 0.7, -0.3], [0.1, 0.0, -0.3, 1.5]])


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def draw(n: int, seed: int = 0, m: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)), rng.normal(size=n), rng.normal(size=(m, D))


def dense(x, y, q, mean, cov, s2):
    """The formulas as they stand."""
    precision = np.linalg.inv(cov)
    S = np.linalg.inv(x.T @ x / s2 + precision)
    w = S @ (x.T @ y / s2 + precision @ mean)
    return q @ w, s2 + np.einsum("md,de,me->m", q, S, q), S, w


@pytest.mark.parametrize("n", [0, 2, 4, 9])  # n x n and d x d equations
@pytest.mark.parametrize("cov", [COV, 1.7])
def test_posterior(n: int, cov) -> None:
    x, y, q = draw(n)
    matrix = cov * np.eye(D) if np.isscalar(cov) else cov
    mean, var, _, _ = dense(x, y, q, WBAR, matrix, S2)
    settings = {"noise_var": S2, "prior_mean": WBAR, "prior_cov": cov}
    found = posterior_predict(x, y, q, **settings)
    close(found[0], mean, rtol=1e-9)
    close(found[1], var, rtol=1e-9)
    one = posterior_predict(x, y, q[1], **settings)
    assert one[0].shape == one[1].shape == ()
    close(one, [mean[1], var[1]], rtol=1e-9)


def test_posterior_is_that_of_scikit_learn() -> None:
    x, y, q = draw(6)
    kernel = ConstantKernel(1.7, "fixed") * DotProduct(1e-12, "fixed")
    model = GaussianProcessRegressor(kernel, alpha=S2, optimizer=None).fit(x, y)
    mean, std = model.predict(q, return_std=True)
    found = posterior_predict(x, y, q, noise_var=S2, prior_cov=1.7)
    close(found[0], mean, rtol=1e-6)
    close(found[1] - S2, std**2, rtol=1e-6)


def test_posterior_averages_the_tasks() -> None:
    rng = np.random.default_rng(0)
    x, y, q = rng.normal(size=(5, 1)), rng.normal(size=5), 1.3
    w = np.linspace(-15, 15, 60001)
    log_weight = -((y - w[:, None] * x[:, 0]) ** 2).sum(1) / (2 * S2) - (w - 0.4) ** 2 / (2 * 2.0)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ (w * q)
    found = posterior_predict(x, y, np.array([q]), noise_var=S2, prior_mean=0.4, prior_cov=2.0)
    close(found[0], mean, rtol=1e-8)
    close(found[1], S2 + weight @ (w * q) ** 2 - mean**2, rtol=1e-8)


def test_leading_axes() -> None:
    x, y, q = draw(18)
    x, y = x.reshape(2, 3, 3, D), y.reshape(2, 3, 3)
    settings = {"noise_var": S2, "prior_mean": WBAR, "prior_cov": COV}
    single, many = np.broadcast_to(q[0], (2, 3, D)), np.broadcast_to(q, (2, 3, 3, D))
    for queries in (single, many):
        found = posterior_predict(x, y, queries, **settings)
        risk = posterior_risk(x, queries, WBAR + 1, **settings)
        assert found[0].shape == queries.shape[:-1]
        for i, j in np.ndindex(2, 3):
            alone = posterior_predict(x[i, j], y[i, j], queries[i, j], **settings)
            close([f[i, j] for f in found], alone, rtol=1e-10)
            close([f[i, j] for f in risk], posterior_risk(x[i, j], queries[i, j], WBAR + 1, **settings), rtol=1e-8)
    prefix = posterior_prefix(x, y, **settings)
    close(prefix[0][1, 2], posterior_prefix(x[1, 2], y[1, 2], **settings)[0], rtol=1e-10)


def test_sequential_is_batch() -> None:
    x, y, _ = draw(9)
    settings = {"noise_var": S2, "prior_mean": WBAR, "prior_cov": COV}
    mean, var = posterior_prefix(x, y, **settings)
    for i in range(9):
        close((mean[i], var[i]), posterior_predict(x[:i], y[:i], x[i], **settings), rtol=1e-9)


def test_no_noise_interpolates() -> None:
    for n in (3, 4, 7):
        x, _, q = draw(n)
        y = x @ WBAR
        mean, var = posterior_predict(x, y, q, noise_var=0)
        close(posterior_predict(x, y, x, noise_var=0)[0], y, rtol=1e-8)
        if n >= D:
            close(mean, q @ WBAR, rtol=1e-8)
            close(var, 0, atol=1e-10)
        limit = posterior_predict(x, y, q, noise_var=1e-10)
        close(mean, limit[0], atol=1e-6)
        close(var, limit[1], atol=1e-6)
    x = np.repeat(draw(2)[0], 2, axis=0)
    with pytest.raises(ValueError, match="noise_var = 0 and x of rank 2 < 4: singular, give noise or rcond"):
        posterior_predict(x, x @ WBAR, q, noise_var=0)
    mean, var = posterior_predict(x, x @ WBAR, q, noise_var=0.0, rcond=1e-10, prior_cov=COV)
    limit = posterior_predict(x, x @ WBAR, q, noise_var=1e-8, prior_cov=COV)
    close(mean, limit[0], atol=1e-6)
    close(var, limit[1], atol=1e-6)


def test_feature_map() -> None:
    x, y, q = draw(5)

    def phi(x):
        return jnp.concatenate([x, x**2, jnp.sin(x[..., :1])], -1)

    settings = {"noise_var": S2, "prior_mean": 0.1, "prior_cov": 0.8}
    found = posterior_predict(x, y, q, feature_map=phi, **settings)
    close(found, posterior_predict(np.asarray(phi(x)), y, np.asarray(phi(q)), **settings), rtol=1e-12)


@pytest.mark.parametrize("n", [2, 9])
@pytest.mark.parametrize("cov", [COV, 1.7])
def test_risk_is_that_of_many_draws(n: int, cov) -> None:
    x, _, q = draw(n)
    w = WBAR + np.array([1.0, 0.3, -0.5, 0.7])
    bias2, variance = posterior_risk(x, q[0], w, noise_var=S2, prior_mean=WBAR, prior_cov=cov)
    y = x @ w + np.sqrt(S2) * np.random.default_rng(1).normal(size=(200_000, n))
    a = jax.grad(lambda y: posterior_predict(x, y, q[0], noise_var=S2, prior_mean=WBAR, prior_cov=cov)[0])(y[0])
    at_zero = posterior_predict(x, 0 * y[0], q[0], noise_var=S2, prior_mean=WBAR, prior_cov=cov)[0]
    error = np.asarray(at_zero) + y @ np.asarray(a) - q[0] @ w
    close(bias2 + variance, (error**2).mean(), rtol=0.01)
    close(variance, error.var(), rtol=0.01)


def test_risk_as_the_formulas_stand() -> None:
    x, y, q = draw(6)
    w = WBAR + 1
    S = dense(x, y, q, WBAR, COV, S2)[2]
    bias = q @ S @ np.linalg.inv(COV) @ (WBAR - w)
    found = posterior_risk(x, q, w, noise_var=S2, prior_mean=WBAR, prior_cov=COV)
    close(found[0], bias**2, rtol=1e-9)
    close(found[1], np.einsum("md,de,me->m", q, S @ x.T @ x @ S, q) / S2, rtol=1e-9)


def test_unfamiliar_tasks_cost_as_one_over_n_squared() -> None:
    rng = np.random.default_rng(0)
    q, w = np.array([1.0, 0.5, -0.5, 0.2]), np.full(D, 3.0)
    found = [posterior_risk(rng.normal(size=(n, D)), q, w, noise_var=S2)[0] for n in (1000, 100_000)]
    close(found[0] / found[1], 1e4, rtol=0.2)


def test_posterior_variance_grows_where_examples_do_not_span() -> None:
    x = draw(8)[0] * np.array([1, 1, 1, 0.01])
    variance = posterior_predict(x, np.zeros(8), np.eye(D), noise_var=S2)[1] - S2
    assert variance[3] > 0.95 and (variance[:3] < 0.3).all()


def test_inverse_gram_attention_is_the_posterior_mean() -> None:
    x, y, q = draw(7)
    attention = y @ x @ np.linalg.inv(x.T @ x + S2 / 1.7 * np.eye(D)) @ q[0]
    close(posterior_predict(x, y, q[0], noise_var=S2, prior_cov=1.7)[0], attention, rtol=1e-10)


# Ghosts


@pytest.mark.parametrize("cov", [COV, 1.7])
def test_the_prior_is_d_ghosts(cov) -> None:
    x, y, q = draw(6)
    ghost_x, ghost_y = prior_as_ghosts(WBAR, cov, S2)
    close(np.linalg.lstsq(np.asarray(ghost_x), np.asarray(ghost_y))[0], WBAR, atol=1e-12)
    both = np.linalg.lstsq(np.concatenate([ghost_x, x]), np.concatenate([ghost_y, y]))[0]
    close(posterior_predict(x, y, q, noise_var=S2, prior_mean=WBAR, prior_cov=cov)[0], q @ both, rtol=1e-10)
    close(ghost_x.T @ ghost_x, S2 * np.linalg.inv(cov * np.eye(D) if np.isscalar(cov) else cov), atol=1e-12)
    if np.isscalar(cov):
        close(np.abs(ghost_x), np.sqrt(S2 / cov) * np.eye(D), atol=1e-12)


def test_ghosts_teach_the_posterior_nothing() -> None:
    x, y, q = draw(6)
    ghosts = ghost_examples(Memory(x, y), lambda keys: keys @ WBAR)
    found = posterior_predict(ghosts.keys, ghosts.values, q, noise_var=S2, prior_mean=WBAR, prior_cov=COV)[0]
    close(found, q @ WBAR, atol=1e-12)


# Softmax attention on Gaussian contexts

Q, W, MU = np.array([0.6, -0.3]), np.array([1.0, -2.0]), np.array([0.3, 0.1])
SIGMA = np.array([[0.8, 0.2], [0.2, 0.5]])


def context(n: int, seed: int, mu=MU, noise_var=S2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = mu + rng.normal(size=(n, 2)) @ np.linalg.cholesky(SIGMA).T
    return keys, keys @ W + np.sqrt(noise_var) * rng.normal(size=n)


@pytest.mark.parametrize("beta", [pytest.param(1.0, marks=pytest.mark.slow), 1.3])
def test_softmax_limit(beta: float) -> None:
    keys, values = context(4_000_000, 0)
    found = Memory(keys, values, beta).retrieve(Q)
    assert abs(found - softmax_limit(Q, W, MU, SIGMA, beta)) < 5e-3


def test_softmax_attention_solves_the_regression() -> None:
    beta = 1.3
    query = np.linalg.solve(beta * SIGMA, Q)
    close(softmax_limit(query, W, 0.0, SIGMA, beta), W @ Q, rtol=1e-12)
    close(softmax_limit(np.stack([Q, 2 * Q]), W, 0.0, 1.0, 1.0), [W @ Q, 2 * W @ Q], rtol=1e-12)


def test_shifted_contexts_bias_softmax_attention() -> None:
    query = np.linalg.solve(SIGMA, Q)
    close(softmax_limit(query, W, MU, SIGMA, 1.0) - W @ Q, W @ MU, rtol=1e-12)


@pytest.mark.parametrize("rho", [0.2, 0.5, 0.7])
def test_flipped_labels_shrink_the_prediction(rho: float) -> None:
    keys, values = context(1_000_000, 1, mu=0.0)
    flipped = Memory(keys, flip_labels(values, rho, jax.random.key(0)), 1.0).retrieve(Q)
    assert abs(flipped - (1 - 2 * rho) * softmax_limit(Q, W, 0.0, SIGMA, 1.0)) < 0.02


def test_softmax_on_finitely_many_examples() -> None:
    n, beta = 2000, 1.0
    keys, values = context(3000 * n, 2)
    keys, values = keys.reshape(3000, n, 2), values.reshape(3000, n)
    p = np.exp(beta * keys @ Q)
    p /= p.sum(1, keepdims=True)
    mse, ess = softmax_finite(Q, W, MU, SIGMA, beta, S2, n)
    close((((p * values).sum(1) - softmax_limit(Q, W, MU, SIGMA, beta)) ** 2).mean(), mse, rtol=0.08)
    close((1 / (p**2).sum(1)).mean(), ess, rtol=0.02)
    close(softmax_finite(Q, W, 0.0, 1.0, 1.0, S2, n)[0], np.exp(Q @ Q) * (S2 + W @ W + (W @ Q) ** 2) / n, rtol=1e-12)


# jax and bad input


@pytest.mark.parametrize(("n", "d"), [(3, 40), (40, 3)])
def test_the_fewer_equations_are_solved(n: int, d: int) -> None:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, d), (n,), (d,))]
    jaxpr = str(jax.make_jaxpr(lambda x, y, q: posterior_predict(x, y, q, noise_var=S2))(*shapes))
    factors = [line for line in jaxpr.splitlines() if "= cholesky" in line]
    assert len(factors) == 1 and "f32[3,3] = cholesky" in factors[0]


def test_jit_gradients_and_dtypes() -> None:
    x, y, q = draw(6)

    def evidence(s2):
        return posterior_prefix(x, y, noise_var=s2)[1].sum() + posterior_predict(x, y, q, noise_var=s2)[0].sum()

    close(jax.jit(jax.grad(evidence))(S2), (evidence(S2 + 1e-5) - evidence(S2 - 1e-5)) / 2e-5, rtol=1e-5)
    exact = posterior_predict(x, y, q, noise_var=S2, prior_cov=COV)
    with jax.enable_x64(False):
        single = posterior_predict(x, y, q, noise_var=S2, prior_cov=COV)
        prefix = posterior_prefix(x, y, noise_var=S2)[0]
        assert single[0].dtype == single[1].dtype == prefix.dtype == jnp.float32
    close(single, exact, rtol=1e-4)
    x32, y32, q32 = (np.float32(a) for a in (x, y, q))
    kept = (
        *posterior_predict(x32, y32, q32, noise_var=S2),
        *posterior_prefix(x32, y32, noise_var=S2, prior_cov=2.0),
        *posterior_risk(x32, q32, q32[0], noise_var=S2, prior_mean=1.0),
        softmax_limit(q32, q32[0], 0.0, 1.0, 1.0),
        *softmax_finite(q32, q32[0], 0.0, 1.0, 1.0, S2, 9),
    )
    assert all(value.dtype == jnp.float32 for value in kept)
    integers = posterior_predict(np.eye(2, dtype=int), np.array([1, 2]), np.array([1, 1]), noise_var=1)
    close(integers, [1.5, 2.0])


x3, y3, q3 = np.ones((3, 2)), np.ones(3), np.ones(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_var": -1.0}, "noise_var must be a finite number >= 0, got -1"),
        ({"noise_var": float("nan")}, "noise_var"),
        ({"noise_var": 0.0}, "singular"),
        ({"prior_cov": 0.0}, "prior_cov must be symmetric and positive definite"),
        ({"prior_cov": -np.eye(2)}, "prior_cov must be symmetric and positive definite"),
        ({"prior_cov": np.array([[1.0, 0.5], [0.0, 1.0]])}, "prior_cov must be symmetric"),
        ({"prior_cov": np.array([[1.0, 2.0], [2.0, 1.0]])}, "positive definite"),
        ({"prior_cov": np.eye(3)}, r"prior_cov must be a number or of shape \(2, 2\), got \(3, 3\)"),
        ({"prior_mean": np.ones(3)}, r"prior_mean must be a number or of shape \(2,\), got \(3,\)"),
        ({"x": np.ones(2)}, r"x must have shape \(\.\.\., n, d\)"),
        ({"q": np.ones(3)}, r"got \(3, 2\) and \(3,\)"),
        ({"q": 1.0}, r"got \(3, 2\) and \(\)"),
        ({"y": np.ones(4)}, r"y must have shape \(3,\), as x has \(3, 2\), got \(4,\)"),
        ({"y": np.array([1, 2, np.nan])}, "y must be finite"),
        (
            {"x": np.ones((2, 3, 2)), "y": np.ones((2, 3)), "q": np.ones((4, 2))},
            r"leading axes.*\(2, 3, 2\) and \(4, 2\)",
        ),
    ],
)
def test_bad_regressions(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        posterior_predict(**({"x": x3, "y": y3, "q": q3, "noise_var": 1.0} | arguments))


def test_more_bad_input() -> None:
    with pytest.raises(ValueError, match=r"w must have shape \(2,\)"):
        posterior_risk(x3, q3, np.ones(3), noise_var=1.0)
    with pytest.raises(ValueError, match="noise_var must be a finite number > 0, got 0"):
        posterior_prefix(x3, y3, noise_var=0.0)
    with pytest.raises(ValueError, match="x must have shape"):
        posterior_prefix(q3, y3, noise_var=1.0)
    with pytest.raises(ValueError, match="noise_var must be a finite number > 0"):
        prior_as_ghosts(WBAR, COV, 0.0)
    with pytest.raises(ValueError, match=r"mean must have shape \(d,\)"):
        prior_as_ghosts(1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="cov must be symmetric and positive definite"):
        prior_as_ghosts(WBAR, -COV, 1.0)
    for arguments, message in (
        ((Q, W, MU, -1.0, 1.0), "sigma must be"),
        ((Q, W, MU, SIGMA, 0.0), "beta must be a finite number > 0"),
        ((Q, W[:1], MU, SIGMA, 1.0), r"q must have shape \(\.\.\., d\) and w \(d,\), got \(2,\) and \(1,\)"),
        ((Q, W, np.ones(3), SIGMA, 1.0), "mu must be"),
    ):
        with pytest.raises(ValueError, match=message):
            softmax_limit(*arguments)
    with pytest.raises(ValueError, match="n must be"):
        softmax_finite(Q, W, MU, SIGMA, 1.0, S2, 0)
    with pytest.raises(ValueError, match="noise_var"):
        softmax_finite(Q, W, MU, SIGMA, 1.0, -S2, 5)
    with pytest.raises(TypeError, match="x must be real"):
        posterior_predict(x3 * 1j, y3, q3, noise_var=1.0)
