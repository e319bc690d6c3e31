"""The recursion stays below its closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.neural_marl import theory

positive = st.floats(0.05, 20)


@settings(deadline=None, max_examples=40)
@given(x0=st.floats(0, 100), L=positive, a=positive, e=st.floats(0, 5))
def test_recursion_below_the_bound(x0: float, L: float, a: float, e: float) -> None:
    x = theory.recursion(x0, L, a, 60, e)
    bound = np.array([theory.rate_bound(L, a, T, e) for T in range(1, 61)])
    assert (x[1:] <= bound * (1 + 1e-9)).all()
    assert x[0] == x0


def test_bound_is_tight_up_to_a_constant() -> None:
    x = theory.recursion(1.0, 2.0, 0.5, 20_000)
    assert 0.2 <= x[-1] / theory.rate_bound(2.0, 0.5, 20_000) <= 1
    slope = np.polyfit(np.log(np.arange(200, 20_001)), np.log(x[200:]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)


def test_first_steps_by_hand() -> None:
    # a = 1, L = 2: alpha_0 = 1 wipes out x_0, x_1 = 1; alpha_1 = 2/3, x_2 = 1/3 + 4/9
    np.testing.assert_allclose(theory.recursion(5.0, 2.0, 1.0, 2), [5, 1, 7 / 9])
    assert theory.rate_bound(2.0, 1.0, 3) == 1.0
    assert theory.recursion(0.0, 0.0, 1.0, 1, e=3.0)[1] == 8.0
    assert theory.rate_bound(0.0, 2.0, 7, e=3.0) == 4.0
    assert theory.step_size(0.5, 2) == 1.0


@settings(deadline=None, max_examples=30)
@given(x0=st.floats(0.01, 10), kappa=st.floats(0.001, 0.1))
def test_plain_step(x0: float, kappa: float) -> None:
    x = x0
    for T in range(1, 200):
        x -= kappa * x**2
        assert x <= theory.plain_rate_bound(kappa, T, x0) * (1 + 1e-9)


def test_radius_of_the_theorem() -> None:
    assert theory.ball_radius(2**32, 2) == pytest.approx(2 / 64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.rate_bound(1.0, 0.0, 3), "a is 0"),
        (lambda: theory.rate_bound(-1.0, 1.0, 3), "L is -1"),
        (lambda: theory.recursion(1.0, 1.0, 1.0, -3), "T is -3"),
        (lambda: theory.recursion(1.0, 1.0, 1.0, 3, -1.0), "e is -1"),
        (lambda: theory.gossip_rounds(np.eye(2), 0.1), "sigma_2 = 1"),
        (lambda: theory.gossip_rounds(np.full((2, 2), 0.5), 1.5), "tol is 1.5"),
        (lambda: theory.plain_rate_bound(0.0, 3, 1.0), "kappa"),
        (lambda: theory.ball_radius(0, 3), "width and depth are 0 and 3"),
    ],
)
def test_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
