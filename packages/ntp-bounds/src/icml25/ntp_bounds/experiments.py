"""Train small decoders and measure the gap between test and train loss; search for a class's complexity from below."""

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from icml25.ntp_bounds.checks import check_integer, check_number
from icml25.ntp_bounds.models import Decoder
from icml25.ntp_bounds.rademacher import Estimate
from icml25.ntp_bounds.sources import batches, prose, windows
from icml25.ntp_bounds.spec import DecoderSpec

IGNORED = -100
EVERY = 100  # steps from one checkpoint to the next


@dataclass(frozen=True)
class GapRecord:
    """Losses of the final weights in nats per token, ``gap`` = test - train, parameters, tokens seen in training, data."""

    train: float
    test: float
    gap: float
    n_params: int
    tokens: int
    data: str


def check_sequences(sequences: Any, vocab: int, name: str, pad: int | None = None) -> Tensor:
    """Token sequences (n, m + 1) as int64; each must have a token to predict."""
    array = np.asarray(sequences)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    if array.ndim != 2 or len(array) == 0 or array.shape[1] < 2:
        raise ValueError(f"{name} must be (n, m + 1) with n >= 1 and m >= 1, got shape {array.shape}")
    if array.min() < 0 or array.max() >= vocab:
        raise ValueError(f"{name} must be in 0..{vocab - 1}, got {array.min()} to {array.max()}")
    if pad is not None and (empty := np.flatnonzero((array[:, 1:] == pad).all(1))).size:
        raise ValueError(f"{name} has nothing but padding to predict in row {empty[0]}")
    return torch.tensor(array, dtype=torch.int64)


def token_losses(model: Any, sequences: Tensor, pad: int | None = None) -> Float[Tensor, "n m"]:
    """Cross entropy of each next token, 0 where it is padding."""
    targets = sequences[:, 1:] if pad is None else sequences[:, 1:].masked_fill(sequences[:, 1:] == pad, IGNORED)
    return cross_entropy(model(sequences[:, :-1]).mT, targets, reduction="none", ignore_index=IGNORED)


@torch.no_grad()
def sequence_losses(model: Any, sequences: Tensor, pad: int | None = None) -> Float[np.ndarray, "n m"]:
    """The same for many sequences, in evaluation mode; the model's mode is restored."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    rows = max(1, 2**14 // sequences.shape[1])
    losses = [token_losses(model, batch.to(device), pad).cpu() for batch in sequences.split(rows)]
    model.train(training)
    return torch.cat(losses).double().numpy()


def mean_loss(model: Any, sequences: Tensor, pad: int | None = None) -> float:
    """Total loss / total tokens (a mean of batches' means would weight short sequences more)."""
    total = sequence_losses(model, sequences, pad).sum()
    counted = sequences[:, 1:].numel() if pad is None else int((sequences[:, 1:] != pad).sum())
    return float(total / counted)


def train(
    model: Any,
    sequences: Tensor,
    *,
    steps: int = 400,
    batch_size: int = 16,
    lr: float | int = 3e-3,
    pad: int | None = None,
    seed: int = 0,
    callback: Callable[[int, float], Any] | None = None,
    checkpoint: str | Path | None = None,
) -> int:
    """AdamW without weight decay on the mean loss of a token, in place; the model is left in training mode.

    Parameters
    ----------
    model : tokens (b, m) -> logits (b, m, v).
    sequences : (n, m + 1).
    steps, batch_size, lr : of the optimiser; batches run through shuffled epochs.
    pad : token that is never a target.
    seed : of the order.
    callback : called with (step, loss of the batch) after each step; returning True stops.
    checkpoint : file (npz) of weights, optimiser and step, written every 100 steps and at the end. If it is there, training
        goes on from it, and ends as it would have without the stop (if the model has no randomness of its own).

    Returns
    -------
    Steps taken, with those before the checkpoint.

    Raises
    ------
    ValueError: an impossible number, or a checkpoint that can't be read or is of other settings, data or model.
    """
    steps, batch_size, seed = (
        check_integer(value, name, least)
        for name, value, least in (("steps", steps, 0), ("batch_size", batch_size, 1), ("seed", seed, 0))
    )
    if (
        not isinstance(sequences, Tensor)
        or sequences.dtype is not torch.int64
        or sequences.ndim != 2
        or not len(sequences)
    ):
        raise ValueError(f"sequences must be an int64 tensor (n, m + 1) with n >= 1, got {sequences!r}")
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=check_number(lr, "lr", 0), weight_decay=0.0)
    order = batches(len(sequences), batch_size, np.random.default_rng([seed, 2]))
    settings = {"model": repr(model), "batch_size": batch_size, "lr": float(lr), "pad": pad, "seed": seed}
    start = 0
    if checkpoint is not None:
        settings["sequences"] = hashlib.sha256(sequences.cpu().numpy().tobytes()).hexdigest()
        start = _restore(checkpoint, model, optimizer, settings, steps)
    model.train()
    for step, rows in zip(range(start, steps), islice(order, start, None), strict=False):
        batch = sequences[torch.from_numpy(rows)].to(device)
        counted = batch[:, 1:].numel() if pad is None else (batch[:, 1:] != pad).sum()
        loss = token_losses(model, batch, pad).sum() / counted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stop = callback is not None and callback(step, loss.item())
        if checkpoint is not None and (stop or step + 1 == steps or (step + 1) % EVERY == 0):
            _store(checkpoint, model, optimizer, settings, step + 1)
        if stop:
            return step + 1
    return steps


