"""Baselines by hand, and against each other."""

import numpy as np
import pytest

from icml25.switchback import (
    Design,
    NotIdentifiedError,
    Panel,
    difference_in_means,
    horvitz_thompson,
    ipw_switchback,
    paper_mdp,
)


def panel_of(A, Y):
    return Panel(np.zeros((*np.shape(A), 0)), A, Y)


def test_difference_in_means_by_hand():
    A = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 1]])
    Y = np.array([[1.0, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
    panel = panel_of(A, Y)
    assert difference_in_means(panel) == pytest.approx(np.mean([1, 2, 3, 9, 10, 12]) - np.mean([4, 5, 6, 7, 8, 11]))
    assert difference_in_means(panel, burn_in=1) == pytest.approx(np.mean([2, 3, 10]) - np.mean([5, 6, 8]))
    assert difference_in_means(panel, burn_in=2) == pytest.approx(3.0 - 6.0)
    with pytest.raises(NotIdentifiedError, match="arm 0 has no points after burn_in = 3"):
        difference_in_means(panel, burn_in=3)
    with pytest.raises(NotIdentifiedError, match="arm 1"):
        difference_in_means(panel_of(np.zeros((2, 3), dtype=int), np.zeros((2, 3))))
    with pytest.raises(ValueError, match="burn_in"):
        difference_in_means(panel, burn_in=-1)


def test_burn_in_takes_away_the_bias_of_carryover():
    A = Design("AT", 3).draw(4, 12, 0)
    before = np.concatenate([A[:, :1], A[:, :-1]], axis=1)
    panel = panel_of(A, 2.0 + A + 0.5 * before)
    assert difference_in_means(panel, burn_in=1) == pytest.approx(1.5)
    assert difference_in_means(panel) < 1.4


def test_ipw_is_the_difference_in_means_when_balanced():
    panel = paper_mdp(T=6, p=1).simulate(Design("AT", 2).draw(10, 6, 0), seed=0)
    assert ipw_switchback(panel) == pytest.approx(difference_in_means(panel), abs=1e-12)
    unbalanced = panel_of(np.array([[1, 1, 1], [0, 1, 1]]), np.ones((2, 3)))
    assert ipw_switchback(unbalanced) == pytest.approx(2 * (5 - 1) / 6)


@pytest.mark.parametrize("design", [Design("UR", fresh=True), Design("bojinov", 1), Design("blocks", 2)], ids=str)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_horvitz_thompson_with_probabilities_by_enumeration(design, order):
    T = 6
    rows, probs = design.rows_and_probs(T)
    panel = panel_of(design.draw(8, T, 3), np.random.default_rng(0).normal(size=(8, T)))
    total = 0.0
    for t in range(order, T):
        for arm, sign in ((1, 1), (0, -1)):
            p = probs[(rows[:, t - order : t + 1] == arm).all(1)].sum()
            total += sign * (panel.rewards[:, t] * (panel.actions[:, t - order : t + 1] == arm).all(1)).sum() / p
    assert horvitz_thompson(panel, order, design) == pytest.approx(total / (8 * (T - order)), abs=1e-12)


def test_horvitz_thompson_is_unbiased():
    """Carryover of one point: the effect of two treated points in a row."""
    design, rng = Design("bojinov", 1), np.random.default_rng(0)
    estimates = []
    for _ in range(2000):
        A = design.draw(2, 5, rng)
        before = np.concatenate([A[:, :1], A[:, :-1]], axis=1)
        estimates.append(horvitz_thompson(panel_of(A, 1.0 + 0.5 * A + 0.25 * before), 1, design))
    assert abs(np.mean(estimates) - 0.75) < 4 * np.std(estimates) / np.sqrt(2000)


def test_bad_horvitz_thompson():
    panel = panel_of(Design("AT", 2).draw(4, 6, 0), np.zeros((4, 6)))
    with pytest.raises(NotIdentifiedError, match=r"AT\(2\) always switches between t = 1 and 2"):
        horvitz_thompson(panel, 1, Design("AT", 2))
    assert horvitz_thompson(panel, 0, Design("AT", 2)) == 0.0
    with pytest.raises(ValueError, match="order must be below T = 6"):
        horvitz_thompson(panel, 6, Design("UR"))
    with pytest.raises(ValueError, match="order"):
        horvitz_thompson(panel, 1.5, Design("UR"))
