"""Cycle Friction: a MuJoCo task whose ground friction changes in a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

__all__ = ["CycleFriction"]


class CycleFriction(gymnasium.Wrapper):
    """Multiply the sliding friction of all geoms by the next factor every ``period`` steps.

    Steps count over all episodes; a change applies at the next reset, relative to the original friction.

    Parameters
    ----------
    env : a gymnasium MuJoCo environment (its ``unwrapped`` has ``model.geom_friction``).
    factors : multiples of the original friction.
    period : environment steps from one change to the next.

    Raises
    ------
    TypeError: env is no MuJoCo environment.
    ValueError: no factors, a factor that is not positive, or a period below 1.
    """

    def __init__(
        self, env: gymnasium.Env, factors: Sequence[float] = (1.0, 0.5, 2.0, 0.25, 4.0), period: int = 1_000_000
    ):
        super().__init__(env)
        model: Any = getattr(env.unwrapped, "model", None)
        if not hasattr(model, "geom_friction"):
            raise TypeError(f"env must be a MuJoCo environment (model.geom_friction), got {env.unwrapped!r}")
        if len(factors) == 0 or min(factors) <= 0:
            raise ValueError(f"factors must be positive numbers, at least one; got {tuple(factors)}")
        if period < 1:
            raise ValueError(f"period must be at least 1, got {period}")
        self.factors, self.period, self.steps = tuple(factors), period, 0
        self._friction = model.geom_friction
        self._original = np.array(model.geom_friction[:, 0])

    @property
    def factor(self) -> float:
        """The factor that the next reset applies."""
        return self.factors[self.steps // self.period % len(self.factors)]

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Set the friction and start an episode."""
        self._friction[:, 0] = self._original * self.factor
        return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step."""
        self.steps += 1
        return super().step(action)
