"""The levels against closed forms, each other, values of the rescaling theory's public code, and finite differences."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icml25.feature_scales import ConvergenceError, Theory, TwoLayer, anneal, ising_task, kernel, solve, teacher_task
from icml25.feature_scales import adaptation as adaptation_module
from icml25.feature_scales import theory as theory_module
from icml25.feature_scales.adaptation import Neuron
from icml25.feature_scales.kernels import gaussian_moment

LINEAR = ("nngp", "tree", "one_loop", "rescaling", "exact")
LOOPLESS = ("nngp", "tree", "rescaling")


def matrices(net, X):
    variance, noise = net.effective()
    return net.g_v / X.shape[1] * X @ X.T, variance, noise


@pytest.mark.parametrize(
    ("phi", "chi", "noise", "scale", "output"),
    [
        ("linear", 1.0, 0.1, 0.93588539, 0.53022059),
        ("erf", 1.0, 0.1, 1.04520577, 0.67756406),
        ("linear", 8.0, 0.02, 0.18533218, 0.53074948),
        ("erf", 8.0, 0.02, 0.24101240, 0.68803451),
    ],
)
def test_rescaling_equals_the_published_theory(phi, chi, noise, scale, output):
    X, y = np.array([[1.0, 0, 2], [0, 1, -1], [1, 1, 0]]), np.array([1, -1, 0.5])
    net = TwoLayer(10, phi, 1.0, 1.0, noise, chi, noise_scaling="none")
    found = solve(net, X, y, "rescaling")
    assert found.scale == pytest.approx(scale, rel=1e-7)
    assert found.predict([[1.0, 1, 1]])[0] == pytest.approx(output, rel=1e-7)


@pytest.mark.parametrize(
    ("chi", "pilot"),
    [
        (1.0, (0.4972, 0.4575, 0.4938, 0.4891, 0.4913)),
        (10.0, (0.4972, 0.2965, 0.3177, 0.3134, 0.3142)),
        (100.0, (0.4972, 0.1210, 0.1255, 0.1244, 0.1245)),
    ],
)
def test_discrepancies_have_the_size_and_the_order_of_an_earlier_run(chi, pilot):
    """Another draw of the same Ising task: the values shift together, their order stays."""
    X, y = ising_task(jax.random.key(1), 80, 200, 0.1)
    found = [solve(TwoLayer(100, "linear", 0.5, 0.5, 1.0, chi), X, y, level).train_discrepancy for level in LINEAR]
    np.testing.assert_allclose(found, pilot, rtol=0.1)
    assert np.argsort(found).tolist() == np.argsort(pilot).tolist()


@pytest.mark.parametrize("level", LINEAR)
@pytest.mark.parametrize("chi", [1.0, 5.0, 50.0])
def test_equations_hold(level, chi, ising):
    X, y, X_test, _ = ising
    net = TwoLayer(50, "linear", 0.7, 0.9, 0.4, chi)
    C, variance, noise = matrices(net, X)
    found = solve(net, X, y, level)
    Q, j = found.scale, found.dual
    A = noise * np.eye(20) + Q * C
    if level == "exact":
        np.testing.assert_allclose(y - found.mean(X), noise * j, atol=1e-10)
        return
    np.testing.assert_allclose(noise * j + found.mean(X), y, atol=1e-8)
    np.testing.assert_allclose(found.mean(X_test), net.g_v / 20 * X_test @ X.T @ j * Q, rtol=1e-12)
    energy, trace = j @ C @ j / 50, np.trace(np.linalg.solve(A, C)) / 50
    if level == "nngp":
        assert variance == Q
    elif level == "tree":
        assert pytest.approx(1 / Q, rel=1e-8) == 1 / variance - energy
    elif level == "rescaling":
        assert pytest.approx(1 / Q, rel=1e-8) == 1 / variance - energy + trace
    else:
        tree = variance / (1 - variance * energy)
        loop = tree**2 / 50 * np.trace(np.linalg.solve(noise * np.eye(20) + tree * C, C))
        assert tree - loop == pytest.approx(Q, rel=1e-8)
    assert found.converged and found.residual < 1e-8
    assert found.train_discrepancy == pytest.approx(y @ (y - found.mean(X)) / 20)


def test_all_levels_reach_the_lazy_limit_as_one_over_n():
    X, y = teacher_task(jax.random.key(0), 8, 5)
    widths = [200, 800, 3200]
    for level in ("tree", "one_loop", "rescaling", "exact"):
        gaps = []
        for width in widths:
            net = TwoLayer(width, "linear", 1.0, 1.0, 0.5)
            gaps.append(np.abs(solve(net, X, y, level).mean(X) - solve(net, X, y, "nngp").mean(X)).max())
        slope = np.polyfit(np.log(widths), np.log(gaps), 1)[0]
        assert slope == pytest.approx(-1, abs=0.15), level


def test_mean_field_limit_is_finite():
    X, y = teacher_task(jax.random.key(0), 8, 5)
    nets = [TwoLayer(width, "linear", 1.0, 1.0, 0.5).mean_field() for width in (10**3, 10**4, 10**5)]
    ratios = [solve(net, X, y, "tree").scale * net.chi for net in nets]
    assert ratios[0] > 1.5
    np.testing.assert_allclose(ratios, ratios[-1], rtol=1e-8)
    errors = [abs(solve(net, X, y, "exact").scale * net.chi / ratios[-1] - 1) for net in nets[:2]]
    assert errors[1] < errors[0] / 5


def test_tree_level_at_chi_n_is_right_to_one_over_n():
    """With P and D kept; with P/N kept the trace that tree level leaves out is of the order of chi/g_w."""
    X, y = ising_task(jax.random.key(1000), 40, 100, 0.1)
    errors = []
    for width in (100, 200, 400):
        net = TwoLayer(width, "linear", 0.5, 0.5, 1.0).mean_field()
        tree, exact = (solve(net, X, y, level).train_discrepancy for level in ("tree", "exact"))
        errors.append(abs(tree / exact - 1))
    np.testing.assert_allclose([errors[1] / errors[0], errors[2] / errors[1]], 0.5, atol=0.03)


@pytest.mark.parametrize("chi", [1.0, 30.0])
def test_adapted_kernel_of_a_linear_network_is_the_rescaled_one(chi, ising):
    X, y, X_test, _ = ising
    net = TwoLayer(30, "linear", 1.0, 1.0, 0.3, chi)
    tree = solve(net, X, y, "tree")
    whitened = np.sqrt(net.g_v / 20) * X
    neuron = Neuron(net, whitened)
    found = neuron.saddle_point(y, neuron.prior(), 1e-10)
    np.testing.assert_allclose(found.dual, tree.dual, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(net.g_v / 20 * found.covariance, tree.weight_covariance(), atol=1e-6)
    assert found.free_energy == pytest.approx(tree.free_energy, rel=1e-8)
    variance, _ = net.effective()
    adapted = variance * kernel("linear", X_test, net.g_v / 20 * found.covariance, X) @ found.dual
    np.testing.assert_allclose(adapted, tree.mean(X_test), rtol=1e-6, atol=1e-7)


def test_curvature_of_a_linear_network(ising):
    X, y, _, _ = ising
    net = TwoLayer(30, "linear", 1.0, 1.0, 0.3, 5.0)
    C, _, noise = matrices(net, X)
    tree = solve(net, X, y, "tree")
    neuron = Neuron(net, np.sqrt(net.g_v / 20) * X)
    theta = neuron.saddle_point(y, neuron.prior(), 1e-10).theta
    first, second = neuron.response(tree.dual, theta)
    f, Q, N = tree.mean(X), tree.scale, 30
    np.testing.assert_allclose(first, f, atol=1e-6)
    np.testing.assert_allclose(second, Q * C + 2 / N * np.outer(f, f), atol=1e-6)
    gained = neuron.fluctuation(tree.dual, theta, second)
    M = np.linalg.inv(noise * np.eye(20) + second)
    Cj = C @ tree.dual  # grad of Q is 2 Q^2 C j/N; that of f = Q C j is W''
    expected = Q**2 / N * np.trace(M @ C) * Cj + 2 / N * second @ M @ f
    np.testing.assert_allclose(gained, expected, rtol=1e-5, atol=1e-7)


def test_nonlinear_tree_is_stationary(ising, erf_net):
    X, y, _, _ = ising
    net = TwoLayer(50, "erf", 1.0, 1.0, 0.3, 5.0)
    tree = solve(net, X, y, "tree")
    variance, noise = net.effective()
    Sigma = tree.weight_covariance()
    K = kernel("erf", X, Sigma)
    np.testing.assert_allclose(noise * tree.dual + variance * K @ tree.dual, y, atol=1e-8)

    def free_energy(Sigma):
        A = noise * np.eye(20) + variance * kernel("erf", X, Sigma)
        ratio = 20 * Sigma / net.g_v
        return y @ np.linalg.solve(A, y) / 2 + 25 * (np.trace(ratio) - np.linalg.slogdet(ratio)[1] - 20)

    assert tree.free_energy == pytest.approx(free_energy(Sigma), rel=1e-9)
    assert tree.free_energy < free_energy(net.g_v / 20 * np.eye(20))
    with jax.enable_x64(True):
        points, j = jnp.asarray(X), jnp.asarray(tree.dual)

        def energy(Sigma):
            s = points @ Sigma @ points.T
            return j @ gaussian_moment("erf", s, jnp.diagonal(s), jnp.diagonal(s)) @ j

        pull = np.asarray(jax.grad(energy)(jnp.asarray(Sigma)))
    expected = 20 / net.g_v * np.eye(20) - variance / 50 * pull  # Sigma^{-1}
    np.testing.assert_allclose(np.linalg.inv(Sigma), expected, atol=2e-6 * 20 / net.g_v)


@pytest.mark.parametrize("phi", ["erf", "relu"])
def test_gradient_of_the_free_energy_by_finite_differences(phi, small):
    X, y, _ = small
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        theta, H = jnp.asarray(rng.standard_normal((5, 5)) / 3), jnp.asarray(X / 2)
        energy = lambda t: adaptation_module._free_energy(phi, t, H, jnp.asarray(y), 0.8, 0.2, 9.0)  # noqa: E731
        _, gradient = energy(theta)
        for _ in range(3):
            direction = jnp.asarray(rng.standard_normal((5, 5)))
            numeric = (energy(theta + 1e-6 * direction)[0] - energy(theta - 1e-6 * direction)[0]) / 2e-6
            assert float((gradient * direction).sum()) == pytest.approx(float(numeric), rel=1e-5)


def test_one_loop_solves_its_equation(small, one_loop):
    """W'' and the fluctuation term, from finite differences of W' alone, its inner maximum taken by Newton steps."""
    X, y, _ = small
    net = one_loop.net
    neuron = Neuron(net, np.sqrt(net.g_v / X.shape[1]) * X)
    noise, lower = net.noise, np.tril_indices(5)
    with jax.enable_x64(True):
        H = jnp.asarray(neuron.H)

        def inner(entries, j):
            theta = jnp.zeros((5, 5)).at[lower].set(entries)
            return adaptation_module._inner("erf", theta, H, j, net.g_w, float(net.width))

        newton = jax.jit(lambda t, j: t - jnp.linalg.solve(jax.hessian(inner)(t, j), jax.grad(inner)(t, j)))

    def first_and_second(j):
        with jax.enable_x64(True):
            entries = jnp.asarray(one_loop.adapted.solution.theta[lower])
            for _ in range(6):
                entries = newton(entries, jnp.asarray(j))
        theta = np.zeros((5, 5))
        theta[lower] = entries
        return neuron.response(j, theta)

    def slope(of, step):
        """Fourth-order central differences along each entry of j."""
        rows = []
        for e in step * np.eye(6):
            near, far = of(j + e) - of(j - e), of(j + 2 * e) - of(j - 2 * e)
            rows.append((8 * near - far) / (12 * step))
        return np.stack(rows)

    j = one_loop.dual
    first, second = first_and_second(j)
    np.testing.assert_allclose(second, slope(lambda j: first_and_second(j)[0], 1e-2), atol=1e-7)
    log_det = lambda j: np.linalg.slogdet(noise * np.eye(6) + first_and_second(j)[1])[1]  # noqa: E731
    gradient = slope(log_det, 1e-2)
    np.testing.assert_allclose(noise * j + first - gradient / 2, y, atol=1e-6)
    assert np.abs(gradient / 2).max() > 0.01


