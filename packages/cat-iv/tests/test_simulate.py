"""The simulator against its equations."""

import numpy as np
import pytest

from icml25.cat_iv import distance_correlation, make_anlce
from icml25.cat_iv.simulate import FUNCTIONS, NOISE, _rescale


def test_equations() -> None:
    s = make_anlce(20_000, seed=0)
    z = s.Z
    assert s.W is None and -1.5 <= s.beta <= 1.5 and s.valid.tolist() == [True, True, False, False, False]
    x_rest = s.x - (z[:, :3] ** 3).sum(1) - np.cos(z[:, 3]) - np.cos(z[:, 4]) - (z[:, 2] * z[:, 3] * z[:, 4]) ** 3
    y_rest = s.y - s.beta * s.x - z[:, 2] ** 3 - 1.5 * z[:, 3] ** 3 - z[:, 4] ** 3
    z5_rest = z[:, 4] - z[:, 3] ** 3
    assert np.abs(z5_rest).max() <= 0.3 and np.abs(x_rest).max() <= 1.3 and np.abs(y_rest).max() <= 1.3
    variance = 1 / 7 + 0.09 / 3  # of U^3 + 0.3 noise
    assert x_rest.var() == pytest.approx(variance, rel=0.05) and y_rest.var() == pytest.approx(variance, rel=0.05)
    assert np.cov(x_rest, y_rest)[0, 1] == pytest.approx(1 / 7, rel=0.05)  # U confounds
    for rest in (x_rest, y_rest):
        for j in range(5):
            assert distance_correlation(rest[:4000], z[:4000, j]) < 0.06


def test_covariates() -> None:
    s = make_anlce(4000, covariates=True, seed=1)
    assert s.W is not None and s.W.shape == (4000, 2)
    design = np.column_stack([np.ones(4000), s.W])
    for j in range(4):
        coefficients = np.linalg.lstsq(design, s.Z[:, j], rcond=None)[0]
        assert np.abs(coefficients[1:]).max() <= 1.6
        assert (s.Z[:, j] - design @ coefficients).var() == pytest.approx(1 / 3, rel=0.1)


def test_covariates_enter_the_outcome_by_half() -> None:
    coefficients = []
    for seed in range(10):
        s = make_anlce(4000, covariates=True, seed=seed)
        assert s.W is not None
        design = np.column_stack([s.W, s.Z[:, 2:] ** 3, np.ones(4000)])
        coefficients += np.linalg.lstsq(design / np.abs(design).max(0), s.y - s.beta * s.x, rcond=None)[0][:2].tolist()
    assert 0.5 < np.abs(coefficients).max() < 0.85


@pytest.mark.parametrize("noise", NOISE)
def test_noise(noise: str) -> None:
    draw = NOISE[noise](np.random.default_rng(0), 200_000)
    moments = {
        "Uniform": (0, 1 / 3),
        "Gaussian": (0, 1),
        "Beta": (0.5, 0.05),
        "Gamma": (1, 0.5),
        "Exponential": (1, 1),
        "t": (0, 3),
    }
    if noise in moments:
        mean, variance = moments[noise]
        assert draw.mean() == pytest.approx(mean, abs=0.02) and draw.var() == pytest.approx(variance, rel=0.15)
    else:
        assert np.log(draw).std() == pytest.approx(1, rel=0.02)
    s = make_anlce(100, noise=noise, seed=0)
    assert np.isfinite(s.Z).all() and np.isfinite(s.x).all() and np.isfinite(s.y).all()


@pytest.mark.parametrize("effect", FUNCTIONS)
def test_other_effects(effect: str) -> None:
    s, linear = make_anlce(60, effect=effect, seed=3), make_anlce(60, seed=3)
    assert np.isnan(s.beta) and np.isfinite(s.y).all()
    np.testing.assert_array_equal(s.x, linear.x)
    assert s.y.std() > 0


def test_rescaling() -> None:
    np.testing.assert_allclose(_rescale(np.array([150.0, 3.0])), [0.15, 0.003])
    np.testing.assert_allclose(_rescale(np.array([0.005, 0.001])), [500, 100])
    np.testing.assert_array_equal(_rescale(np.array([100.0, np.inf])), [100, 0])
    np.testing.assert_array_equal(_rescale(np.zeros(2)), 0)


def test_seeds() -> None:
    one, same, other = make_anlce(50, seed=1), make_anlce(50, seed=1), make_anlce(50, seed=2)
    np.testing.assert_array_equal(one.y, same.y)
    assert (one.y != other.y).all() and one.beta != other.beta


@pytest.mark.parametrize("options", [{"n": 0}, {"case": 2}, {"effect": "cube"}, {"noise": "Cauchy"}], ids=str)
def test_bad_input(options: dict[str, object]) -> None:
    name = next(iter(options))
    with pytest.raises(ValueError, match=f"{name} is .*expected"):
        make_anlce(**({"n": 10} | options))
