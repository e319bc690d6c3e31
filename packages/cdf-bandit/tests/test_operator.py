"""The design operator, its moment vector and its spectrum."""

import numpy as np
import pytest
from conftest import A, sine
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from icml25.cdf_bandit import (
    CallableBasis,
    CDFRegressor,
    GaussianBasis,
    KumaraswamyBasis,
    LogisticBasis,
    atoms,
    box,
    estimate_decay,
    interval,
)
from icml25.cdf_bandit.basis import basis_tensor
from icml25.cdf_bandit.operator import design_kernel, moment_vector, outcome_measure, spectrum, symmetric_form


def test_two_atoms_have_the_closed_form(powers):
    y = np.array([0.1, 0.35, 0.8])
    x, a = np.zeros((3, 1)), np.zeros(3, int)
    w, m = powers["measure"].points, interval(0, 1, 16)
    np.testing.assert_allclose(
        design_kernel(powers["basis"], x, a, w, m), 3 * np.array([[1 / 3, 1 / 4], [1 / 4, 1 / 5]]), atol=1e-13
    )
    b = [((1 - y**2) / 2).sum(), ((1 - y**3) / 3).sum()]
    np.testing.assert_allclose(moment_vector(powers["basis"], x, a, y, w, m), b, atol=1e-12)


def test_theta_of_two_atoms_has_the_closed_form(powers):
    y = np.array([0.1, 0.35, 0.8, 0.9])
    model = CDFRegressor(**powers, truncate=False, project=False, n_s=16).fit(np.zeros((4, 1)), np.zeros(4, int), y)
    b = [((1 - y**2) / 2).mean(), ((1 - y**3) / 3).mean()]
    np.testing.assert_allclose(model.theta_, np.linalg.solve([[1 / 3, 1 / 4], [1 / 4, 1 / 5]], b), atol=1e-10)


@pytest.mark.parametrize("normalize", [True, False])
def test_scale_of_a_wide_domain(normalize):
    """m has mass 1 when normalised, else the length of the domain; theta does not care."""
    wide = LogisticBasis(lambda x, a, w: 10 + 20 * sine(x, a, w), 1.6, domain=(10, 30))
    rng = np.random.default_rng(0)
    x, a, y = rng.random((50, 1)), rng.integers(A, size=50), rng.uniform(10, 30, 50)
    model = CDFRegressor(wide, A, normalize=normalize, truncate=False, n_w=12).fit(x, a, y)
    unit = CDFRegressor(LogisticBasis(sine, 0.08), A, truncate=False, n_w=12).fit(x, a, (y - 10) / 20)
    np.testing.assert_allclose(model.eigenvalues_, unit.eigenvalues_ * (1 if normalize else 20), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.predict_cdf(x, a, [18.0]), unit.predict_cdf(x, a, [0.4]), atol=1e-9)


@pytest.mark.parametrize("kind", [LogisticBasis, GaussianBasis])
@pytest.mark.parametrize("scale", [99.0, 1e4, 1e7, 1e9])
def test_a_scale_far_wider_than_the_domain_nears_the_uniform_law(kind, scale):
    """There the closed form of the tail would cancel; the CDF of the uniform law integrates to (1 - y^2) / 2."""
    basis = kind(sine, scale)
    y = np.linspace(0, 1, 5)
    tail = basis.tail_integral(np.zeros((5, 1)), np.zeros(5, int), np.array([0.0, 0.5]), y)
    np.testing.assert_allclose(tail, np.repeat((1 - y**2)[:, None] / 2, 2, axis=1), atol=max(1 / scale, 1e-7))