@pytest.mark.slow
def test_one_loop_means_continue_to_test_points(small, one_loop):
    X, y, X_test = small
    np.testing.assert_allclose(one_loop.mean(X), y - one_loop.net.noise * one_loop.dual, atol=1e-6)
    both = one_loop.mean(np.concatenate([X_test, X[:1]]))
    assert both[-1] == pytest.approx(one_loop.mean(X)[0], abs=1e-7)


def test_one_loop_output_covariance_is_that_of_the_process(small, one_loop):
    X, _, _ = small
    neuron = Neuron(one_loop.net, np.sqrt(one_loop.net.g_v / X.shape[1]) * X)
    theta, _ = neuron.adapt(one_loop.dual, neuron.prior(), 1e-11)
    _, second = neuron.response(one_loop.dual, theta)
    noise = one_loop.net.noise * np.eye(6)
    expected = noise - noise @ np.linalg.inv(noise + second) @ noise
    np.testing.assert_allclose(one_loop.output_covariance(), expected, atol=1e-7)


def test_annealing_of_the_nonlinear_tree(ising, erf_net):
    X, y, _, _ = ising
    theories = anneal(erf_net, X, y, [1.0, 5.0, 50.0], "tree")
    for theory, last in zip(theories[1:], theories, strict=False):
        alone = solve(theory.net, X, y, "tree")
        assert theory.train_discrepancy == pytest.approx(alone.train_discrepancy, rel=1e-6)
        assert theory.train_discrepancy < last.train_discrepancy
        assert theory.scale * theory.net.chi > last.scale * last.net.chi


