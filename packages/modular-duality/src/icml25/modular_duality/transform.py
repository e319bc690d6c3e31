"""The duality map of a whole network as an optax transformation."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from icml25.modular_duality.checks import check_number
from icml25.modular_duality.norms import Norm, dualize_together, path_name
from icml25.modular_duality.orthogonalize import Schedule, check_schedule

__all__ = ["modular_sgd", "scale_by_modular_dual"]


def scale_by_modular_dual(
    norms: PyTree,
    schedule: Schedule = "six_step",
    target_norm: float = 1.0,
    scale: Literal["dual_norm"] | None = None,
) -> optax.GradientTransformation:
    r"""Map gradients (or momentum) to the weight change of modular norm ``target_norm`` that they point to.

    Leaf k of mass m_k of the total m, with sensitivity mu_k of all that comes after it, becomes
    ``target_norm * (m_k / m) / mu_k * dualize_k(g_k)``: the composition rule, flattened.

    Parameters
    ----------
    norms : tree of norms with the structure of the parameters, from :func:`infer_norms` or ``Module.norm_specs``.
    schedule : how matrices are orthogonalised, see :func:`orthogonalize`.
    target_norm : modular norm of the result; above 0.
    scale : "dual_norm" multiplies by the dual norm of the gradient, sum over k of (m_k / m) / mu_k <g_k, dualize_k(g_k)>
        (Proposition 1: steepest descent under a sharpness of one over the learning rate); None, the paper's choice,
        leaves the size to the learning rate.

    Returns
    -------
    optax.GradientTransformation without state. A leaf that holds nan or inf makes that leaf's update not finite and,
    unless scale is "dual_norm", no other's; ``optax.apply_if_finite`` composes.

    Raises
    ------
    ValueError: schedule, target_norm or scale; all masses are 0; at ``init`` or ``update``, trees that do not match or a
        leaf whose axes do not fit.
    TypeError: at ``init`` or ``update``, a leaf that is neither of a real floating dtype nor frozen.

    Examples
    --------
    >>> optax.chain(optax.trace(0.9), scale_by_modular_dual(norms), optax.scale_by_learning_rate(0.1))
    """
    check_schedule(schedule)
    check_number("target_norm", target_norm, above=True)
    if scale not in (None, "dual_norm"):
        raise ValueError(f"scale must be None or 'dual_norm', got {scale!r}")
    specs, structure = jax.tree.flatten(norms)
    if wrong := [spec for spec in specs if not isinstance(spec, Norm)]:
        raise TypeError(f"norms must hold norms, such as those of infer_norms; got {wrong[0]!r}")
    mass = sum(spec.mass for spec in specs)
    if mass == 0:
        raise ValueError("the masses of norms are all 0; at least one must be above")
    coefficients = [spec.mass / mass / spec.sensitivity_after for spec in specs]

    def flatten(tree: PyTree) -> list:
        leaves, found = jax.tree_util.tree_flatten_with_path(tree)
        if found != structure:
            raise ValueError(f"norms and parameters differ in structure:\n{structure}\n{found}")
        for spec, (path, leaf) in zip(specs, leaves, strict=True):
            spec.check(leaf, path_name(path))
        return [leaf for _, leaf in leaves]

    def init(params: PyTree) -> optax.EmptyState:
        flatten(params)
        return optax.EmptyState()

    def update(updates: PyTree, state: optax.OptState, params: PyTree = None) -> tuple[PyTree, optax.OptState]:
        del params
        gradients = flatten(updates)
        moving = [k for k, c in enumerate(coefficients) if c]
        duals = [jnp.zeros_like(g) for g in gradients]
        for k, d in zip(
            moving, dualize_together([specs[k] for k in moving], [gradients[k] for k in moving], schedule), strict=True
        ):
            duals[k] = d
        size = target_norm
        if scale == "dual_norm":
            triples = zip(coefficients, gradients, duals, strict=True)
            size *= sum(c * jnp.sum(g * d, dtype=jnp.promote_types(g.dtype, jnp.float32)) for c, g, d in triples if c)
        out = [(size * c * d).astype(d.dtype) if c else d for c, d in zip(coefficients, duals, strict=True)]
        return structure.unflatten(out), state

    return optax.GradientTransformation(init, update)


def modular_sgd(
    learning_rate: optax.ScalarOrSchedule,
    norms: PyTree,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    schedule: Schedule = "six_step",
) -> optax.GradientTransformation:
    """Momentum, then the duality map, then (decoupled) weight decay and the learning rate.

    Parameters
    ----------
    learning_rate : modular norm of a step, a number or an optax schedule; 0.1 is a good first try.
    norms, schedule : see :func:`scale_by_modular_dual`.
    momentum : decay of the sum of gradients, in [0, 1); its scale does not matter, as the map takes out sizes.
    nesterov : look one step ahead.
    weight_decay : share of the weights that is taken off per unit of learning rate; not of those without mass.

    Raises
    ------
    ValueError, TypeError: learning_rate, momentum or weight_decay is out of range; see :func:`scale_by_modular_dual`.
    """
    check_number("momentum", momentum)
    if momentum >= 1:
        raise ValueError(f"momentum must be below 1, got {momentum}")
    check_number("weight_decay", weight_decay)
    if not callable(learning_rate) and not isinstance(learning_rate, jax.Array):
        check_number("learning_rate", learning_rate)
    dual = scale_by_modular_dual(norms, schedule)
    moving = jax.tree.map(lambda spec: spec.mass > 0, norms)
    return optax.chain(
        optax.trace(momentum, nesterov) if momentum else optax.identity(),
        dual,
        optax.add_decayed_weights(weight_decay, moving) if weight_decay else optax.identity(),
        optax.scale_by_learning_rate(learning_rate),
    )