@pytest.mark.parametrize("kind", [LogisticBasis, GaussianBasis])
def test_bases_are_truncated_cdfs(kind):
    """Against numerical integration of the density, also with locations far outside the domain."""
    from scipy.stats import logistic, norm

    law = {LogisticBasis: logistic, GaussianBasis: norm}[kind]
    basis = kind(
        lambda x, a, w: np.broadcast_to(w, (len(x), len(w))), lambda x, a, w: 0.1 + 0.2 * a[:, None], domain=(-1, 2)
    )
    w, s, a = np.array([-2.5, 0.3, 1.9, 4.0]), np.array([-1, -0.5, 0.4, 1.7, 2.0]), np.array([0, 1])
    phi = basis.cdf(np.zeros((2, 1)), a, w, s)
    tail = basis.tail_integral(np.zeros((2, 1)), a, w, np.array([0.4, 0.4]))
    for j, h in enumerate([0.1, 0.3]):
        for g, mu in enumerate(w):
            density = law(mu, h).pdf
            total = quad(density, -1, 2, points=[np.clip(mu, -1, 2)], epsabs=0, epsrel=1e-11)[0]
            expected = [
                quad(density, -1, end, points=[np.clip(mu, -1, end)], epsabs=0, epsrel=1e-11)[0] / total
                if end > -1
                else 0
                for end in s
            ]
            np.testing.assert_allclose(phi[j, g], expected, atol=1e-8)
            fine = interval(0.4, 2, 400, pieces=20)
            values = basis.cdf(np.zeros((1, 1)), a[j : j + 1], w[g : g + 1], fine.points)[0, 0]
            np.testing.assert_allclose(tail[j, g], values @ fine.weights, rtol=1e-8)


def test_kumaraswamy_is_its_formula():
    basis = KumaraswamyBasis(lambda x, a, w: 1 + w + 0 * x, lambda x, a, w: 2 + 0 * w + x, domain=(0, 2))
    phi = basis.cdf(np.array([[1.0]]), np.array([0]), np.array([0.5, 1.0]), np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(phi[0], [[0, 1 - (1 - 0.5**1.5) ** 3, 1], [0, 1 - (1 - 0.5**2) ** 3, 1]])


def test_closed_tail_equals_mapped_nodes(basis, data):
    """Without tail_integral the Gauss nodes are mapped to [y, hi]."""
    X, a, y = data
    plain = CallableBasis(basis.cdf)
    w, m = interval(0, 1, 8).points, outcome_measure((0.0, 1.0), 48, True)
    expected = moment_vector(basis, X, a, y, w, m)
    np.testing.assert_allclose(moment_vector(plain, X, a, y, w, m), expected, rtol=1e-9)
    np.testing.assert_allclose(moment_vector(plain, X, a, y, w, m, chunk_bytes=1), expected, rtol=1e-9)


def test_kernel_by_hand(basis, data):
    """A loop over the data, which also covers chunks and repeated rows."""
    X, a = np.round(data[0][:40], 1), data[1][:40]
    w, m = interval(0, 1, 6).points, interval(0, 1, 20)
    by_hand = np.zeros((6, 6))
    for j in range(40):
        phi = basis_tensor(basis, X[j : j + 1], a[j : j + 1], w, m.points)[0]
        by_hand += phi @ np.diag(m.weights) @ phi.T
    assert len(np.unique(np.column_stack([X, a]), axis=0)) < 40
    for chunk_bytes in (1, 2000, 2**20):
        np.testing.assert_allclose(design_kernel(basis, X, a, w, m, chunk_bytes), by_hand, rtol=1e-12)


def test_additive_and_order_does_not_matter(basis, data):
    X, a, y = data
    whole = CDFRegressor(basis, A, n_w=16, n_s=16).fit(X, a, y)
    parts = (
        CDFRegressor(basis, A, n_w=16, n_s=16)
        .partial_fit(X[:200], a[:200], y[:200])
        .partial_fit(X[200:], a[200:], y[200:])
    )
    order = np.random.default_rng(0).permutation(len(y))
    shuffled = CDFRegressor(basis, A, n_w=16, n_s=16).fit(X[order], a[order], y[order])
    for other in (parts, shuffled):
        np.testing.assert_allclose(other.eigenvalues_, whole.eigenvalues_, atol=1e-10)
        np.testing.assert_allclose(other.theta_, whole.theta_, atol=1e-7)
    assert parts.n_samples_ == 600
    again = parts.fit(X[:100], a[:100], y[:100])
    assert again.n_samples_ == 100


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.02, 2.0), n=st.integers(1, 30))
def test_property_2_9(seed, scale, n):
    rng = np.random.default_rng(seed)
    x, a = rng.random((n, 1)), rng.integers(A, size=n)
    eigenvalues, trace = CDFRegressor(LogisticBasis(sine, scale), A, n_w=16, n_s=16).eigenvalues(x, a)
    assert eigenvalues.min() >= 0 and eigenvalues[0] <= 1 + 1e-12 and trace <= 1 + 1e-12
    np.testing.assert_allclose(eigenvalues.sum(), trace, rtol=1e-10)
    assert (eigenvalues <= trace / np.arange(1, 17) + 1e-12).all()


def test_step_basis_has_the_closed_form_spectrum(step_basis):
    eigenvalues, trace = CDFRegressor(step_basis, 1, n_w=200, n_s=256).eigenvalues(np.zeros((1, 1)), [0])
    np.testing.assert_allclose(eigenvalues[:4], 4 / ((2 * np.arange(1, 5) - 1) ** 2 * np.pi**2), rtol=2e-3)
    assert trace == pytest.approx(0.5, rel=5e-3)


@pytest.mark.parametrize(("pieces", "points"), [(1, 6), (2, 3), (3, 4), (4, 2)])
def test_nystrom_is_algorithm_3(basis, data, pieces, points):
    """Eigenvalues of b_ik = sum_j k(omega_i, omega_j) int z_j z_k, with the Gram matrix of the Lagrange polynomials integrated."""
    X, a, _ = data
    measure = interval(0, 1, pieces * points, pieces=pieces)
    fine = interval(0, 1, 20 * pieces, pieces=pieces)
    z = measure.interpolate(np.eye(len(measure.points)), fine.points)
    # interpolate() continues the polynomial of a point's own piece, so that z is 0 outside the node's piece
    gram = z.T @ (fine.weights[:, None] * z)
    kernel = design_kernel(basis, X, a, measure.points, interval(0, 1, 32)) / len(X)
    expected = np.sort(np.linalg.eigvals(kernel @ gram).real)[::-1]
    np.testing.assert_allclose(spectrum(symmetric_form(kernel, measure))[0], np.maximum(expected, 0), atol=1e-12)


def test_galerkin_approaches_from_below(basis, data):
    X, a, _ = data
    exact, trace = CDFRegressor(basis, A, n_w=32, n_s=32).eigenvalues(X, a)
    before = np.zeros(2)
    for R in (2, 3, 5, 9):
        values, same = CDFRegressor(basis, A, n_w=R, measure=interval(0, 1, 40), n_s=32, method="galerkin").eigenvalues(
            X, a
        )
        assert len(values) == R and same == pytest.approx(trace, rel=1e-9)
        assert (values[:2] >= before - 1e-12).all() and (values[:2] <= exact[:2] + 1e-12).all()
        assert values.sum() <= trace + 1e-12
        before = values[:2]
    values, _ = CDFRegressor(basis, A, n_w=32, n_s=32, method="galerkin").eigenvalues(X, a)
    np.testing.assert_allclose(values[:8], exact[:8], atol=1e-6)
    coarse, _ = CDFRegressor(basis, A, n_w=2, measure=interval(0, 1, 40), n_s=32, method="galerkin").eigenvalues(X, a)
    assert exact[1] - coarse[1] > 1e-4  # two polynomials are not enough


def test_galerkin_regression_agrees_with_quadrature(basis, data):
    X, a, y = data
    one = CDFRegressor(basis, A, n_w=24, n_s=32).fit(X, a, y).predict_cdf(X[:20], a[:20], [0.2, 0.5, 0.8])
    two = (
        CDFRegressor(basis, A, n_w=24, n_s=32, method="galerkin")
        .fit(X, a, y)
        .predict_cdf(X[:20], a[:20], [0.2, 0.5, 0.8])
    )
    np.testing.assert_allclose(one, two, atol=2e-3)


def test_decay_of_known_spectra():
    k = np.arange(1, 200.0)
    assert estimate_decay(k**-2.0) == pytest.approx(0.5)
    assert estimate_decay(k**-1.25) == pytest.approx(0.8)
    assert estimate_decay(k**-0.5) == 1.0
    assert estimate_decay(2.0 ** -k[:30]) == 0.0
    assert estimate_decay([1.0, 0.5]) == 0.0
    assert estimate_decay(np.ones(5)) == 1.0
    # 1/n cuts the tail off: only the first ten of k^-2 are above 1/n
    broken = np.where(k <= 10, k**-2.0, 1e-3 * np.exp(-(k - 10)))
    assert estimate_decay(broken, n_samples=101) == pytest.approx(0.5)
    for bad in ([], [0.0], [1.0, -0.1], [0.1, 1.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="eigenvalues"):
            estimate_decay(bad)


def test_measures_integrate():
    assert interval(-1, 3, 8).mass == pytest.approx(4)
    assert interval(0, 2, 8, pieces=2).weights @ interval(0, 2, 8, pieces=2).points ** 3 == pytest.approx(4)
    square = box([0, 1], [1, 3], 5)
    assert square.points.shape == (25, 2)
    assert square.weights @ (square.points[:, 0] ** 2 * square.points[:, 1]) == pytest.approx(4 / 3)
    cube = box([0, 0, 0], [1, 1, 2], 256)
    assert cube.points.shape == (256, 3)
    assert cube.weights @ cube.points.prod(1) == pytest.approx(0.5, abs=0.02)
    assert cube.points[:, 2].max() > 1
    np.testing.assert_array_equal(cube.points, box([0, 0, 0], [1, 1, 2], 256, rule="sobol").points)
    assert atoms([[0.0, 1.0]], [2.0]).normalized().mass == 1
    f = interval(0, 1, 12, pieces=3)
    np.testing.assert_allclose(
        f.interpolate(f.points**3, [0.0, 0.2, 0.5, 1.0]), np.array([0.0, 0.2, 0.5, 1.0]) ** 3, atol=1e-12
    )
    for bad in (lambda: f.interpolate(f.points, [1.1]), lambda: square.interpolate(square.points, [0.5])):
        with pytest.raises(ValueError):
            bad()


def test_measure_of_two_dimensions():
    """Location and scale both unknown: Omega is a rectangle."""
    basis = LogisticBasis(
        lambda x, a, w: x + 0 * a[:, None] + 0.3 * w[:, 0], lambda x, a, w: 0.05 + 0.1 * w[:, 1] + 0 * x
    )
    rng = np.random.default_rng(0)
    x, y = rng.random((200, 1)) / 2, rng.random(200)
    for measure in (box([0, 0], [1, 1], 6), box([0, 0], [1, 1], 64, rule="sobol")):
        model = CDFRegressor(basis, 2, measure=measure, n_s=16).fit(x, np.zeros(200, int), y)
        assert model.nodes_.shape == (len(measure.points), 2)
        F = model.predict_cdf(x[:3], [0, 1, 0], np.linspace(0, 1, 9))
        assert (np.diff(F) >= -1e-12).all()


@pytest.mark.parametrize("mu", [-30.0, -2.0, 3.0, 5.0, 1e5])
@pytest.mark.parametrize("kind", [LogisticBasis, GaussianBasis])
def test_locations_far_outside(kind, mu):
    """Both ends of the domain underflow; against the density relative to its largest value on the domain."""
    from scipy.stats import logistic, norm

    h, law = 0.02, {LogisticBasis: logistic, GaussianBasis: norm}[kind]
    basis = kind(lambda x, a, w: mu + 0 * x + 0 * w, h)
    end = float(mu > 0.5)
    # integrated from the near end, on the scale on which the density falls
    fall = h if kind is LogisticBasis else h**2 / abs(mu - end)
    fine = interval(0, min(1, 60 * fall), 400, pieces=20)

    def density(distance):
        z = (end - mu) / h
        if kind is GaussianBasis:
            return np.exp(-distance / h * (abs(z) + distance / h / 2))
        return np.exp(law(0, 1).logpdf(abs(z) + distance / h) - law(0, 1).logpdf(abs(z)))

    total = fine.weights @ density(fine.points)
    reach = np.array([0.3, 1.0, 3.0]) * fall
    parts = [(r / 2 * (1 + np.polynomial.legendre.leggauss(40)[0]), r) for r in reach]
    share = np.array([np.polynomial.legendre.leggauss(40)[1] @ density(p) * r / 2 for p, r in parts]) / total
    arguments = np.zeros((1, 1)), np.zeros(1, int), np.array([0.5])
    phi = basis.cdf(*arguments, np.abs(end - reach))[0, 0]
    # a distance of fall from the end is known to eps only
    np.testing.assert_allclose(phi, 1 - share if end else share, atol=1e-8 + 1e-15 / fall)
    ends = basis.cdf(*arguments, np.array([0.0, 1.0]))[0, 0]
    np.testing.assert_allclose(ends, [0, 1], atol=1e-12)
    tail = basis.tail_integral(*arguments, np.array([0.0]))[0, 0]
    mean = fine.weights @ (density(fine.points) * fine.points) / total  # distance from the near end
    assert tail == pytest.approx(mean if end else 1 - mean, rel=1e-6)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="location must be finite"):
            kind(lambda x, a, w, bad=bad: bad + 0 * x + 0 * w, h).cdf(*arguments, reach)