@pytest.mark.parametrize("level", LINEAR)
def test_annealing_of_linear_levels(level, ising):
    X, y, _, _ = ising
    net = TwoLayer(40, "linear", 0.7, 0.9, 0.4)
    for theory in anneal(net, X, y, [1.0, 4.0, 40.0], level):
        assert theory.scale == pytest.approx(solve(theory.net, X, y, level).scale, rel=1e-8)


def test_annealing_takes_the_branch_nearest_to_the_last_ratio_to_the_prior(ising, monkeypatch):
    def gap(Q):
        return (np.log(Q) - 1) * (np.log(Q) - 2) * (np.log(Q) - 3)

    roots = [np.log(theory_module._nearest_root(gap, 1.0, np.exp(3.5), near, 1e-12)) for near in (None, 3.0, 9.0)]
    np.testing.assert_allclose(roots, [3, 1, 2], rtol=1e-10)
    asked = []
    original = theory_module._nearest_root
    monkeypatch.setattr(theory_module, "_nearest_root", lambda *a: asked.append(a[-2]) or original(*a))
    X, y, _, _ = ising
    first, second, _ = anneal(TwoLayer(40, "linear", 0.7, 0.9, 0.4), X, y, [1.0, 4.0, 40.0], "one_loop")
    assert asked == [None, pytest.approx(first.scale / 4), pytest.approx(second.scale / 10)]


