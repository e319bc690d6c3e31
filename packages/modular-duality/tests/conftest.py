"""Two devices, for what is sharded; property tests have no deadline (compiling takes long on a busy machine)."""

import jax
import numpy as np
import pytest
from hypothesis import settings

jax.config.update("jax_num_cpu_devices", 2)
settings.register_profile("icml25", deadline=None, max_examples=20)
settings.load_profile("icml25")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield
