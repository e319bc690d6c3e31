"""Decentralised deep neural actor-critic: agents with private rewards learn a team policy by talking to neighbours only."""

from importlib.metadata import version as _version

from icml25.neural_marl import baselines, theory
from icml25.neural_marl.actor import advantage_weights, direction, normalise
from icml25.neural_marl.algorithm import Batch, NeuralDAC, TrainState
from icml25.neural_marl.consensus import consensus_matrix, gossip, mixing_rate, validate_consensus
from icml25.neural_marl.critic import project, td_phase
from icml25.neural_marl.envs import Environment, GridSpread, GridState, NetworkedMDP, PettingZooEnv, pettingzoo_env
from icml25.neural_marl.networks import Critic, LinearActor, LinearCritic, MLPActor, MLPCritic, NeuralActor

__version__ = _version("icml25-neural-marl")
__all__ = [
    "Batch",
    "Critic",
    "Environment",
    "GridSpread",
    "GridState",
    "LinearActor",
    "LinearCritic",
    "MLPActor",
    "MLPCritic",
    "NetworkedMDP",
    "NeuralActor",
    "NeuralDAC",
    "PettingZooEnv",
    "TrainState",
    "__version__",
    "advantage_weights",
    "baselines",
    "consensus_matrix",
    "direction",
    "gossip",
    "mixing_rate",
    "normalise",
    "pettingzoo_env",
    "project",
    "td_phase",
    "theory",
    "validate_consensus",
]