@pytest.mark.parametrize("level", LINEAR)
def test_output_covariance(level, ising):
    X, y, X_test, _ = ising
    net = TwoLayer(40, "linear", 0.7, 0.9, 0.4, 10.0)
    C, _, noise = matrices(net, X)
    found = solve(net, X, y, level)
    covariance = found.output_covariance()
    assert np.linalg.eigvalsh(covariance).min() > -1e-10
    if level != "exact":
        assert np.linalg.eigvalsh(noise * np.eye(20) - covariance).min() > -1e-10
        f = found.mean(X)
        direction = 2 / 40 * np.outer(f, f) if level in ("tree", "one_loop") else 0
        inverse = np.linalg.inv(noise * np.eye(20) + found.scale * C + direction)
        np.testing.assert_allclose(covariance, noise * np.eye(20) - noise**2 * inverse, atol=1e-10)
    np.testing.assert_allclose(found.output_covariance(np.concatenate([X, X_test]))[:20, :20], covariance, atol=1e-10)


def test_learned_direction_has_rank_one(ising):
    X, y, _, _ = ising
    net = TwoLayer(40, "linear", 0.7, 0.9, 0.4, 10.0)
    C, _, _ = matrices(net, X)
    tree = solve(net, X, y, "tree")
    f = tree.mean(X)
    np.testing.assert_allclose(tree.hidden_kernel() - C, np.outer(f, f) / (40 * tree.scale), atol=1e-10)
    for level in ("nngp", "rescaling"):
        np.testing.assert_allclose(solve(net, X, y, level).hidden_kernel(), C, atol=1e-12)


def test_one_loop_kernel_is_closer_to_exact_than_tree(ising):
    X, y, _, _ = ising
    for chi in (1.0, 40.0):
        kernels = {}
        for level in ("tree", "one_loop", "exact"):
            kernels[level] = solve(TwoLayer(40, "linear", 0.7, 0.9, 0.4, chi), X, y, level).hidden_kernel()
        errors = {level: np.linalg.norm(kernels[level] - kernels["exact"]) for level in ("tree", "one_loop")}
        assert errors["one_loop"] < 0.5 * errors["tree"]


def test_erf_of_small_inputs_is_linear(ising):
    X, y, X_test, _ = ising
    for level in LOOPLESS:
        erf = solve(TwoLayer(30, "erf", 1e4, 1e-4, 0.3), X, y, level)
        linear = solve(TwoLayer(30, "linear", 1e4, 1e-4 * 4 / np.pi, 0.3), X, y, level)
        np.testing.assert_allclose(erf.mean(X_test), linear.mean(X_test), rtol=2e-3, atol=1e-5)


def test_relu_levels(ising):
    X, y, _, _ = ising
    net = TwoLayer(50, "relu", 1.0, 1.0, 0.3, 5.0)
    nngp, tree, rescaling = (solve(net, X, y, level) for level in LOOPLESS)
    assert tree.train_discrepancy < nngp.train_discrepancy
    assert tree.free_energy < nngp.free_energy
    assert rescaling.scale > nngp.scale


