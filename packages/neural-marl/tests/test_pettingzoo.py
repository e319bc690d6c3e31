"""Simple Spread of mpe2, stepped in Python."""

import warnings

import jax
import networkx as nx
import numpy as np
import pytest

from icml25.neural_marl import NeuralDAC, pettingzoo_env

pytest.importorskip("mpe2")


def spread():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pygame's own
        from mpe2 import simple_spread_v3

        return pettingzoo_env(simple_spread_v3.parallel_env(N=3, max_cycles=5), gamma=0.9)


def test_adapter() -> None:
    env = spread()
    s = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(s, env.reset(jax.random.key(0)))
    assert env.n_agents == 3 and env.n_actions == (5, 5, 5) and s.shape == (54,)
    for k in range(5):
        assert not env.done
        s, r = env.step(jax.random.key(k), s, np.array([0, 1, 2]))
    assert env.done and r.shape == (3,)
    for x in (env.features(s, np.array([0, 1, 2])), env.state_features(s)):
        assert float(np.linalg.norm(x)) == pytest.approx(1)


def test_training_in_python() -> None:
    settings = {"width": 8, "depth": 1, "critic_steps": 3, "actor_batch": 4, "seed": 1}
    algo, again = (NeuralDAC(spread(), nx.path_graph(3), **settings) for _ in range(2))
    log = algo.train(3, log_every=1)
    assert log["t"].tolist() == [0, 1, 2, 3] and np.isfinite(log["J"].iloc[1:]).all() and log["gap"].isna().all()
    again.train(3)
    np.testing.assert_array_equal(algo.actors[1]["W1"], again.actors[1]["W1"])
    assert algo.sample(4)["r"].shape == (4, 3)
    assert np.isfinite(algo.evaluate(2, horizon=5)["return"])
    with pytest.raises(ValueError, match="num_seeds is 2"):
        NeuralDAC(spread(), nx.path_graph(3), num_seeds=2)
