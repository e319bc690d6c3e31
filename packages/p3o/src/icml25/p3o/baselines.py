"""Other ways to keep an actor plastic, in short versions on the same loop: ``PPO(env, plasticity=ReDo())``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from icml25.p3o.metrics import dormant_units, with_hidden
from icml25.p3o.sbp import ApplyFn, Initializer, find_layers, redraw

__all__ = ["ContinualBackprop", "PlainReset", "ReDo", "ShrinkPerturb"]

Initializers = Initializer | tuple[Initializer, ...] | None


@dataclass(frozen=True)
class ReDo:
    """Renew dormant units, outgoing weights zero (Sokar et al., 2023).

    Parameters
    ----------
    reset_every : iterations from one event to the next.
    threshold : units with at most this score are dormant.
    initializers : see :func:`icml25.p3o.cycle_reset`.
    """

    reset_every: int = 20
    threshold: float = 0.025
    initializers: Initializers = None

    def init(self, params: Any) -> tuple[()]:
        """No state."""
        return ()

    def regenerate(
        self, key: Array, t: Any, state: Any, params: Any, apply_fn: ApplyFn, batch: Any
    ) -> tuple[Any, Any, Any, dict[str, Array]]:
        """Renew the units that are dormant on the batch."""
        units = [dormant_units(h, self.threshold) for h in _hidden(apply_fn, params, batch)]
        params, mask = redraw(key, params, units, self.initializers, "zero")
        return state, params, mask, {"renewed_units": jnp.concatenate(units).sum()}


class ContinualBackpropState(NamedTuple):
    """Per hidden layer, running utility and age (gradient steps) of each unit, and the part of a unit still due."""

    utility: Any
    age: Any
    due: Any


@dataclass(frozen=True)
class ContinualBackprop:
    """Renew a small rate of mature units, those of least utility first, outgoing weights zero (Dohare et al., 2024).

    The utility is the running mean of |h_j| sum_k |w_jk|. The rate is per gradient step; events are gathered into one per
    iteration of ``steps`` gradient steps.

    Parameters
    ----------
    rate : replacement rate, share of the mature units per gradient step.
    maturity : gradient steps after which a unit may be renewed.
    decay : of the running utility, per gradient step.
    steps : gradient steps per iteration (n_epochs * num_minibatches).
    initializers : see :func:`icml25.p3o.cycle_reset`.
    """

    rate: float = 1e-4
    maturity: int = 10_000
    decay: float = 0.99
    steps: int = 320
    initializers: Initializers = None
    reset_every: int = 1

    def init(self, params: Any) -> ContinualBackpropState:
        """Utility and age 0."""
        zeros = tuple(jnp.zeros(layer.units) for layer in find_layers(params)[:-1])
        return ContinualBackpropState(zeros, jax.tree.map(jnp.zeros_like, zeros), tuple(jnp.zeros(()) for _ in zeros))

    def regenerate(
        self, key: Array, t: Any, state: ContinualBackpropState, params: Any, apply_fn: ApplyFn, batch: Any
    ) -> tuple[ContinualBackpropState, Any, Any, dict[str, Array]]:
        """Account for an iteration's gradient steps, and renew the units that have become due."""
        stack, leaves = find_layers(params), jax.tree.leaves(params)
        keep = self.decay**self.steps
        units, utilities, ages, dues = [], [], [], []
        for number, h in enumerate(_hidden(apply_fn, params, batch)):
            worth = jnp.abs(h).mean(0) * jnp.abs(leaves[stack[number + 1].kernel]).sum(1)
            utility, age = keep * state.utility[number] + (1 - keep) * worth, state.age[number] + self.steps
            mature = age > self.maturity
            due = state.due[number] + self.rate * self.steps * mature.sum()
            place = jnp.argsort(jnp.argsort(jnp.where(mature, utility, jnp.inf)))
            renew = mature & (place < jnp.floor(due))
            units.append(renew)
            utilities.append(jnp.where(renew, 0.0, utility))
            ages.append(jnp.where(renew, 0.0, age))
            dues.append(due - renew.sum())
        params, mask = redraw(key, params, units, self.initializers, "zero")
        state = ContinualBackpropState(tuple(utilities), tuple(ages), tuple(dues))
        return state, params, mask, {"renewed_units": jnp.concatenate(units).sum()}


@dataclass(frozen=True)
class ShrinkPerturb:
    """Mix all weights with freshly drawn ones, shrink * old + (1 - shrink) * fresh (Ash and Adams, 2020; as D'Oro et al., 2023).

    Parameters
    ----------
    shrink : weight of the old parameters, in [0, 1]; 0 is :class:`PlainReset`.
    reset_every : iterations from one event to the next.
    initializers : see :func:`icml25.p3o.cycle_reset`.
    """

    shrink: float = 0.8
    reset_every: int = 20
    initializers: Initializers = None

    def init(self, params: Any) -> tuple[()]:
        """No state."""
        return ()

    def regenerate(
        self, key: Array, t: Any, state: Any, params: Any, apply_fn: ApplyFn, batch: Any
    ) -> tuple[Any, Any, Any, dict[str, Array]]:
        """Mix every dense layer with a fresh one; moments start anew."""
        hidden = find_layers(params)[:-1]
        units = [jnp.ones(layer.units, bool) for layer in hidden]
        fresh, mask = redraw(key, params, units, self.initializers, "reinit")
        mixed = jax.tree.map(lambda old, new: self.shrink * old + (1 - self.shrink) * new, params, fresh)
        return state, mixed, mask, {"renewed_units": jnp.int32(sum(layer.units for layer in hidden))}


def PlainReset(reset_every: int = 20, initializers: Initializers = None) -> ShrinkPerturb:
    """Draw all hidden units, and the output's weights, anew at every event (Nikishin et al., 2022)."""
    return ShrinkPerturb(0.0, reset_every, initializers)


def _hidden(apply_fn: ApplyFn, params: Any, batch: Any) -> Sequence[Array]:
    hidden = with_hidden(apply_fn(params, batch))[1]
    if hidden is None:
        raise TypeError("apply_fn must return (output, list of hidden activations)")
    return hidden