@pytest.mark.parametrize("phi", ["linear", "erf"])
@pytest.mark.parametrize("level", LOOPLESS)
def test_symmetries(phi, level, ising):
    X, y, X_test, _ = ising
    net = TwoLayer(30, phi, 1.0, 1.0, 0.3, 5.0)
    found = solve(net, X, y, level)
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((20, 20)))
    order = rng.permutation(20)
    rotated, permuted, flipped = (
        solve(net, X @ rotation, y, level),
        solve(net, X[order], y[order], level),
        solve(net, X, -y, level),
    )
    np.testing.assert_allclose(rotated.mean(X_test @ rotation), found.mean(X_test), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(permuted.dual, found.dual[order], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(flipped.mean(X_test), -found.mean(X_test), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(flipped.hidden_kernel(), found.hidden_kernel(), atol=1e-6)


@pytest.mark.parametrize("level", LINEAR)
def test_chi_divides_the_readout_variance(level, ising):
    X, y, X_test, _ = ising
    scaled = solve(TwoLayer(30, "linear", 1.0, 1.0, 0.3, 5.0, noise_scaling="none"), X, y, level)
    lazy = solve(TwoLayer(30, "linear", 0.2, 1.0, 0.3), X, y, level)
    np.testing.assert_allclose(scaled.mean(X_test), lazy.mean(X_test), rtol=1e-9)
    assert scaled.scale == pytest.approx(lazy.scale, rel=1e-9)


@given(
    width=st.integers(8, 300),
    chi=st.floats(1, 300),
    g_w=st.floats(0.1, 3),
    noise=st.floats(0.05, 3),
    seed=st.integers(0, 100),
)
def test_scales_are_in_order(width, chi, g_w, noise, seed):
    """The energy raises Q above the prior's, the trace lowers it below tree level."""
    X, y = teacher_task(jax.random.key(seed), 6, 4)
    net = TwoLayer(width, "linear", g_w, 1.0, noise, chi)
    nngp, tree, rescaling = (solve(net, X, y, level).scale for level in LOOPLESS)
    assert nngp <= tree * (1 + 1e-9) and rescaling <= tree * (1 + 1e-9)


def test_singular_kernels():
    X = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [2.0, -1.0]])
    y = np.array([1.0, 0.5, 0.3, -1.0])
    for phi, levels in (("linear", LINEAR), ("erf", ("nngp", "rescaling")), ("relu", LOOPLESS)):
        for level in levels:
            found = solve(TwoLayer(20, phi, 1.0, 1.0, 0.1), X, y, level)
            assert np.isfinite(found.output_covariance([[1.0, 1.0]])).all()
            if phi == "linear":
                assert found.mean(X)[2] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("level", LINEAR)
def test_no_signal(level):
    X, y = np.eye(3), np.zeros(3)
    for g_w in (0.3, 1.0, 1.1):
        found = solve(TwoLayer(20, "linear", g_w, 1.0, 0.1), X, y, level)
        np.testing.assert_array_equal(found.mean(X), np.zeros(3))
        if level in ("nngp", "tree"):
            assert found.scale == pytest.approx(g_w)
        else:
            assert found.scale < (1 + 1e-3) * g_w


@pytest.mark.parametrize(
    ("phi", "level"), [*(("linear", level) for level in LINEAR), *(("erf", level) for level in LOOPLESS)]
)
def test_inputs_of_zeros_teach_nothing(phi, level):
    X, y = np.zeros((3, 2)), np.ones(3)
    found = solve(TwoLayer(20, phi, 0.3, 1.0, 0.1), X, y, level)
    assert found.scale == pytest.approx(0.3)
    np.testing.assert_allclose(found.dual, y / 0.1)
    np.testing.assert_array_equal(found.mean([[1.0, -1.0]]), [0.0])


@pytest.mark.parametrize("level", LINEAR)
def test_a_trace_below_rounding(level, ising):
    X, y, _, _ = ising
    assert solve(TwoLayer(20, "linear", 1.0, 1.0, 0.1), 1e-8 * X, y, level).scale == pytest.approx(1)


@pytest.mark.slow
def test_one_loop_of_inputs_of_zeros():
    X, y = np.zeros((3, 2)), np.ones(3)
    found = solve(TwoLayer(20, "erf", 0.3, 1.0, 0.1), X, y, "one_loop")
    np.testing.assert_allclose(found.dual, y / 0.1)
    np.testing.assert_allclose(found.mean([[0.0, 0.0], [1.0, -1.0]]), [0.0, 0.0], atol=1e-12)


def test_free_energy_of_rescaling_is_stationary_in_q(ising):
    from icml25.feature_scales.spectrum import Spectrum
    from icml25.feature_scales.theory import _Equations

    X, y, _, _ = ising
    net = TwoLayer(30, "linear", 1.0, 1.0, 0.3, 5.0)
    found = solve(net, X, y, "rescaling")
    equations = _Equations(net, Spectrum.of_inputs(X / np.sqrt(20), y))
    assert equations.free_energy("rescaling", found.scale) == pytest.approx(found.free_energy)
    for factor in (0.99, 1.01):
        assert equations.free_energy("rescaling", factor * found.scale) > found.free_energy


def test_free_energy_of_one_loop(ising):
    X, y, _, _ = ising
    for chi in (1.0, 30.0):
        net = TwoLayer(30, "linear", 1.0, 1.0, 0.3, chi)
        found, (C, variance, noise) = solve(net, X, y, "one_loop"), matrices(net, X)
        j = found.dual
        Q = variance / (1 - variance / 30 * j @ C @ j)
        f = Q * C @ j
        curvature = noise * np.eye(20) + Q * C + 2 / 30 * np.outer(f, f)
        action = -j @ y + noise * j @ j / 2 - 15 * np.log(1 - variance / 30 * j @ C @ j)
        assert found.free_energy == pytest.approx(-action + np.linalg.slogdet(curvature)[1] / 2, rel=1e-8)


def test_free_energy_of_one_loop_approaches_the_exact_evidence():
    X, y = teacher_task(jax.random.key(0), 8, 5)
    for chi in (1.0, None):
        errors = []
        for width in (200, 800, 3200):
            net = TwoLayer(width, "linear", 1.0, 1.0, 0.5, chi or float(width))
            errors.append(abs(solve(net, X, y, "one_loop").free_energy - solve(net, X, y, "exact").free_energy))
        slope = np.polyfit(np.log([200, 800, 3200]), np.log(errors), 1)[0]
        assert slope == pytest.approx(-1, abs=0.15) and errors[-1] < 0.01


def test_test_discrepancy(ising):
    X, y, X_test, y_test = ising
    found = solve(TwoLayer(30, "linear", 1.0, 1.0, 0.3), X, y, "tree")
    expected = np.mean(y_test * (y_test - found.predict(X_test)))
    assert found.test_discrepancy(X_test, y_test) == pytest.approx(expected)


def test_float32_lists_and_columns(ising):
    X, y, X_test, _ = ising
    net = TwoLayer(30, "erf", 1.0, 1.0, 0.3)
    expected = solve(net, X, y, "rescaling").mean(X_test)
    for points, targets in (
        (X.astype(np.float32), y.astype(np.float32)),
        (X.tolist(), y[:, None]),
        (jnp.asarray(X), y),
    ):
        found = solve(net, points, targets, "rescaling").mean(X_test)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_pickling(ising, erf_net):
    X, y, X_test, _ = ising
    for level in LINEAR:
        found = solve(TwoLayer(30, "linear", 1.0, 1.0, 0.3), X, y, level)
        again = pickle.loads(pickle.dumps(found))
        np.testing.assert_array_equal(found.mean(X_test), again.mean(X_test))
    adapted = solve(erf_net, X, y, "tree")
    again = pickle.loads(pickle.dumps(adapted))
    np.testing.assert_array_equal(again.weight_covariance(), adapted.weight_covariance())
    assert isinstance(again, Theory)


def test_effective_and_copies():
    net = TwoLayer(50, "erf", 2.0, 1.0, 0.3, 4.0)
    assert net.effective() == (0.5, 0.075)
    assert TwoLayer(50, "erf", 2.0, 1.0, 0.3, 4.0, "none").effective() == (0.5, 0.3)
    assert net.standard().chi == 1 and net.mean_field().chi == 50 and net.chi == 4
    assert TwoLayer(50, "erf", 2.0, 1.0, 0.3, 0.5, allow_sublazy=True).chi == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width=0"),
        ({"width": True}, "width=True"),
        ({"phi": "tanh"}, "phi='tanh'"),
        ({"width": 10**400}, "width=1000"),
        ({"g_w": 0.0}, r"g_w=0\.0"),
        ({"g_w": True}, "g_w=True"),
        ({"noise": 1e-80}, "noise=1e-80"),
        ({"g_v": -1.0}, r"g_v=-1\.0"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"noise": 0}, "noise=0"),
        ({"chi": 0.5}, r"chi=0\.5"),
        ({"chi": 0.0, "allow_sublazy": True}, r"chi=0\.0"),
        ({"noise_scaling": "all"}, "noise_scaling='all'"),
    ],
)
def test_bad_networks(changes, message):
    settings = {"width": 5, "phi": "linear", "g_w": 1.0, "g_v": 1.0, "noise": 0.1}
    with pytest.raises(ValueError, match=message):
        TwoLayer(**(settings | changes))


