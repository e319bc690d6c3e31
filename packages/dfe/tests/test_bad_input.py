"""Every bad input is refused by an error that names it."""

import numpy as np
import pytest

from icml25.dfe import (
    DFE,
    AnytimeDFE,
    DFEPlayer,
    Episode,
    ExploreThenCommit,
    MaxMinBandit,
    MusicalChairsError,
    PacketRandomMatching,
    PhasedCUCB,
    SigmaTooSmallWarning,
    UniformMatching,
    bottleneck_matching,
    covering_matchings,
    eliminate,
    play,
    players,
    random_instance,
    saturating_support,
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


@pytest.mark.parametrize("communication", ["free", "collision"])
def test_players_of_equal_rank_cannot_play(communication: str) -> None:
    team = [DFEPlayer(0, 2, 2, 100, communication=communication) for _ in range(2)]
    with pytest.raises(ValueError, match=r"different ranks, got \[0, 0\]"):
        play(team, ENV, 10, 0)


def test_players_play_once() -> None:
    team = players(ENV, 100)
    play(team, ENV, 100, 0)
    with pytest.raises(RuntimeError, match="played before"):
        play(team, ENV, 100, 0)


@pytest.mark.parametrize("horizon", [10**12 + 1, 2**63 - 1, 10**30])
def test_huge_horizons(horizon: int) -> None:
    calls = (
        lambda: simulate(DFE(), ENV, horizon),
        lambda: players(ENV, horizon),
        lambda: play([], ENV, horizon),
        lambda: DFEPlayer(0, 2, 2, horizon),
        lambda: DFE().players(2, 2, horizon, 0),
        lambda: Episode(2, 2, horizon, np.random.default_rng(0)),
    )
    for call in calls:
        with pytest.raises(ValueError, match="horizon must be at most 1000000000000"):
            call()


@pytest.mark.parametrize("communication", ["free", "collision"])
def test_the_longest_horizon(communication: str) -> None:
    result = simulate(DFE(communication=communication), ENV, 10**12, seed=0)
    assert result.pulls.sum() <= 2 * 10**12 and np.isfinite(result.regret).all()
    assert result.regret[0, -1] < 10**4


def test_noise_above_sigma_warns() -> None:
    loud = MaxMinBandit([[0.9, 0.5], [0.4, 0.8]], "gaussian", sigma=3)
    for call in (
        lambda: simulate(DFE(), loud, 100),
        lambda: players(loud, 100),
        lambda: simulate(PhasedCUCB(), loud, 100),
    ):
        with pytest.warns(SigmaTooSmallWarning, match=r"sigma = 3.0, the policy has sigma = 0.5"):
            call()
    with pytest.warns(SigmaTooSmallWarning, match=r"sigma = 0.5, the policy has sigma = 0.1"):
        simulate(DFE(sigma=0.1), ENV, 100)
    simulate(DFE(sigma=3), loud, 100)  # no warning
    simulate(DFE(), MaxMinBandit(ENV.means, sigma=3), 100)  # of no effect on Bernoulli rewards


def test_grids_too_fine_for_integers() -> None:
    policy = DFE(C=1e-20, communication="collision")
    for call in (lambda: simulate(policy, ENV, 100), lambda: policy.players(2, 2, 100, 0)):
        with pytest.raises(ValueError, match=r"C = 1e-20 and sigma = 0.5 need means on a grid"):
            call()
    simulate(DFE(C=1e-20), ENV, 100, seed=0)
    for c, sigma in ((1e-300, 1e-300), (1e300, 1e300)):
        with pytest.raises(ValueError, match=r"C \* sigma must be positive and finite"):
            DFE(C=c, sigma=sigma)


def test_seeds_and_objects() -> None:
    for seed in ("0", 1.5, True, [1]):
        for name, call in (
            ("rng", lambda seed=seed: ENV.step([[0, 1]], seed)),
            ("rng", lambda seed=seed: play(players(ENV, 10), ENV, 10, seed)),
            ("rng", lambda seed=seed: DFE().players(2, 2, 10, seed)),
            ("seed", lambda seed=seed: simulate(DFE(), ENV, 10, seed=seed)),
            ("seed", lambda seed=seed: players(ENV, 10, seed)),
            ("seed", lambda seed=seed: DFEPlayer(0, 2, 2, 10, seed=seed)),
            ("seed", lambda seed=seed: random_instance(2, 3, seed=seed)),
        ):
            with pytest.raises(TypeError, match=f"{name} must be an integer seed"):
                call()
    with pytest.raises(ValueError, match="seed must be at least 0"):
        simulate(DFE(), ENV, 10, seed=-1)
    for call in (
        lambda: players(ENV.means, 10),
        lambda: simulate(DFE(), ENV.means, 10),
        lambda: play([], ENV.means, 10),
    ):
        with pytest.raises(TypeError, match="env must be a MaxMinBandit, got ndarray"):
            call()
    for policy in ("x", DFE, PhasedCUCB()):
        with pytest.raises(TypeError, match="policy must be a DFE"):
            DFEPlayer(0, 2, 2, 10, policy=policy)


def test_eliminate_takes_lists_and_refuses_nonsense() -> None:
    active, base = eliminate([[True, True], [1, 1]], [[0.9, 0.5], [0.8, 0.1]], [[0.01, 0.01], [0.01, 0.01]])
    assert active.tolist() == [[False, True], [True, False]] and base.tolist() == [1, 0]
    good = [[True, True]], [[0.5, 0.5]], [[0.1, np.inf]]
    assert eliminate(*good)[0].all()
    for place, value, error, match in (
        (0, [[True, True, True]], ValueError, "one shape"),
        (0, [[0.5, 1.0]], TypeError, "active must hold booleans"),
        (0, [[False, False]], ValueError, "no matching"),
        (1, [["a", "b"]], TypeError, "mean must hold real numbers"),
        (1, [[NAN, 0.5]], ValueError, "mean must be finite"),
        (2, [[-0.1, 0.1]], ValueError, "width at least 0"),
        (2, [[NAN, 0.1]], ValueError, "width at least 0"),
    ):
        with pytest.raises(error, match=match):
            eliminate(*good[:place], value, *good[place + 1 :])


def test_masked_arrays() -> None:
    means = np.ma.masked_array([[0.9, 0.5], [0.4, 0.8]], mask=[[0, 1], [0, 0]])
    graph = np.ma.masked_array(np.ones((2, 2), dtype=bool), mask=means.mask)
    arms = np.ma.masked_array([0, 1], mask=[0, 1])
    for call in (
        lambda: MaxMinBandit(means),
        lambda: bottleneck_matching(means),
        lambda: bottleneck_matching(ENV.means, graph),
        lambda: saturating_support(graph),
        lambda: covering_matchings(graph),
        lambda: covering_matchings([[1, 1], [1, 1]], arms),
        lambda: ENV.step(arms[None], 0),
        lambda: ENV.round_regret(arms[None]),
        lambda: simulate(DFE(), ENV, 10, checkpoints=arms + 1),
        lambda: eliminate(graph, means, means),
    ):
        with pytest.raises(TypeError, match="must not be a masked array"):
            call()


@pytest.mark.parametrize("collision", [None, "no", NAN, 2, -1, 0.5, [True]])
def test_collisions_are_booleans(collision) -> None:
    player = DFEPlayer(0, 2, 2, 100)
    player.choose()
    with pytest.raises(TypeError, match="collision must be True or False"):
        player.observe(1.0, collision)
    for value in (False, np.True_, 0, np.int64(1)):
        player.observe(1.0, value)
        player.receive(1, np.zeros(2))
        player.choose()


def test_settings_are_shown() -> None:
    assert repr(DFE(C=2)) == ("DFE(C=2.0, sigma=0.5, n0=1, communication='free', init='known', eliminate=True)")
    assert repr(AnytimeDFE(n0=3)) == "AnytimeDFE(C=1.0, sigma=0.5, n0=3, communication='free')"
    assert repr(PacketRandomMatching()) == "PacketRandomMatching(c1=25, c2=20)"
    assert repr(UniformMatching()) == "UniformMatching()"


def test_musical_chairs_without_a_chair() -> None:
    player = DFEPlayer(None, None, 2, 1, init="musical_chairs", seed=0)
    for _ in range(3):
        player.choose()
        player.observe(0.0, True)
    player.choose()
    with pytest.raises(MusicalChairsError, match="musical chairs failed"):
        player.observe(0.0, True)
