"""Cells of a leaderboard."""

import math

from icml25.shared.report import Cell, _cell


def test_a_cell_shows_mean_and_half_width() -> None:
    assert str(Cell(12.0, 11.0, 13.0)) == "12.0 ± 1.0"
    assert str(_cell([3.0, 3.0])) == "3.00"


def test_an_infinite_value_is_shown_and_has_no_interval() -> None:
    cell = _cell([0.5, math.inf, 0.7])
    assert cell == Cell(math.inf, math.inf, math.inf)
    assert str(cell) == "inf"
    assert str(_cell([-math.inf])) == "-inf"
    assert str(_cell([math.inf, -math.inf])) == "nan"
