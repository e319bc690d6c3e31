"""Panels that several tests use."""

import numpy as np
import pytest

from icml25.switchback import Design, LinearMDP, Panel, paper_mdp


@pytest.fixture
def panel() -> Panel:
    """40 days of 6 points with 2 states and carryover."""
    return paper_mdp(T=6, p=2, delta=0.8, seed=3).simulate(Design("AT", 2).draw(40, 6, 1), seed=2)


@pytest.fixture
def quiet() -> LinearMDP:
    """A world without noise but for the first state."""
    world = paper_mdp(T=6, p=2, delta=0.8, seed=3)
    fields = {name: getattr(world, name) for name in ("beta0", "beta", "gamma", "phi0", "Phi", "Gamma", "m1")}
    return LinearMDP(**fields, Sigma_e=np.zeros((6, 6)), Q=np.zeros((2, 2)), C1=np.eye(2))
