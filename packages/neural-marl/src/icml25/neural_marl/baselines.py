"""The method with one part exchanged: what it is compared with."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np

from icml25.neural_marl.algorithm import NeuralDAC

__all__ = ["centralised", "exact_gradient", "linear", "no_gossip", "q_weighted"]


def linear(env: Any, graph: nx.Graph | np.ndarray, **settings: Any) -> NeuralDAC:
    """Linear decentralised actor-critic (Zhang et al. 2018; Hairi et al. 2022): linear critics, linear-softmax actors."""
    return NeuralDAC(env, graph, **{"critic": "linear", "actor": "linear", **settings})


def centralised(env: Any, **settings: Any) -> NeuralDAC:
    """A server that averages exactly: A = 11' / N, one round."""
    n = env.n_agents
    return NeuralDAC(env, np.full((n, n), 1 / n), **{**settings, "gossip_rounds": 1})


def no_gossip(env: Any, graph: nx.Graph | np.ndarray, **settings: Any) -> NeuralDAC:
    """Independent learners, each on its own reward."""
    return NeuralDAC(env, graph, **{**settings, "gossip_rounds": 0})


def q_weighted(env: Any, graph: nx.Graph | np.ndarray, **settings: Any) -> NeuralDAC:
    """The paper's ablation: the Q value in place of the TD error."""
    return NeuralDAC(env, graph, **{**settings, "advantage": "q"})


def exact_gradient(env: Any, **settings: Any) -> NeuralDAC:
    """No samples, no critics: the exact direction of each actor for the team reward."""
    n = env.n_agents
    return NeuralDAC(env, np.full((n, n), 1 / n), **{**settings, "critic": "exact"})