def _store(file: str | Path, model: Any, optimizer: Any, settings: Mapping[str, Any], step: int) -> None:
    """Write a checkpoint; an earlier one stays until this one is whole."""
    arrays = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        arrays |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    # numpy has no bfloat16, and float32 holds all of its values
    found = {name: (x.float() if x.dtype is torch.bfloat16 else x).cpu().numpy() for name, x in arrays.items()}
    partial = Path(f"{file}.partial")
    with partial.open("wb") as handle:
        np.savez(handle, settings=json.dumps(dict(settings) | {"step": step}), **found)
    partial.replace(file)


def _restore(file: str | Path, model: Any, optimizer: Any, settings: Mapping[str, Any], steps: int) -> int:
    """Load a checkpoint if there is one; steps that were taken."""
    if not Path(file).exists():
        return 0
    try:
        with Path(file).open("rb") as handle, np.load(handle, allow_pickle=False) as content:
            arrays = {name: torch.from_numpy(content[name]) for name in content.files if name != "settings"}
            found = json.loads(str(content["settings"]))
        step = found.pop("step")
    except (OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"checkpoint {file} can't be read: {error}") from error
    if other := [name for name, value in settings.items() if found.get(name) != value]:
        raise ValueError(
            f"checkpoint {file} is of another run: {other[0]} was {found.get(other[0])}, not {settings[other[0]]}"
        )
    if step > steps:
        raise ValueError(f"checkpoint {file} is of {step} steps, more than steps={steps}")
    model.load_state_dict({name.removeprefix("model."): x for name, x in arrays.items() if name.startswith("model.")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in arrays.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return step


def measure_gap(
    n_sequences: int = 128,
    seq_len: int = 32,
    dim: int = 32,
    n_layers: int = 1,
    *,
    heads: int = 2,
    ffn_dim: int | None = None,
    data: tuple[Any, Any] | None = None,
    vocab: int | None = None,
    pad: int | None = None,
    n_test: int = 256,
    steps: int = 400,
    batch_size: int = 16,
    lr: float | int = 3e-3,
    norm: str = "rmsnorm",
    pre_norm: bool = True,
    seed: int = 0,
    device: Any = None,
    callback: Callable[[int, float], Any] | None = None,
    checkpoint: str | Path | None = None,
) -> GapRecord:
    """Train a decoder on N sequences and compare its loss on them with that on others of the same source.

    Both in evaluation mode, with the final weights.

    Parameters
    ----------
    n_sequences, seq_len : N and m; the training set has N sequences of m + 1 tokens.
    dim, n_layers, heads, ffn_dim : sizes; ffn_dim None is 4 dim.
    data : (train, test), each a text (tokens,), of which windows are taken at random, or sequences (n, m + 1), of which the
        first N and the first ``n_test`` are taken; None: ``sources.prose()``.
    vocab : size of the vocabulary, needed with ``data``.
    pad : a token that is masked as a target.
    n_test : sequences of the test set.
    steps, batch_size, lr : of training, AdamW without weight decay.
    norm, pre_norm : of the decoder; by default the block that is used in practice.
    seed : of windows, weights and order.
    device : of torch; None is the CPU.
    callback, checkpoint : as for ``train``.

    Raises
    ------
    ValueError: sizes that don't fit, or a sequence that is all padding.
    """
    for name, value in (("n_sequences", n_sequences), ("seq_len", seq_len), ("n_test", n_test), ("dim", dim)):
        check_integer(value, name)
    check_integer(seed, "seed", 0)
    source = "given"
    if data is None:
        corpus = prose()
        data, vocab, source = (corpus.train, corpus.test), corpus.vocab, corpus.source
    if vocab is None:
        raise ValueError("vocab must be given with data")
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ValueError(f"data must be a pair (train, test), got {data!r}")
    vocab = check_integer(vocab, "vocab", 2)
    if pad is not None and check_integer(pad, "pad", 0) >= vocab:
        raise ValueError(f"pad must be below vocab={vocab}, got {pad}")
    train_set, test_set = (
        check_sequences(_take(part, count, seq_len + 1, name, np.random.default_rng([seed, stream])), vocab, name, pad)
        for stream, (part, count, name) in enumerate(zip(data, (n_sequences, n_test), ("train", "test"), strict=True))
    )
    model = Decoder(
        vocab,
        dim,
        heads,
        4 * dim if ffn_dim is None else ffn_dim,
        n_layers,
        seq_len,
        norm=norm,
        pre_norm=pre_norm,
        seed=seed,
    ).to(device)
    options = {"steps": steps, "batch_size": batch_size, "lr": lr, "pad": pad, "seed": seed}
    taken = train(model, train_set, **options, callback=callback, checkpoint=checkpoint)
    losses = mean_loss(model, train_set, pad), mean_loss(model, test_set, pad)
    if not np.isfinite(losses).all():
        raise ValueError(f"training diverged with lr={lr}: losses are {losses}")
    n_params = sum(parameter.numel() for parameter in model.parameters())
    tokens = taken * min(batch_size, n_sequences) * seq_len
    return GapRecord(*losses, losses[1] - losses[0], n_params, tokens, source)


def rademacher_lower(
    model: Decoder,
    tokens: Any,
    *,
    spec: DecoderSpec | None = None,
    n_signs: int = 4,
    restarts: int = 2,
    steps: int = 30,
    lr: float | int = 0.05,
    seed: int = 0,
) -> Estimate:
    """A lower estimate of the class's Rademacher complexity: (1/n) sum_i sigma_i loss_i, driven up inside the norm balls.

    Adam, with a projection after each step. The losses of sequences are means over their tokens.

    Parameters
    ----------
    model : gives the sizes; its weights are left as they are.
    tokens : sequences (n, m + 1).
    spec : the norm balls; None takes those of the model's weights.
    n_signs : sign vectors.
    restarts : searches for each, the first one from the model's weights and the others from random ones.
    steps, lr : of a search.
    seed : of signs and weights.

    Returns
    -------
    value, se : mean over signs of the best that was found, and its standard error over signs.
    """
    spec = DecoderSpec.from_torch(model) if spec is None else spec
    if not isinstance(spec, DecoderSpec):
        raise TypeError(f"spec must be a DecoderSpec, got {spec!r}")
    sequences = check_sequences(tokens, model.shell.vocab, "tokens")
    if sequences.shape[1] - 1 > model.shell.seq_len or spec.shapes != model.shell.shapes:
        raise ValueError(f"tokens and spec must be of the model's sizes, {model.shell.shapes}")
    rng = np.random.default_rng(check_integer(seed, "seed", 0))
    signs = torch.tensor(rng.choice([-1.0, 1.0], (check_integer(n_signs, "n_signs", 2), len(sequences))))
    best = []
    for row in signs.float():
        found = []
        for restart in range(check_integer(restarts, "restarts")):
            start = None if restart == 0 else int(rng.integers(2**31))
            found.append(ascend(model, sequences, row / len(row), spec, start=start, steps=steps, lr=lr))
        best.append(max(found))
    return Estimate(float(np.mean(best)), float(np.std(best, ddof=1) / np.sqrt(len(best))))


def ascend(
    model: Decoder,
    sequences: Tensor,
    weights: Float[Tensor, " n"],
    spec: DecoderSpec,
    *,
    start: int | None = None,
    steps: int = 30,
    lr: float | int = 0.05,
) -> float:
    """The largest sum_i weights_i loss_i met on the way of one search, all of whose points lie in the class.

    Signs / n as weights give a Rademacher average, probabilities less frequencies the gap between risk and empirical risk.

    Parameters
    ----------
    model : gives the sizes; its weights are left as they are.
    sequences : (n, m + 1). The losses are means over their tokens.
    weights : of the sequences; only their direction matters for the way that is taken.
    spec : the norm balls.
    start : None begins at the model's weights, else the seed of random ones.
    steps, lr : of Adam, with a projection after each step.
    """
    shell, scale = model.shell, float(weights.abs().sum().clamp(min=1e-30))
    sizes = (shell.vocab, shell.dim, shell.heads, shell.ffn_dim, shell.n_layers, shell.seq_len)
    options = {name: getattr(shell, name) for name in ("mask", "b_x", "norm", "pre_norm", "rms_eps")}
    other = Decoder(*sizes, seed=start or 0, **options)
    if start is None:
        other.load_state_dict(model.state_dict())
    matrices = {name: other.get_parameter(f"{path}.weight") for name, path in other.paths.items()}
    _project(matrices, spec)
    optimizer = torch.optim.Adam(other.parameters(), lr=check_number(lr, "lr", 0), maximize=True)
    best = -np.inf
    for _ in range(check_integer(steps, "steps", 0) + 1):
        correlation = (weights / scale * token_losses(other, sequences).mean(1)).sum()
        best = max(best, scale * correlation.item())
        optimizer.zero_grad()
        correlation.backward()
        optimizer.step()
        _project(matrices, spec)
    return best


@torch.no_grad()
def _project(matrices: Mapping[str, Tensor], spec: DecoderSpec) -> None:
    """Singular values clipped at op, then the matrix scaled down to fro."""
    for name, W in matrices.items():
        op, fro = spec.norms[name]
        U, s, V = torch.linalg.svd(W, full_matrices=False)
        s = s.clamp(max=op)
        W.copy_((U * (s * min(1.0, fro / max(float(s.norm()), 1e-30)))) @ V)


def _take(part: Any, count: int, length: int, name: str, rng: np.random.Generator) -> Any:
    """Windows of a text, or the first of the sequences given."""
    array = np.asarray(part)
    if array.ndim == 1:
        return windows(array, count, length, rng)
    if array.ndim != 2 or array.shape[1] != length or len(array) < count:
        raise ValueError(f"{name} must be a text, or {count} sequences of {length} tokens; got shape {array.shape}")
    return array[:count]
