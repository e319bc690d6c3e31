"""Panels, and frames as users have them."""

import datetime

import numpy as np
import pandas as pd
import pytest

from icml25.switchback import OLS, NotIdentifiedError, Panel
from icml25.switchback.panel import clusters


def frame(n=6, T=4, seed=0):
    rng = np.random.default_rng(seed)
    A = np.arange(n)[:, None] % 2 ^ np.arange(T) % 2
    return pd.DataFrame(
        {
            "date": np.repeat(pd.date_range("2024-05-01", periods=n), T),
            "slot": np.tile(np.arange(T), n),
            "arm": A.ravel(),
            "gmv": rng.normal(size=n * T),
            "supply": rng.normal(size=n * T),
            "demand": rng.normal(size=n * T),
        }
    )


COLUMNS = {"day": "date", "time": "slot", "action": "arm", "reward": "gmv", "states": ["supply", "demand"]}


def test_any_row_order_gives_the_same_panel():
    long = frame()
    a = Panel.from_frame(long, **COLUMNS)
    shuffled = long.sample(frac=1, random_state=1).set_index(pd.Index(["x"] * len(long)))
    before = shuffled.copy()
    b = Panel.from_frame(shuffled, **COLUMNS)
    pd.testing.assert_frame_equal(shuffled, before)
    for name in ("states", "actions", "rewards", "days", "times"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
    assert a.rewards[2, 3] == long.loc[(long.date == "2024-05-03") & (long.slot == 3), "gmv"].item()
    assert a.states[2, 3, 1] == long.loc[(long.date == "2024-05-03") & (long.slot == 3), "demand"].item()
    assert (a.n_days, a.n_times, a.n_states) == (6, 4, 2) and a.actions.dtype == np.int8


def test_round_trip_through_a_frame():
    panel = Panel.from_frame(frame(), **COLUMNS)
    long = panel.to_frame().sample(frac=1, random_state=0)
    again = Panel.from_frame(
        long, day="day", time="time", action="action", reward="reward", states=["state0", "state1"]
    )
    assert np.array_equal(again.states, panel.states) and np.array_equal(again.rewards, panel.rewards)
    assert np.array_equal(again.actions, panel.actions) and np.array_equal(again.days, panel.days)


def test_timestamps_are_split_in_their_own_time_zone():
    stamps = pd.date_range("2024-05-01", periods=24, freq="6h", tz="Asia/Tokyo")
    long = frame().assign(when=stamps).drop(columns=["date", "slot"])
    columns = {k: v for k, v in COLUMNS.items() if k != "day"} | {"time": "when"}
    panel = Panel.from_frame(long.iloc[::-1], **columns)
    assert panel.rewards.shape == (6, 4) and np.array_equal(panel.rewards.ravel(), long.gmv)
    assert str(panel.times[1]) == "06:00:00"
    naive = Panel.from_frame(long.assign(when=stamps.tz_localize(None)), **columns)
    assert np.array_equal(naive.rewards, panel.rewards)
    with pytest.raises(ValueError, match="must hold timestamps"):
        Panel.from_frame(frame(), **{k: v for k, v in COLUMNS.items() if k != "day"})


def test_clocks_put_back_or_forward_are_missing_or_repeated_cells():
    for start, what in (("2024-03-30", "missing"), ("2024-10-26", "repeated")):
        stamps = pd.date_range(start, periods=72, freq="h", tz="Europe/Berlin")
        long = pd.DataFrame({"when": stamps, "y": 1.0})
        with pytest.raises(ValueError, match=f"cells are {what}.*02:00:00"):
            Panel.from_frame(long[long.when < long.when.iloc[0] + pd.DateOffset(days=2)], time="when", reward="y")


def test_days_with_a_time_zone():
    long = frame()
    aware = long.assign(date=long.date.dt.tz_localize("America/New_York"))
    assert np.array_equal(Panel.from_frame(aware, **COLUMNS).rewards, Panel.from_frame(long, **COLUMNS).rewards)


@pytest.mark.parametrize("kind", ["bool", "boolean", "Int64", "float", "object", "category of ints"])
def test_arms_of_many_types(kind):
    long = frame()
    expected = Panel.from_frame(long, **COLUMNS).actions
    to = {"object": lambda s: s.astype(bool).astype(object), "category of ints": lambda s: s.astype("category")}
    long["arm"] = to.get(kind, lambda s: s.astype(kind))(long["arm"])
    assert np.array_equal(Panel.from_frame(long, **COLUMNS).actions, expected)


def test_labelled_arms():
    long = frame()
    expected = Panel.from_frame(long, **COLUMNS).actions
    long["arm"] = pd.Categorical(np.where(long.arm == 1, "new", "old"), categories=["unused", "new", "old"])
    assert np.array_equal(Panel.from_frame(long, **COLUMNS, treated="new").actions, expected)
    assert np.array_equal(Panel.from_frame(long, **COLUMNS, treated="old").actions, 1 - expected)
    with pytest.raises(ValueError, match=r"must hold 0 and 1.*treated="):
        Panel.from_frame(long, **COLUMNS)
    with pytest.raises(ValueError, match="'neu' is not in column 'arm'"):
        Panel.from_frame(long, **COLUMNS, treated="neu")
    three = long.assign(arm=np.tile(["a", "b", "c"], 8))
    with pytest.raises(ValueError, match="two arms, got 3"):
        Panel.from_frame(three, **COLUMNS, treated="a")
    with pytest.raises(ValueError, match=r"0 and 1, got .*0\.5"):
        Panel.from_frame(frame().assign(arm=0.5), **COLUMNS)
    with pytest.raises(ValueError, match="missing arm"):
        Panel.from_frame(frame().assign(arm=pd.array([None] + [1] * 23, dtype="Int64")), **COLUMNS)


def test_history_without_arms():
    columns = {k: v for k, v in COLUMNS.items() if k not in ("action", "states")}
    panel = Panel.from_frame(frame(), **columns)
    assert not panel.actions.any() and panel.states.shape == (6, 4, 0)


def test_missing_and_repeated_cells_are_listed():
    long = frame()
    with pytest.raises(ValueError, match=r"7 of 6 x 4 \(day, time\) cells are missing") as caught:
        Panel.from_frame(long.drop(index=[0, 1, 2, 4, 5, 6, 8]), **COLUMNS)
    assert str(caught.value).count("2024-05") == 5 and "(2024-05-01 00:00:00, 0)" in str(caught.value)
    with pytest.raises(ValueError, match=r"1 of 6 x 4 .* repeated: \(2024-05-01.*, 3\)"):
        Panel.from_frame(pd.concat([long, long.iloc[[3]]]), **COLUMNS)
    with pytest.raises(ValueError, match="is 'stamp' the time within the day"):
        Panel.from_frame(
            long.assign(stamp=pd.date_range("2024-05-01", periods=24, freq="6h")), **COLUMNS | {"time": "stamp"}
        )


def test_missing_day_warns_and_is_not_filled():
    long = frame(8)
    gap = long[long.date != "2024-05-04"]
    with pytest.warns(UserWarning, match="1 gap.*2024-05-03"):
        panel = Panel.from_frame(gap, **COLUMNS)
    assert panel.n_days == 7
    assert [len(c) for c in clusters(panel.actions)] == [2, 1, 2, 2]


def test_values_that_are_not_numbers():
    long = frame()
    with pytest.raises(ValueError, match=r"rewards must be finite, got nan at day 2024-05-02.*time 1"):
        Panel.from_frame(long.assign(gmv=long.gmv.where(long.index != 5)), **COLUMNS)
    with pytest.raises(ValueError, match="states must be finite"):
        Panel.from_frame(long.assign(supply=long.supply.where(long.index != 5, np.inf)), **COLUMNS)
    with pytest.raises(ValueError, match="column 'gmv' must hold numbers"):
        Panel.from_frame(long.assign(gmv=long.gmv.astype(str)), **COLUMNS)
    for bad in (long.date, long.gmv + 1j, (long.gmv + 1j).astype(object)):
        with pytest.raises(ValueError, match="column 'gmv' must hold numbers"):
            Panel.from_frame(long.assign(gmv=bad), **COLUMNS)
    nullable = long.assign(gmv=long.gmv.astype("Float64").where(long.index != 5))
    with pytest.raises(ValueError, match="rewards must be finite"):
        Panel.from_frame(nullable, **COLUMNS)
    strings = Panel.from_frame(long.assign(gmv=long.gmv.astype(object), supply=long.arm.astype(bool)), **COLUMNS)
    assert np.array_equal(strings.states[:, :, 0], strings.actions)


def test_columns_are_checked():
    long = frame()
    with pytest.raises(ValueError, match="one column 'gvm', it has 0"):
        Panel.from_frame(long, **COLUMNS | {"reward": "gvm"})
    with pytest.raises(ValueError, match="one column 'gmv', it has 2"):
        Panel.from_frame(pd.concat([long, long[["gmv"]]], axis=1), **COLUMNS)
    with pytest.raises(ValueError, match="frame is empty"):
        Panel.from_frame(long.iloc[:0], **COLUMNS)
    with pytest.raises(ValueError, match="column 'slot' has 1 missing"):
        Panel.from_frame(long.assign(slot=long.slot.where(long.index != 5)), **COLUMNS)
    with pytest.raises(TypeError, match="states must be a list"):
        Panel.from_frame(long, **COLUMNS | {"states": "supply"})


HOURS = ["09:00 AM", "12:00 PM", "03:00 PM", "06:00 PM"]


@pytest.mark.parametrize(
    "labels",
    [
        HOURS,
        ["morning", "noon", "afternoon", "evening"],
        ["8", "9", "10", "11"],
        ["7:00", "8:00", "10:00", "11:00"],
        ["s0", "s1", "s2", "s3"],
        [b"0", b"1", b"2", "3"],
    ],
    ids=lambda labels: str(labels[0]),
)
def test_times_of_unknown_order_are_refused(labels):
    long = frame()
    long["slot"] = [labels[t] for t in long.slot]
    with pytest.raises(ValueError, match=r"'slot' (holds text|mixes)"):
        Panel.from_frame(long, **COLUMNS)
    with pytest.raises(ValueError, match=r"'slot' (holds text|mixes|is unordered)"):
        Panel.from_frame(long.assign(slot=pd.Categorical(long.slot, categories=labels)), **COLUMNS)
    ordered = long.assign(slot=pd.Categorical(long.slot, categories=[*labels, "unused"], ordered=True))
    panel = Panel.from_frame(ordered.sample(frac=1, random_state=0), **COLUMNS)
    assert list(panel.times) == labels and np.array_equal(panel.rewards.ravel(), long.gmv)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%A", "%d %b", "%m-%d-%Y"])
def test_days_of_unknown_order_are_refused(form):
    long = frame(7)
    with pytest.raises(ValueError, match=r"column 'date' holds text whose order.*pd\.Categorical.*ordered=True"):
        Panel.from_frame(long.assign(date=long.date.dt.strftime(form)), **COLUMNS)


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y%m%d", "%j"])
def test_text_in_order_of_time_is_accepted(form):
    long = frame(40)
    expected = Panel.from_frame(long, **COLUMNS)
    text = Panel.from_frame(long.assign(date=long.date.dt.strftime(form)).iloc[::-1], **COLUMNS)
    assert np.array_equal(text.rewards, expected.rewards)
    padded = Panel.from_frame(long.assign(slot=long.slot.map(lambda t: f"{t + 9:02d}:00")), **COLUMNS)
    assert np.array_equal(padded.rewards, expected.rewards)


def test_unordered_categories_of_values():
    long = frame()
    expected = Panel.from_frame(long, **COLUMNS)
    assert np.array_equal(Panel.from_frame(long.astype({"slot": "category"}), **COLUMNS).rewards, expected.rewards)
    with pytest.raises(ValueError, match=r"column 'slot' is unordered with categories \[3, 2, 1, 0\], not sorted"):
        Panel.from_frame(long.assign(slot=pd.Categorical(long.slot, categories=[3, 2, 1, 0])), **COLUMNS)
    with pytest.raises(ValueError, match=r"mixes|holds text"):
        Panel.from_frame(long.assign(slot=[t if t else "zero" for t in long.slot]), **COLUMNS)


DAYS = {
    "text": lambda d: d.dt.strftime("%Y-%m-%d"),
    "digits": lambda d: d.dt.strftime("%Y%m%d"),
    "dates": lambda d: d.dt.date,
    "periods": lambda d: d.dt.to_period("D"),
    "zoned": lambda d: d.dt.tz_localize("Europe/Berlin"),
    "integers": lambda d: (d - d.min()).dt.days,
}


@pytest.mark.parametrize("kind", DAYS)
def test_gaps_in_days_of_any_type(kind):
    long = frame(8)
    long["date"] = pd.date_range("2024-05-28", periods=8).repeat(4)  # over the end of a month
    gap = long.date != "2024-05-30"
    Panel.from_frame(long.assign(date=DAYS[kind](long.date)), **COLUMNS)  # no warning
    with pytest.warns(UserWarning, match="the days have 1 gap"):
        Panel.from_frame(long.assign(date=DAYS[kind](long.date))[gap], **COLUMNS)


@pytest.mark.parametrize(
    "clock", [lambda t: t, lambda t: f"{t:02d}:30", lambda t: datetime.time(t)], ids=["number", "text", "time"]
)
def test_gaps_in_times(clock):
    long = frame(T=6)
    missing = long[long.slot != 2]
    with pytest.warns(UserWarning, match=r"the times have 1 gap\(s\), the first after (1|01:30|01:00:00); nothing"):
        Panel.from_frame(missing.assign(slot=missing.slot.map(clock)), **COLUMNS)
    Panel.from_frame(long.assign(slot=long.slot.map(clock)), **COLUMNS)


def test_panels_are_copies_and_cannot_be_written_to():
    S, A, Y = np.zeros((4, 3, 1)), np.tile([0, 1], (4, 2))[:, :3], np.arange(12.0).reshape(4, 3)
    S.setflags(write=False)
    panel = Panel(np.asfortranarray(S), A.astype(bool), Y.astype(object))
    Y[0, 0] = 99
    assert panel.rewards[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        panel.rewards[0, 0] = 1
    with pytest.raises(AttributeError):
        panel.rewards = Y
    assert repr(panel) == "Panel(4 days x 3 times, 1 states, 33% treated)"


def test_bad_panels():
    S, A, Y = np.zeros((4, 3, 1)), np.zeros((4, 3), dtype=int), np.zeros((4, 3))
    for arguments, match in (
        ((S, A, Y[:1]), "n >= 2"),
        ((S, A, Y[0]), r"rewards must have shape \(n >= 2"),
        ((S[:, :, 0], A, Y), r"states\[:, :, None\]"),
        ((S[:3], A, Y), r"states must have shape \(n, T, p\) = \(4, 3, p\)"),
        ((S, A[:, :2], Y), r"actions must have shape \(n, T\) = \(4, 3\)"),
        ((S, A + 0.5, Y), r"actions must be 0 or 1, got \['0.5'\]"),
        ((S, A + 2, Y), "'2'"),
        ((S, A - 1, Y), "'-1'"),
        ((S, A.astype(str), Y), "actions must be 0 or 1, got dtype"),
        ((S, np.full((4, 3), np.nan), Y), "nan"),
        ((S, A, Y.astype(str)), "rewards must be real numbers"),
        ((S, A, Y + 1j), "rewards must be real numbers"),
        ((S, A, Y, [1, 2]), r"days must have shape \(4,\)"),
        ((S, A, Y, [1, 2, 1, 3]), "days must be different labels, got 1 more than once"),
        ((S, A, Y, None, ["a", "b", "a"]), "times must be different labels, got 'a'"),
        ((np.ma.masked_equal(S + np.arange(3)[:, None], 1), A, Y), r"states has 4 masked value\(s\)"),
        ((S, np.ma.masked_equal(A, 0), Y), r"actions has 12 masked"),
        ((S, A, np.ma.masked_less(Y, 1)), r"rewards has 12 masked"),
        ((S, A, Y.astype(object) + 1j), "rewards must be real numbers"),
        ((S, A, Y + 1e307), r"rewards must be below 1e\+100 in size, got 1e\+307"),
        ((S - 1e200, A, Y), r"states must be below 1e\+100"),
    ):
        with pytest.raises(ValueError, match=match):
            Panel(*arguments)
    S[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"states must be finite, got .*nan.* at day b, time z"):
        Panel(S, A, Y, days=list("abcd"), times=list("xyz"))


def test_constant_covariate_is_named():
    panel = Panel.from_frame(frame(8).assign(supply=3.3), **COLUMNS)
    with pytest.raises(ValueError, match=r"collinear at time 0.*rank 3 of 4; state 0 is constant"):
        OLS().fit(panel)
    assert np.isfinite(OLS(ridge=1e-3).fit(panel).ate_)


def test_column_of_one_arm():
    long = frame()
    with pytest.raises(NotIdentifiedError, match="arm 1 never occurs at time 2"):
        OLS().fit(Panel.from_frame(long.assign(arm=long.arm.where(long.slot != 2, 0)), **COLUMNS))


def test_pairs():
    a = np.array([[0, 1], [1, 0], [0, 0], [0, 1], [1, 0]], dtype=np.int8)
    assert [list(c) for c in clusters(a)] == [[0, 1], [2], [3, 4]]


@pytest.mark.parametrize(
    "days",
    [
        ["30122024", "31122024", "01012025"],
        ["2024-12-30 10:00", "2024-12-30T09:00"],
        ["3012", "0101"],
        ["311224", "010125"],
    ],
    ids=["ddmmyyyy", "two separators", "ddmm", "ddmmyy"],
)
def test_text_whose_order_is_not_that_of_time_is_refused(days):
    frame = pd.DataFrame({"day": np.repeat(days, 2), "slot": np.tile([0, 1], len(days)), "arm": 1, "reward": 0.0})
    with pytest.raises(ValueError, match="column 'day' holds text whose order in time is not known"):
        Panel.from_frame(frame, day="day", time="slot", action="arm", reward="reward", states=[])


def test_compact_dates_are_sorted():
    days = ["20241231", "20250101", "20241230"]
    frame = pd.DataFrame(
        {"day": np.repeat(days, 2), "slot": np.tile([0, 1], 3), "arm": 1, "reward": np.repeat([1.0, 2, 0], 2)}
    )
    panel = Panel.from_frame(frame, day="day", time="slot", action="arm", reward="reward", states=[])
    assert panel.rewards[:, 0].tolist() == [0, 1, 2]
