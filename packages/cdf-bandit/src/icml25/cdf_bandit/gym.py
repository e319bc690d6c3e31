"""Gymnasium environment ``icml25.cdf_bandit.gym:MixtureEnv-v0`` (needs the extra [gymnasium])."""

from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import gymnasium
except ImportError as error:
    raise ImportError("gymnasium is missing: pip install icml25-cdf-bandit[gymnasium]") from error

from icml25.cdf_bandit.env import MixtureEnvironment


class MixtureEnv(gymnasium.Env):
    """A ``MixtureEnvironment`` as a gymnasium environment: the observation is the context, the reward the outcome.

    Parameters
    ----------
    environment : the environment.
    utility : u(F, s, m); with it ``info`` holds the regret of each step.
    horizon : steps of an episode.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, environment: MixtureEnvironment, utility: Callable[..., Any] | None = None, horizon: int = 1000
    ) -> None:
        self.environment, self.utility, self.horizon = environment, utility, horizon
        d = environment.context(1, np.random.default_rng(0)).shape[1]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (d,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(environment.n_actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw the first context."""
        super().reset(seed=seed)
        self.t = 0
        self.x = self.environment.context(1, self.np_random)
        return self.x[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Draw the outcome and the next context."""
        a = np.asarray([action])
        info = {}
        reward = float(self.environment.reward(self.x, a, self.np_random)[0])
        if self.utility is not None:
            info["regret"] = float(self.environment.regret(self.x, a, self.utility)[0])
        self.t += 1
        self.x = self.environment.context(1, self.np_random)
        return self.x[0], reward, False, self.t >= self.horizon, info


gymnasium.register("MixtureEnv-v0", entry_point="icml25.cdf_bandit.gym:MixtureEnv")