def test_scale_that_depends_on_w_or_not():
    """The product of exponentials is the exponential; also where it would overflow."""
    w, s = np.array([0.2, 0.7, 1.4]), np.linspace(0, 1, 7)
    x, a = np.zeros((2, 1)), np.zeros(2, int)
    for h in (0.3, 0.01, 1e-3):
        free = LogisticBasis(lambda x, a, w: w + 0 * x, h).cdf(x, a, w, s)
        bound = LogisticBasis(lambda x, a, w: w + 0 * x, lambda x, a, w, h=h: h + 0 * w + 0 * x).cdf(x, a, w, s)
        np.testing.assert_allclose(free, bound, rtol=1e-9, atol=1e-300)
        rows = LogisticBasis(lambda x, a, w: w + 0 * x, h).cdf(x, a, w, np.tile(s, (2, 1)))
        np.testing.assert_array_equal(rows, free)


def test_moment_of_a_wide_domain_without_tail_integral():
    """Against the closed form of the same basis: m is normalised, the mapped nodes are not."""
    wide = LogisticBasis(lambda x, a, w: 10 + 20 * sine(x, a, w), 1.6, domain=(10, 30))
    rng = np.random.default_rng(0)
    x, a, y = rng.random((20, 1)), rng.integers(A, size=20), rng.uniform(10, 30, 20)
    w = interval(0, 1, 5).points
    for normalize in (True, False):
        m = outcome_measure((10.0, 30.0), 60, normalize)
        plain = moment_vector(CallableBasis(wide.cdf, domain=(10, 30)), x, a, y, w, m)
        np.testing.assert_allclose(plain, moment_vector(wide, x, a, y, w, m), rtol=1e-8)


def test_repeated_rows_are_evaluated_once(basis):
    seen = []

    def cdf(x, a, w, s):
        seen.append(len(x))
        return basis.cdf(x, a, w, s)

    rng = np.random.default_rng(0)
    x, w, m = rng.integers(10, size=(5000, 1)) / 10, interval(0, 1, 4).points, interval(0, 1, 8)
    a = rng.integers(2, size=5000)
    repeated = design_kernel(CallableBasis(cdf), x, a, w, m)
    assert sum(seen) == 20
    np.testing.assert_allclose(repeated, design_kernel(basis, x + 1e-13 * np.arange(5000)[:, None], a, w, m), rtol=1e-8)


def test_memory_does_not_grow_with_the_rows(basis):
    import tracemalloc

    peaks = []
    for n in (20_000, 80_000):
        x, a = np.random.default_rng(0).random((n, 20)), np.zeros(n, int)
        flat = LogisticBasis(lambda x, a, w: 0.5 + 0 * x[:, :1] + 0 * w, 0.1)
        tracemalloc.start()
        design_kernel(flat, x, a, interval(0, 1, 4).points, interval(0, 1, 4))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < 20 * 2**20
