"""A/A histories from real logs: taxis of New York, bikes of Washington."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from icml25.switchback import OLS, Design, Panel, difference_in_means, recommend_design, residual_covariance

FOLDER = Path(os.environ.get("ICML25_DATA", "/nonexistent"))
pytestmark = [pytest.mark.realdata, pytest.mark.skipif(not FOLDER.is_dir(), reason="ICML25_DATA is not set")]


def taxi() -> pd.DataFrame:
    """Weekdays, log passengers by half-hour; the state is the level a day before."""
    frame = pd.read_csv(FOLDER / "nyc_taxi" / "nyc_taxi.csv", parse_dates=["timestamp"])
    frame["y"] = np.log(frame["value"])
    frame["lag"] = frame["y"].shift(48)
    return frame.iloc[48:].loc[lambda f: (f.timestamp.dt.day_of_week < 5) & (f.timestamp < "2014-11-01")]


def test_taxi_history_asks_for_switching():
    with pytest.warns(UserWarning, match="gap"):  # weekends
        panel = Panel.from_frame(taxi(), time="timestamp", reward="y", states=["lag"])
    assert panel.n_times == 48 and panel.n_days > 80
    report = recommend_design(panel, n_days=28, seed=0)
    assert report.positive_share > 0.6 and report.lag_correlation[0] > 0.8
    assert report.best.kind == "AT" and report.needs_pilot


def test_aa_experiments_on_taxis_find_nothing():
    with pytest.warns(UserWarning, match="gap"):
        panel = Panel.from_frame(taxi(), time="timestamp", reward="y", states=["lag"])
    n, rng = panel.n_days // 2 * 2, np.random.default_rng(0)
    errors = {}
    for design in (Design("AD"), Design("AT", 4)):
        tables = np.stack([design.draw(n, 48, rng) for _ in range(60)])
        order = np.stack([rng.permutation(n) for _ in range(60)])
        effects = OLS().estimate(panel.states[order], tables, panel.rewards[order])
        assert abs(effects.mean()) < 4 * effects.std() / np.sqrt(60)
        errors[design.kind] = effects.std()
    assert errors["AT"] < 0.5 * errors["AD"]


def test_bikes():
    frame = pd.read_csv(FOLDER / "bikeshare" / "bikeshare_hourly.csv.gz")
    columns = {"day": "day", "time": "hr", "reward": "bikers", "states": ["temp", "hum"]}
    with pytest.raises(ValueError, match=r"cells are missing"):  # hours without a rental are absent from the file
        Panel.from_frame(frame, **columns)
    whole = frame[frame.groupby("day")["hr"].transform("size") == 24]
    with pytest.warns(UserWarning, match="gap"):
        panel = Panel.from_frame(whole, **columns)
    assert panel.n_times == 24 and panel.n_states == 2
    assert np.linalg.eigvalsh(residual_covariance(panel)).min() > -1e-6
    table = Design("AT", 3).draw(panel.n_days // 2 * 2, 24, 0)
    experiment = Panel(panel.states[: len(table)], table, panel.rewards[: len(table)])
    fit = OLS().fit(experiment)
    assert abs(fit.ate_) < 4 * fit.std_error(seed=0)
    assert abs(difference_in_means(experiment)) < 0.1 * panel.rewards.mean()
