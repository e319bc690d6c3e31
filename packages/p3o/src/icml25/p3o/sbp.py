"""Sustainable backup propagation: a scheduled reset that walks through all neurons, then inner distillation (Alg. 1)."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from icml25.p3o.distributions import Categorical, alpha_dkl
from icml25.p3o.metrics import unit_scores, with_hidden
from icml25.p3o.optim import reset_moments

__all__ = ["SBP", "Plasticity", "SBPState", "cycle_length", "cycle_reset", "distill", "find_layers", "redraw"]

Initializer = Callable[..., Array]
ApplyFn = Callable[[Any, Any], Any]
ORTHOGONAL = jax.nn.initializers.orthogonal(math.sqrt(2))


class Layer(NamedTuple):
    """Where a layer's arrays are among the leaves of the parameters; the norm's are None without LayerNorm."""

    name: str
    kernel: int
    bias: int | None
    scale: int | None
    offset: int | None
    fan_in: int
    units: int


def cycle_length(reset_rate: float) -> int:
    """K, the smallest integer with K reset_rate >= 1 (up to 1e-9): the number of blocks, and of events in a cycle."""
    return math.ceil((1 - 1e-9) / reset_rate)


def find_layers(params: Any, layers: Sequence[str] | None = None) -> list[Layer]:
    """Dense layers of a network in order, the output layer last.

    Parameters
    ----------
    params : tree (dicts, lists, nnx.State) whose dense layers have a ``kernel`` (fan_in, n) and perhaps a ``bias`` (n,);
        a LayerNorm has a ``scale`` (n,) and perhaps a ``bias`` (n,) and follows the hidden layer of the same rank.
    layers : paths of the layers in order, "/" between names; None takes every module, sorted by number.

    Raises
    ------
    TypeError: no hidden layer, a module of another kind, or layers that do not follow each other; it names the module.
    """
    modules: dict[str, dict[str, tuple[int, Any]]] = {}
    for index, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(params)):
        *module, leaf_name = re.sub(r"/value$", "", jax.tree_util.keystr(path, simple=True, separator="/")).split("/")
        modules.setdefault("/".join(module), {})[leaf_name] = (index, leaf)
    modules.pop("", None)  # a bare array, such as a state-independent log_std, is no layer
    norms = []
    if layers is None:
        names = []
        for name in sorted(modules, key=lambda s: [(t.isdigit(), int(t) if t.isdigit() else t) for t in _parts(s)]):
            has = modules[name]
            if set(has) <= {"kernel", "bias"} and "kernel" in has and has["kernel"][1].ndim == 2:
                names.append(name)
            elif set(has) <= {"scale", "bias"} and "scale" in has and has["scale"][1].ndim == 1:
                norms.append(name)
            else:
                shapes = ", ".join(f"{key} {leaf.shape}" for key, (_, leaf) in has.items())
                raise TypeError(f"module {name!r} is neither dense nor a LayerNorm ({shapes}); name the layers")
    else:
        names = list(layers)
        if missing := [name for name in names if "kernel" not in modules.get(name, {})]:
            raise TypeError(f"module {missing[0]!r} has no kernel; the modules are {', '.join(modules)}")
    if len(names) < 2:
        raise TypeError(f"a network without hidden layers has no units to renew; its modules: {', '.join(modules)}")
    if norms and len(norms) != len(names) - 1:
        raise TypeError(f"module {norms[0]!r}: {len(norms)} LayerNorms for {len(names) - 1} hidden layers")
    found = []
    for number, name in enumerate(names):
        norm = modules[norms[number]] if number < len(norms) else {}
        kernel, bias = modules[name]["kernel"], modules[name].get("bias")
        fan_in, units = kernel[1].shape
        if found and fan_in != found[-1].units:
            raise TypeError(
                f"module {name!r} takes {fan_in} inputs, but {found[-1].name!r} has {found[-1].units} units"
            )
        places = [part[0] if part else None for part in (bias, norm.get("scale"), norm.get("bias"))]
        found.append(Layer(name, kernel[0], *places, fan_in=fan_in, units=units))
    return found


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"(\d+)|/|_", name) if part]


def redraw(
    key: Array,
    params: Any,
    units: Sequence[Bool[Array, " _"]],
    initializers: Initializer | Sequence[Initializer] | None = None,
    outgoing: str = "reinit",
    layers: Sequence[str] | None = None,
) -> tuple[Any, Any]:
    """Draw some hidden units anew from the layers' initialisers.

    A whole matrix is drawn and the units' entries are taken from it, so that scale and orthogonality are a fresh network's.

    Parameters
    ----------
    key : PRNG key.
    params : parameters, see :func:`find_layers`.
    units : per hidden layer, which units are renewed.
    initializers, outgoing, layers : see :func:`cycle_reset`.

    Returns
    -------
    params, mask : with the mask true where an entry was drawn anew (or zeroed).
    """
    stack = find_layers(params, layers)
    if initializers is None or callable(initializers):
        initializers = [initializers or ORTHOGONAL] * len(stack)
    if len(initializers) != len(stack):
        raise ValueError(f"initializers: one for each of {len(stack)} layers, got {len(initializers)}")
    leaves, structure = jax.tree.flatten(params)
    masks = [jnp.zeros(leaf.shape, bool) for leaf in leaves]
    keys = jax.random.split(key, len(stack))

    def put(place: int | None, mask: Array, value: Array | float) -> None:
        if place is not None:
            masks[place] = mask
            leaves[place] = jnp.where(mask, value, leaves[place]).astype(leaves[place].dtype)

    for number, layer in enumerate(stack):
        last = number == len(stack) - 1
        columns = jnp.zeros(layer.units, bool) if last else units[number]
        rows = jnp.zeros(layer.fan_in, bool) if number == 0 or outgoing == "keep" else units[number - 1]
        dtype = jnp.promote_types(leaves[layer.kernel].dtype, jnp.float32)
        fresh = initializers[number](keys[number], (layer.fan_in, layer.units), dtype)
        if outgoing == "zero":
            fresh = jnp.where(rows[:, None], 0, fresh)
        put(layer.kernel, columns[None, :] | rows[:, None], fresh)
        put(layer.bias, columns, 0.0)
        put(layer.scale, columns, 1.0)
        put(layer.offset, columns, 0.0)
    return structure.unflatten(leaves), structure.unflatten(masks)


def _block(rank: Int[Array, " n"], index: Any, K: int) -> Bool[Array, " n"]:
    """Block p of n units: those of rank floor(p n / K) to floor((p + 1) n / K) - 1."""
    n = rank.shape[0]
    return (rank >= index * n // K) & (rank < (index + 1) * n // K)


def cycle_reset(
    key: Array,
    params: Any,
    index: int | Int[Array, ""],
    K: int,
    initializers: Initializer | Sequence[Initializer] | None = None,
    outgoing: str = "reinit",
    *,
    layers: Sequence[str] | None = None,
    ranks: Sequence[Int[Array, " _"]] | None = None,
) -> tuple[Any, Any]:
    """Renew block ``index`` of K of every hidden layer's units.

    A unit's incoming weights are drawn anew, its bias is 0, the scale and offset of its LayerNorm are 1 and 0; its outgoing
    weights are drawn anew, zero, or kept. Output units, output biases and bare arrays (a log-std) stay.

    Parameters
    ----------
    key : PRNG key.
    params : e.g. ``{"layer_0": {"kernel": (fan_in, n), "bias": (n,)}, "layer_1": ...}``, the last layer the output's; also
        nnx.State and nested trees, see :func:`find_layers`.
    index : block, 0 to K - 1.
    K : number of blocks, see :func:`cycle_length`.
    initializers : one ``jax.nn.initializers`` function for all kernels, or one per layer; None is orthogonal(sqrt 2).
    outgoing : "reinit", "zero" (the function changes by removal only) or "keep".
    layers : paths of the layers in order; None finds them.
    ranks : per hidden layer each unit's place in the order of renewal; None is the order of indices.

    Returns
    -------
    params, mask : mask has the structure of params and is true where an entry was drawn anew.

    Raises
    ------
    ValueError: outgoing or the number of initializers.
    TypeError: a network without hidden layers, or with modules of other kinds.
    """
    if outgoing not in ("reinit", "zero", "keep"):
        raise ValueError(f"outgoing must be 'reinit', 'zero' or 'keep', got {outgoing!r}")
    if ranks is None:
        ranks = [jnp.arange(layer.units) for layer in find_layers(params, layers)[:-1]]
    units = [_block(rank, index, K) for rank in ranks]
    return redraw(key, params, units, initializers, outgoing, layers)


def distill(
    key: Array,
    teacher: Any,
    params: Any,
    apply_fn: ApplyFn,
    batch: Any,
    distance: Callable[[Any, Any], Float[Array, " batch"]],
    *,
    threshold: float | Float[Array, ""],
    max_steps: int | Int[Array, ""],
    learning_rate: float = 3e-3,
    minibatch: int = 64,
    frozen: Sequence[str] = (),
) -> tuple[Any, dict[str, Array]]:
    """Inner distillation: minimise d(f_teacher, f_params) on the batch until its mean is at most the threshold.

    Adam with fresh moments on shuffled minibatches; the mean over the whole batch is checked after every epoch.

    Parameters
    ----------
    key : PRNG key.
    teacher, params : parameters before and after the reset.
    apply_fn : ``apply_fn(params, batch)`` gives the output, or (output, hidden activations).
    batch : tree of arrays (B, ...).
    distance : d(teacher's output, output), (B,).
    threshold : tau, in the unit of d.
    max_steps : gradient steps at most.
    learning_rate, minibatch : of the gradient steps.
    frozen : names of arrays that stay as they are.

    Returns
    -------
    params, info : ``kl_after_reset`` and ``distance`` (means over the batch before and after), ``distill_steps``,
        ``distill_converged``.
    """
    target = jax.lax.stop_gradient(with_hidden(apply_fn(teacher, batch))[0])
    B = jax.tree.leaves(batch)[0].shape[0]
    size = min(minibatch, B)
    tx = optax.adam(learning_rate)

    def gap(params: Any, rows: Any, target: Any) -> Array:
        return distance(target, with_hidden(apply_fn(params, rows))[0]).mean()

    def step(i: Array, carry: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
        params, opt_state, order = carry
        rows, wanted = jax.tree.map(lambda a: a[jax.lax.dynamic_slice_in_dim(order, i * size, size)], (batch, target))
        grads = _freeze(jax.grad(gap)(params, rows, wanted), frozen)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, order

    def epoch(carry: tuple[Any, Any, Array, Array, Array]) -> tuple[Any, Any, Array, Array, Array]:
        params, opt_state, steps, _, key = carry
        key, order_key = jax.random.split(key)
        count = jnp.minimum(B // size, max_steps - steps)
        order = jax.random.permutation(order_key, B)
        params, opt_state, _ = jax.lax.fori_loop(0, count, step, (params, opt_state, order))
        return params, opt_state, steps + count, gap(params, batch, target), key

    start = gap(params, batch, target)
    carry = (params, tx.init(params), jnp.int32(0), start, key)
    carry = jax.lax.while_loop(lambda c: (c[3] > threshold) & (c[2] < max_steps), epoch, carry)
    params, _, steps, end, _ = carry
    info = {"kl_after_reset": start, "distance": end, "distill_steps": steps, "distill_converged": end <= threshold}
    return params, info


def _freeze(grads: Any, names: Sequence[str]) -> Any:
    """Zero gradients for the arrays of these names."""

    def keep(path: Any, grad: Array) -> Array:
        parts = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        return jnp.zeros_like(grad) if set(parts) & set(names) else grad

    return jax.tree_util.tree_map_with_path(keep, grads)


@runtime_checkable
class Plasticity(Protocol):
    """What :class:`SBP` and the baselines have in common: it renews some units of a network every few iterations."""

    @property
    def reset_every(self) -> int:
        """Iterations from one event to the next."""
        ...

    def init(self, params: Any) -> Any:
        """Return the state at the start."""
        ...

    def regenerate(
        self, key: Array, t: Any, state: Any, params: Any, apply_fn: ApplyFn, batch: Any
    ) -> tuple[Any, Any, Any, dict[str, Array]]:
        """One event: state, params, mask of re-drawn entries, info."""
        ...


class SBPState(NamedTuple):
    """State of :class:`SBP`.

    Attributes
    ----------
    index : p, the next block.
    ranks : per hidden layer, each unit's place in the order of renewal.
    resets : per hidden layer, how often each unit was renewed.
    renewed_at : per hidden layer, t of each unit's last renewal (0 at the start).
    events, missed : events so far, and those whose distillation did not reach the threshold.
    """

    index: Int[Array, ""]
    ranks: tuple[Int[Array, " n"], ...]
    resets: tuple[Int[Array, " n"], ...]
    renewed_at: tuple[Int[Array, " n"], ...]
    events: Int[Array, ""]
    missed: Int[Array, ""]


@dataclass(frozen=True)
class SBP:
    """Cycle reset and inner distillation for a training loop of your own, supervised or RL (Alg. 1).

    Parameters
    ----------
    reset_rate : share of each hidden layer renewed at an event, in (0, 1]; a cycle has K = ceil(1 / reset_rate) events.
    reset_every : F, training updates from one event to the next.
    threshold : tau, mean distance at which distillation stops.
    loss : "dkl" (alpha-DKL; apply_fn returns a Gaussian or Categorical), "kl" (softmax of logits, temperature 1), "mse", or
        a function of (teacher's output, output) to (B,).
    alpha : weight of KL(teacher || network) in alpha-DKL.
    outgoing : "reinit", "zero" or "keep", see :func:`cycle_reset`.
    order : "cycle" (indices), "random" (a fresh permutation each cycle), "utility" (ReDo's score at the start of a cycle,
        lowest first; needs hidden activations from apply_fn).
    max_steps : gradient steps of a distillation at most; 0 leaves it out.
    learning_rate, minibatch : of distillation by Adam.
    initializers, layers : see :func:`cycle_reset`.
    frozen : names of arrays that distillation leaves as they are.

    Raises
    ------
    ValueError: a parameter out of its range; the message names it.
    """

    reset_rate: float = 0.1
    reset_every: int = 20
    threshold: float = 0.01
    loss: str | Callable[[Any, Any], Array] = "dkl"
    alpha: float = 0.4
    outgoing: str = "reinit"
    order: str = "cycle"
    max_steps: int = 1000
    learning_rate: float = 3e-3
    minibatch: int = 64
    initializers: Initializer | tuple[Initializer, ...] | None = None
    layers: tuple[str, ...] | None = None
    frozen: tuple[str, ...] = ("log_std",)

    def __post_init__(self) -> None:
        if not 0 < self.reset_rate <= 1:
            raise ValueError(f"reset_rate must be in (0, 1], got {self.reset_rate}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}")
        if not self.threshold >= 0:
            raise ValueError(f"threshold must be at least 0, got {self.threshold}")
        if self.reset_every < 1:
            raise ValueError(f"reset_every must be at least 1, got {self.reset_every}")
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be at least 0, got {self.max_steps}")
        if self.minibatch < 1:
            raise ValueError(f"minibatch must be at least 1, got {self.minibatch}")
        for name, options in (("outgoing", ("reinit", "zero", "keep")), ("order", ("cycle", "random", "utility"))):
            if getattr(self, name) not in options:
                raise ValueError(f"{name} must be one of {', '.join(options)}, got {getattr(self, name)!r}")
        if not callable(self.loss) and self.loss not in ("dkl", "kl", "mse"):
            raise ValueError(f"loss must be 'dkl', 'kl', 'mse' or a function, got {self.loss!r}")

    @property
    def K(self) -> int:
        """Events in a cycle."""
        return cycle_length(self.reset_rate)

    def distance(self, teacher: Any, output: Any) -> Float[Array, " batch"]:
        """Distance d of each row's output from the teacher's."""
        if callable(self.loss):
            return self.loss(teacher, output)
        if self.loss == "dkl":
            return alpha_dkl(teacher, output, self.alpha)
        if self.loss == "kl":
            return Categorical(teacher).kl(Categorical(output))
        return ((output - teacher) ** 2).reshape(output.shape[0], -1).mean(-1)

    def init(self, params: Any) -> SBPState:
        """State before the first update; warns when a layer has fewer units than a cycle has blocks."""
        hidden = find_layers(params, self.layers)[:-1]
        if small := [layer for layer in hidden if layer.units < self.K]:
            names = ", ".join(f"{layer.name} ({layer.units})" for layer in small)
            warnings.warn(f"fewer units than the {self.K} blocks of a cycle, some are empty: {names}", stacklevel=2)
        order = tuple(jnp.arange(layer.units, dtype=jnp.int32) for layer in hidden)
        zeros = jax.tree.map(jnp.zeros_like, order)
        return SBPState(jnp.int32(0), order, zeros, zeros, jnp.int32(0), jnp.int32(0))

    def regenerate(
        self, key: Array, t: int | Int[Array, ""], state: SBPState, params: Any, apply_fn: ApplyFn, batch: Any
    ) -> tuple[SBPState, Any, Any, dict[str, Array]]:
        """One event, whatever t is: reset a block, then distil.

        Parameters
        ----------
        key : PRNG key.
        t : updates so far, kept as the renewed units' date.
        state, params : of :meth:`init`, and the network's.
        apply_fn : ``apply_fn(params, batch)`` gives the output, or (output, hidden activations).
        batch : tree of arrays (B, ...), inputs of the current training.

        Returns
        -------
        state, params, mask, info : mask of re-drawn entries; info of :func:`distill`.
        """
        order_key, reset_key, distill_key = jax.random.split(key, 3)
        ranks = self._ranks(order_key, state, params, apply_fn, batch)
        after, mask = cycle_reset(
            reset_key, params, state.index, self.K, self.initializers, self.outgoing, layers=self.layers, ranks=ranks
        )
        renewed, info = distill(
            distill_key,
            params,
            after,
            apply_fn,
            batch,
            self.distance,
            threshold=self.threshold,
            max_steps=self.max_steps,
            learning_rate=self.learning_rate,
            minibatch=self.minibatch,
            frozen=self.frozen,
        )
        blocks = [_block(rank, state.index, self.K) for rank in ranks]
        state = SBPState(
            index=(state.index + 1) % self.K,
            ranks=ranks,
            resets=tuple(n + block for n, block in zip(state.resets, blocks, strict=True)),
            renewed_at=tuple(
                jnp.where(block, jnp.int32(t), n) for n, block in zip(state.renewed_at, blocks, strict=True)
            ),
            events=state.events + 1,
            missed=state.missed + ~info["distill_converged"],
        )
        return state, renewed, mask, info

    def step(
        self,
        key: Array,
        t: int | Int[Array, ""],
        state: SBPState,
        params: Any,
        opt_state: Any,
        apply_fn: ApplyFn,
        batch: Any,
    ) -> tuple[SBPState, Any, Any, dict[str, Array]]:
        """After training update t = 1, 2, ...: an event when t is a multiple of ``reset_every``, else nothing.

        Pure and jittable. The moments of re-drawn entries in ``opt_state`` become zero; with
        :func:`icml25.p3o.per_entry_adam` their step counts, too.

        Parameters
        ----------
        key, t, state, params, apply_fn, batch : see :meth:`regenerate`.
        opt_state : of any optimiser on ``params``.

        Returns
        -------
        state, params, opt_state, info : info has ``distill_converged``, ``distill_steps``, ``distance``, and
            ``kl_after_reset`` (NaN where there was no event).
        """

        def event() -> tuple[SBPState, Any, Any, dict[str, Array]]:
            renewed_state, renewed, mask, info = self.regenerate(key, t, state, params, apply_fn, batch)
            return renewed_state, renewed, reset_moments(opt_state, mask), info

        def nothing() -> tuple[SBPState, Any, Any, dict[str, Array]]:
            shapes = jax.eval_shape(event)[3]
            return state, params, opt_state, no_event(shapes)

        return jax.lax.cond(jnp.asarray(t) % self.reset_every == 0, event, nothing)

    def _ranks(self, key: Array, state: SBPState, params: Any, apply_fn: ApplyFn, batch: Any) -> tuple[Array, ...]:
        """Places in the order of renewal: new ones at the start of a cycle, unless it is that of the indices."""
        if self.order == "cycle":
            return state.ranks
        if self.order == "random":
            keys = jax.random.split(key, len(state.ranks))
            new = tuple(
                jax.random.permutation(k, len(rank)).astype(jnp.int32)
                for k, rank in zip(keys, state.ranks, strict=True)
            )
        else:
            hidden = with_hidden(apply_fn(params, batch))[1]
            if hidden is None:
                raise TypeError("order='utility' needs apply_fn to return (output, list of hidden activations)")
            new = tuple(jnp.argsort(jnp.argsort(unit_scores(h))).astype(jnp.int32) for h in hidden)
        return jax.tree.map(lambda a, b: jnp.where(state.index == 0, a, b), new, state.ranks)


def no_event(info: dict[str, Any]) -> dict[str, Array]:
    """The info of an iteration without an event: NaN distances, no steps, converged."""
    return {
        name: jnp.full(value.shape, {"f": jnp.nan, "i": 0, "b": True}[jnp.dtype(value.dtype).kind], value.dtype)
        for name, value in info.items()
    }
