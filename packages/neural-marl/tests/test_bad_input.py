"""What is refused, and how."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from conftest import small

from icml25.neural_marl import GridSpread, NetworkedMDP, NeuralDAC


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (nx.Graph([(0, 1), (2, 2)]), ValueError, "2 connected components"),
        (nx.DiGraph([(0, 1), (1, 2), (2, 0)]), TypeError, "directed"),
        (nx.path_graph(4), ValueError, "graph has 4 nodes, the environment 3 agents"),
        (np.eye(3), ValueError, "sigma_2 = 1"),
        (np.full((2, 2), 0.5), ValueError, "A is for 2 agents, the environment has 3"),
        (np.ones((3, 3)) / 2, ValueError, r"row 0 of A sums to 1\.5"),
    ],
)
def test_graphs(mdp, graph, error, message: str) -> None:
    with pytest.raises(error, match=message):
        NeuralDAC(mdp, graph)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0}, "width is 0; expected at least 1"),
        ({"critic_steps": 0}, "critic_steps is 0"),
        ({"gossip_rounds": -1}, "gossip_rounds is -1; expected at least 0"),
        ({"radius": 0.0}, "radius is 0"),
        ({"beta": -0.1}, "beta is -0.1"),
        ({"advantage": "gae"}, "advantage is 'gae'; expected one of 'td', 'q', 'sarsa'"),
        ({"normalize": "all"}, "normalize is 'all'"),
        ({"param": "ntk"}, "param is 'ntk'"),
        ({"gamma": 0.5}, r"gamma is 0\.5, that of the environment 0\.8"),
        ({"num_seeds": 0}, "num_seeds is 0"),
    ],
)
def test_settings(mdp, path, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeuralDAC(mdp, path, **settings)


def test_stationary_samples_need_a_table() -> None:
    with pytest.raises(ValueError, match="sampling is 'stationary' on GridSpread"):
        NeuralDAC(GridSpread(2, 3, 2), nx.path_graph(2), sampling="stationary")


@pytest.mark.parametrize(("num_seeds", "n_devices"), [(1, 1), (3, 2), (2, 0)])
def test_runs_that_do_not_fill_the_devices(mdp, path, num_seeds: int, n_devices: int) -> None:
    with pytest.raises(ValueError, match=f"num_seeds is {num_seeds} for {n_devices} devices; expected a multiple"):
        small(mdp, path, num_seeds=num_seeds, devices=jax.devices()[:n_devices])


def test_outer_steps(mdp, path) -> None:
    with pytest.raises(ValueError, match="T is 0"):
        small(mdp, path).train(0)
    with pytest.raises(ValueError, match="log_every is 0"):
        small(mdp, path).train(1, log_every=0)


def test_critic_that_diverges(mdp, path) -> None:
    algo = small(mdp, path, beta=1e4, critic_steps=20)
    with pytest.raises(FloatingPointError, match=r"critic of agent \d is not finite at t = \d, k = \d+"):
        algo.train(5)
    assert algo.t < 5 and bool(jnp.isfinite(algo.critics["W1"]).all())


def test_features_off_the_sphere(path) -> None:
    class Unscaled(NetworkedMDP):
        def features(self, s, a):
            return 2 * super().features(s, a)

    mdp = NetworkedMDP.random(3, 4, 2, seed=1)
    with pytest.raises(ValueError, match="features of the environment have norm 2; expected 1"):
        NeuralDAC(Unscaled(mdp.P, mdp.R, mdp.rho, mdp.gamma), path)
