"""Every bad input is refused by an error that names it."""

import numpy as np
import pytest

from icml25.dfe import (
    DFE,
    DFEPlayer,
    ExploreThenCommit,
    MaxMinBandit,
    PacketRandomMatching,
    PhasedCUCB,
    play,
    players,
    simulate,
)

ENV = MaxMinBandit([[0.9, 0.5], [0.4, 0.8]])
NAN = float("nan")


@pytest.mark.parametrize(
    ("means", "error", "match"),
    [
        ([[0.5], [0.5]], ValueError, "means has 2 players and 1 arms"),
        ([[0.5, 1.2]], ValueError, r"got 1.2 at \(player 0, arm 1\)"),
        ([[0.5, 0.1], [-0.1, 0.3]], ValueError, r"got -0.1 at \(player 1, arm 0\)"),
        ([[0.5, NAN]], ValueError, r"got nan at \(player 0, arm 1\)"),
        ([0.5, 0.6], ValueError, r"means must be \(N players, K arms\)"),
        (np.zeros((0, 3)), ValueError, r"got shape \(0, 3\)"),
        ([], ValueError, "means must be"),
        ([["a", "b"]], TypeError, "means must hold real numbers"),
        ([[True, False]], TypeError, "means must hold real numbers"),
        (np.array([[0.5, None]], dtype=object), ValueError, r"got nan at \(player 0, arm 1\)"),
        (np.array([["0.5", 0.2]], dtype=object), TypeError, "text"),
        ([[1j, 0.5]], TypeError, "complex"),
    ],
    ids=["K<N", "above", "below", "nan", "1d", "no-rows", "empty", "text", "bool", "none", "object-text", "complex"],
)
def test_means(means, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        MaxMinBandit(means)


def test_infinite_gaussian_means_and_settings() -> None:
    with pytest.raises(ValueError, match="means must be finite"):
        MaxMinBandit([[np.inf, 0.0]], "gaussian")
    assert MaxMinBandit([[5.0, -2.0]], "gaussian").max_min_value == 5
    with pytest.raises(ValueError, match="reward must be one of bernoulli, gaussian"):
        MaxMinBandit([[0.5]], "poisson")
    with pytest.raises(ValueError, match="sigma must be positive"):
        MaxMinBandit([[0.5]], sigma=0)
    with pytest.raises(ValueError, match="rescale the means"):
        simulate(DFE(communication="collision"), MaxMinBandit([[5.0, 2.0]], "gaussian"), 10)


def test_frames_are_read() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[0.9, 0.5], [0.4, 0.8]], index=["x", "x"], columns=[7, 3])
    assert MaxMinBandit(frame).max_min_value == 0.8
    assert MaxMinBandit(frame.astype(object)).max_min_value == 0.8
    assert (frame.to_numpy() == [[0.9, 0.5], [0.4, 0.8]]).all()


@pytest.mark.parametrize("horizon", [0, -3, 2.5, 1e6, NAN])
def test_horizon_values(horizon) -> None:
    for call in (lambda: simulate(DFE(), ENV, horizon), lambda: players(ENV, horizon), lambda: play([], ENV, horizon)):
        with pytest.raises(ValueError, match="horizon must be"):
            call()


@pytest.mark.parametrize("horizon", ["10", True, None])
def test_horizon_types(horizon) -> None:
    with pytest.raises(TypeError, match="horizon must be an integer"):
        simulate(DFE(), ENV, horizon)


def test_actions() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"actions of player 1 must be in 0..1, got 2"):
        ENV.step([[0, 2]], rng)
    with pytest.raises(ValueError, match=r"actions of player 0 must be in 0..1, got -1"):
        ENV.step([[0, 1], [-1, 1]], rng)
    with pytest.raises(ValueError, match=r"actions must be \(rounds, 2 players\)"):
        ENV.round_regret([0, 1])
    with pytest.raises(TypeError, match="actions must be integers"):
        ENV.step([[0.0, 1.0]], rng)


@pytest.mark.parametrize("name", ["C", "sigma"])
def test_positive_settings(name: str) -> None:
    for value in (0, -1, NAN, np.inf):
        with pytest.raises(ValueError, match=f"{name} must be positive"):
            DFE(**{name: value})
    for value in ("1", True):
        with pytest.raises(Exception, match=name):
            DFE(**{name: value})


def test_other_settings() -> None:
    with pytest.raises(ValueError, match="communication must be one of free, collision; got 'radio'"):
        DFE(communication="radio")
    with pytest.raises(ValueError, match="init must be one of"):
        DFE(init="unknown")
    with pytest.raises(TypeError, match="eliminate must be True or False"):
        DFE(eliminate="no")
    with pytest.raises(ValueError, match="n0 must be at least 1"):
        DFE(n0=0)
    with pytest.raises(ValueError, match="n_explore must be at least 1"):
        ExploreThenCommit(0)
    with pytest.raises(ValueError, match="sigma must be positive"):
        PhasedCUCB(sigma=-1)
    with pytest.raises(ValueError, match="c1 must be at least 1"):
        PacketRandomMatching(c1=0)


def test_simulate_arguments() -> None:
    with pytest.raises(ValueError, match="n_runs must be at least 1"):
        simulate(DFE(), ENV, 10, 0)
    with pytest.raises(ValueError, match="mode must be one of epoch, round"):
        simulate(DFE(), ENV, 10, mode="fast")
    with pytest.raises(TypeError, match=r"policy must be an object such as DFE\(\)"):
        simulate(DFE, ENV, 10)
    with pytest.raises(TypeError, match="needs a policy with segments"):
        simulate("DFE", ENV, 10)
    for points, match in (([3, 2], "increase"), ([0], "1..10"), ([11], "1..10"), ([], "integers"), ([1.5], "integers")):
        with pytest.raises(ValueError, match=match):
            simulate(DFE(), ENV, 10, checkpoints=points)


def test_player_arguments_and_order_of_calls() -> None:
    for rank, n, k in ((2, 2, 2), (0, 3, 2)):
        with pytest.raises(ValueError, match="rank < n_players <= n_arms"):
            DFEPlayer(rank, n, k, 100)
    with pytest.raises(ValueError, match="rank must be at least 0"):
        DFEPlayer(-1, 2, 2, 100)
    with pytest.raises(TypeError, match="policy or its settings"):
        DFEPlayer(0, 2, 2, 100, policy=DFE(), C=2)
    player = DFEPlayer(0, 2, 2, 100)
    with pytest.raises(RuntimeError, match="choose an arm first"):
        player.observe(1.0, False)
    assert player.choose() == player.choose() == 0
    for value in (NAN, np.inf):
        with pytest.raises(ValueError, match="reward must be finite"):
            player.observe(value, False)
    with pytest.raises(TypeError, match="reward must be a number"):
        player.observe("1", False)
    player.observe(1.0, False)
    with pytest.raises(RuntimeError, match="choose an arm first"):
        player.observe(1.0, False)


def test_players_of_equal_rank_cannot_talk() -> None:
    team = [DFEPlayer(0, 2, 2, 100), DFEPlayer(0, 2, 2, 100)]
    team[1].outbox.append((0, np.zeros(2)))
    with pytest.raises(RuntimeError, match="same rank"):
        play(team, ENV, 10, 0)


def test_musical_chairs_without_a_chair() -> None:
    player = DFEPlayer(None, None, 2, 1, init="musical_chairs", seed=0)
    for _ in range(3):
        player.choose()
        player.observe(0.0, True)
    player.choose()
    with pytest.raises(RuntimeError, match="musical chairs failed"):
        player.observe(0.0, True)