def test_width_must_be_an_integer():
    with pytest.raises((ValueError, TypeError), match="width"):
        TwoLayer(2.5, "linear", 1.0, 1.0, 0.1)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones((3, 2)), np.ones((3, 2)), r"y has shape \(3, 2\); several outputs"),
        (np.ones((3, 2)), np.ones(4), r"y has shape \(4,\)"),
        (np.ones((3, 2)), [1, np.nan, 2], "y holds NaN"),
        ([[np.inf, 1]], [1], "X holds NaN"),
        ([[1e80, 1]], [1], "X holds .* beyond 1e75"),
        ([[1, 2], [3]], [1, 2], "X is not an array"),
        (np.ones(3), np.ones(3), r"X has shape \(3,\)"),
        (np.ones((0, 2)), np.ones(0), r"X has shape \(0, 2\)"),
    ],
)
def test_bad_data(X, y, message):
    net = TwoLayer(5, "linear", 1.0, 1.0, 0.1)
    with pytest.raises(ValueError, match=message):
        solve(net, X, y, "tree")
    with pytest.raises(ValueError, match=message):
        anneal(net, X, y, [1.0], "tree")


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones((3, 2)) + 1j, np.ones(3), "X has dtype complex128"),
        (np.ones((3, 2)), np.array(["1", "2", "3"]), "y has dtype <U1"),
        (None, np.ones(3), "X has dtype object"),
    ],
)
def test_no_numbers(X, y, message):
    with pytest.raises(TypeError, match=message if X is not None else "X"):
        solve(TwoLayer(5, "linear", 1.0, 1.0, 0.1), X, y, "tree")


