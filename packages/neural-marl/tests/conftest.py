"""A small team that the tests share."""

import atexit
import os
import shutil
import tempfile

# Compiling takes longer than running here: no optimisation, and what one test has compiled serves the others.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_force_host_platform_device_count=2"
)
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="neural-marl-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import networkx as nx
import numpy as np
import pytest

from icml25.neural_marl import NetworkedMDP, NeuralDAC

SMALL = {"width": 8, "depth": 2, "critic_steps": 3, "actor_batch": 4, "gossip_rounds": 2}


@pytest.fixture(scope="session")
def mdp() -> NetworkedMDP:
    return NetworkedMDP.random(3, 4, 2, additive=False, seed=1, gamma=0.8)


@pytest.fixture(scope="session")
def path() -> nx.Graph:
    return nx.path_graph(3)


def small(env: NetworkedMDP, graph: nx.Graph | np.ndarray, **settings) -> NeuralDAC:
    return NeuralDAC(env, graph, **{**SMALL, **settings})


def random_policy(env, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.ones(n), env.n_states) for n in env.n_actions]