@pytest.mark.parametrize("tol", [0.0, -1.0, float("nan"), 1e-3])
@pytest.mark.parametrize("phi", ["linear", "erf"])
def test_bad_tolerances(phi, tol, ising):
    X, y, _, _ = ising
    with pytest.raises(ValueError, match="tol="):
        solve(TwoLayer(50, phi, 1.0, 1.0, 0.3), X, y, "tree", tol=tol)


def test_wrong_types_name_the_argument(ising):
    X, y, _, _ = ising
    net = TwoLayer(5, "linear", 1.0, 1.0, 0.1)
    with pytest.raises(TypeError, match="net"):
        solve("net", X, y, "tree")
    with pytest.raises(TypeError, match="init"):
        solve(net, X, y, "tree", init=net)


def test_theories_are_compared_by_identity(ising):
    X, y, _, _ = ising
    one, two = (solve(TwoLayer(30, "linear", 1.0, 1.0, 0.3), X, y, "exact") for _ in range(2))
    assert one == one and one != two and len({one, two, one.posterior}) == 3


def test_bad_calls(ising):
    X, y, _, _ = ising
    net = TwoLayer(5, "linear", 1.0, 1.0, 0.1)
    with pytest.raises(ValueError, match="level='two_loop'"):
        solve(net, X, y, "two_loop")
    with pytest.raises(NotImplementedError, match="phi='erf'"):
        solve(TwoLayer(5, "erf", 1.0, 1.0, 0.1), X, y, "exact")
    with pytest.raises(ValueError, match="X has 201 points"):
        solve(TwoLayer(5, "erf", 1.0, 1.0, 0.1), np.ones((201, 1)), np.ones(201), "one_loop")
    for chis in ([], [2.0, 1.0], [1.0, 1.0], [[1.0, 2.0]]):
        with pytest.raises(ValueError, match="chis="):
            anneal(net, X, y, chis, "tree")
    found = solve(net, X, y, "tree")
    with pytest.raises(ValueError, match="X_test has 3 features"):
        found.mean(np.ones((2, 3)))
    with pytest.raises(ValueError, match="init is of level 'tree'"):
        solve(net, X, y, "rescaling", init=found)


def test_no_root_and_early_stops_are_errors(ising, monkeypatch):
    X, y, _, _ = ising
    rng = np.random.default_rng(0)
    with pytest.raises(
        ConvergenceError, match="no root for Q"
    ):  # P > N: the one-loop correction exceeds the tree level
        solve(
            TwoLayer(1, "linear", 10.0, 1.0, 1e-3),
            rng.standard_normal((20, 30)),
            0.01 * rng.standard_normal(20),
            "one_loop",
        )
    import scipy.optimize

    original = scipy.optimize.minimize
    monkeypatch.setattr(
        scipy.optimize, "minimize", lambda *a, options, **k: original(*a, options=options | {"maxiter": 1}, **k)
    )
    with pytest.raises(ConvergenceError, match=r"gradient .* after 1 iterations"):
        solve(TwoLayer(50, "erf", 1.0, 1.0, 0.3, 50.0), X, y, "tree")
