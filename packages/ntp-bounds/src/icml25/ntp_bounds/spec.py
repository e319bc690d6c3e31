"""The class of decoders that a bound speaks of: sizes, mask, normalisation and a norm ball per matrix."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from icml25.ntp_bounds.checks import check_choice, check_flag, check_integer, check_number


class MatrixNorms(NamedTuple):
    """Bounds on a matrix: spectral norm ``op`` and Frobenius norm ``fro``."""

    op: float
    fro: float


class MaskStats(NamedTuple):
    """Ones of the mask: ``nnz`` in all, ``r`` at most in a row, ``c`` at most in a column."""

    nnz: int
    r: int
    c: int


@dataclass(frozen=True, eq=False)
class DecoderSpec:
    """All decoders of these sizes whose matrices lie in these norm balls.

    ``X_0 = Pi(E[tokens] + Pos)``; per layer ``X <- Pi(X + MHA(X))``, ``X <- Pi(X + relu(X W1) W2)``; ``logits = X W_out``.
    ``MHA`` puts ``A_h X V_h`` of all heads side by side, times ``O``; ``A_h = softmax_row(X Q_h (X K_h)^T / sqrt(d_k))``
    where the mask is 1. ``Pi`` projects each row on the ball of radius ``b_x``.

    Parameters
    ----------
    vocab, dim, heads, ffn_dim, n_layers, seq_len : sizes v, d, H, width of W1, L, m (tokens that are read).
    norms : ``MatrixNorms`` or a pair (op, fro) for all matrices, or a dict of them by name: "embedding", "positions",
        "0.Q", "0.K", "0.V", "0.O", "0.W1", "0.W2", "1.Q", ..., "W_out". A key without the layer ("Q") stands for all layers.
    mask : "causal", "full", ("window", w): the last w tokens, or a binary matrix (m, m).
    b_x : radius of the projection.
    norm : "project", or "rmsnorm" with the constant gain ``gain`` (rows of norm at most gain sqrt(d), Lipschitz constant
        gain / sqrt(rms_eps): valid and hugely loose, as a warning says where constants are computed).
    pre_norm : ``X <- X + MHA(Pi(X))`` and so on, and ``logits = Pi(X) W_out``, as most models have it.
    gated : SwiGLU, ``(silu(X W1) * (X W3)) W2``, in place of relu.
    kv_heads : heads of K and V (grouped-query attention); None: as many as ``heads``.
    tied : W_out is the transposed embedding. One matrix, named "W_out", which counts once and acts twice.
    positions : whether positions are learned; without (rotary ones) there is no matrix for them.
    gain, rms_eps : of "rmsnorm".
    notes : what is to be known of the numbers, such as norms that are estimates.

    Raises
    ------
    ValueError: a size, a norm or the mask is impossible; the message names it.
    """

    vocab: int
    dim: int
    heads: int
    ffn_dim: int
    n_layers: int
    seq_len: int
    norms: Any
    mask: Any = "causal"
    b_x: float | int = 1.0
    norm: str = "project"
    pre_norm: bool = False
    gated: bool = False
    kv_heads: int | None = None
    tied: bool = False
    positions: bool = True
    gain: float | int = 1.0
    rms_eps: float | int = 1e-6
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocab", "dim", "heads", "ffn_dim", "n_layers", "seq_len"):
            object.__setattr__(self, name, check_integer(getattr(self, name), name, 2 if name == "vocab" else 1))
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        object.__setattr__(self, "kv_heads", check_integer(self.kv_heads, "kv_heads"))
        if self.dim % self.heads or self.heads % self.group_heads:
            raise ValueError(
                f"heads must divide dim, and kv_heads heads; got dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}"
            )
        for name in ("b_x", "gain", "rms_eps"):
            object.__setattr__(self, name, check_number(getattr(self, name), name, 0))
        for name in ("pre_norm", "gated", "tied", "positions"):
            object.__setattr__(self, name, check_flag(getattr(self, name), name))
        check_choice(self.norm, "norm", ("project", "rmsnorm"))
        object.__setattr__(self, "mask", _check_mask(self.mask, self.seq_len))
        object.__setattr__(self, "norms", self._check_norms(self.norms))

    @classmethod
    def random(
        cls,
        vocab: int = 64,
        dim: int = 16,
        heads: int = 2,
        ffn_dim: int = 32,
        n_layers: int = 2,
        seq_len: int = 16,
        *,
        scale: float | int = 1.0,
        seed: int = 0,
        **options: Any,
    ) -> "DecoderSpec":
        """The norms of Gaussian matrices, of standard deviation scale / sqrt(rows); ``options`` as for the class."""
        shell = cls(vocab, dim, heads, ffn_dim, n_layers, seq_len, norms=(1.0, 1.0), **options)
        rng, scale = np.random.default_rng(check_integer(seed, "seed", 0)), check_number(scale, "scale", 0, closed=True)
        norms = {}
        for name, (rows, columns) in shell.shapes.items():
            singular = np.linalg.svd(rng.standard_normal((rows, columns)) * scale / math.sqrt(rows), compute_uv=False)
            norms[name] = MatrixNorms(float(singular[0]), float(np.linalg.norm(singular)))
        return replace(shell, norms=norms)

    @classmethod
    def from_torch(cls, model: Any, seq_len: int | None = None, mask: Any = None) -> "DecoderSpec":
        """Sizes and norms of a ``models.Decoder``.

        Norms that are measured on a trained model make a class that was chosen after the data: fix larger ones
        beforehand for a bound in earnest.

        Parameters
        ----------
        model : the decoder.
        seq_len : tokens read, at most the model's; None takes those.
        mask : None takes the model's; anything else must be the same mask.

        Raises
        ------
        NotImplementedError: another kind of model, or one with parts added; the message names it.
        """
        from icml25.ntp_bounds.adapters import decoder_spec

        return decoder_spec(model, seq_len, mask)

    @classmethod
    def from_hf(cls, model: Any, seq_len: int) -> "DecoderSpec":
        """Sizes and norms of a transformers Llama or Mistral ``...ForCausalLM``.

        The gains of its norms are folded into the matrices that follow. Rotary positions are isometries, so they have
        no part in the constants.

        Parameters
        ----------
        model : the language model.
        seq_len : tokens read.

        Raises
        ------
        NotImplementedError: a part that isn't understood (experts, biases, other norms, ...); the message names it.
        """
        from icml25.ntp_bounds.adapters import llama_spec

        return llama_spec(model, seq_len)

    @property
    def group_heads(self) -> int:
        """Heads of K and V."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def layer_shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes of one layer's matrices by name, without the layer."""
        d, kv = self.dim, self.dim // self.heads * self.group_heads
        shapes = {"Q": (d, d), "K": (d, kv), "V": (d, kv), "O": (d, d), "W1": (d, self.ffn_dim)}
        if self.gated:
            shapes["W3"] = (d, self.ffn_dim)
        return shapes | {"W2": (self.ffn_dim, d)}

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Shapes of all matrices by name, from the input to the output."""
        shapes = {} if self.tied else {"embedding": (self.vocab, self.dim)}
        if self.positions:
            shapes["positions"] = (self.seq_len, self.dim)
        for layer in range(self.n_layers):
            shapes |= {f"{layer}.{name}": shape for name, shape in self.layer_shapes.items()}
        return shapes | {"W_out": (self.dim, self.vocab)}

    @property
    def n_params(self) -> int:
        """Theta, the number of parameters."""
        return sum(rows * columns for rows, columns in self.shapes.values())

    @property
    def mask_matrix(self) -> Bool[np.ndarray, "m m"]:
        """M, True where row t may attend."""
        if isinstance(self.mask, np.ndarray):
            return self.mask
        distance = np.subtract.outer(np.arange(self.seq_len), np.arange(self.seq_len))
        if self.mask == "full":
            return np.ones_like(distance, dtype=bool)
        return (distance >= 0) & (distance < self.window)

    @property
    def mask_stats(self) -> MaskStats:
        """Ones of the mask: in all, at most in a row, at most in a column."""
        m, w = self.seq_len, self.window
        if isinstance(self.mask, np.ndarray):
            return MaskStats(int(self.mask.sum()), int(self.mask.sum(1).max()), int(self.mask.sum(0).max()))
        if self.mask == "full":
            return MaskStats(m * m, m, m)
        return MaskStats(w * (w + 1) // 2 + (m - w) * w, w, w)

    @property
    def window(self) -> int:
        """Tokens that one layer sees back to, its own included; m where it sees ahead."""
        if isinstance(self.mask, tuple):
            return min(self.mask[1], self.seq_len)
        if isinstance(self.mask, np.ndarray):
            rows, columns = np.nonzero(self.mask)
            return self.seq_len if (columns > rows).any() else int((rows - columns).max()) + 1
        return self.seq_len

    @property
    def row_bound(self) -> float:
        """B_x, the largest norm of a row after the normalisation."""
        return float(self.b_x) if self.norm == "project" else self.gain * math.sqrt(self.dim)

    @property
    def norm_lipschitz(self) -> float:
        """Lipschitz constant of the normalisation."""
        return 1.0 if self.norm == "project" else self.gain / math.sqrt(self.rms_eps)

    @property
    def loss_range(self) -> float:
        """B_l = log v + 2 B_W_out B_x, the largest cross entropy of a token."""
        return math.log(self.vocab) + 2 * self.norms["W_out"].op * self.row_bound

    def resized(self, dim: int | None = None, seq_len: int | None = None) -> "DecoderSpec":
        """Another width (``ffn_dim`` in proportion) or length.

        Spectral norms stay, Frobenius norms grow with the square root of the matrix's smaller side.
        """
        dim = self.dim if dim is None else check_integer(dim, "dim")
        seq_len = self.seq_len if seq_len is None else check_integer(seq_len, "seq_len")
        if isinstance(self.mask, np.ndarray) and seq_len != self.seq_len:
            raise ValueError(f"a mask given as a matrix fixes seq_len={self.seq_len}, so it can't become {seq_len}")
        sizes = {"dim": dim, "ffn_dim": max(1, round(self.ffn_dim * dim / self.dim)), "seq_len": seq_len}
        shapes = replace(self, norms=(1.0, 1.0), **sizes).shapes
        norms = {
            name: MatrixNorms(op, fro * math.sqrt(min(shapes[name]) / min(self.shapes[name])))
            for name, (op, fro) in self.norms.items()
        }
        return replace(self, norms={name: (op, max(op, fro)) for name, (op, fro) in norms.items()}, **sizes)

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        content = {f.name: getattr(self, f.name) for f in fields(self)}
        if isinstance(self.mask, np.ndarray):
            content["mask"] = self.mask.astype(int).tolist()
        Path(path).write_text(json.dumps(content))

    @classmethod
    def load(cls, path: str | Path) -> "DecoderSpec":
        """Read what ``save`` wrote.

        Raises
        ------
        ValueError: the file is cut off or holds something else; the message names it.
        """
        text = Path(path).read_bytes()
        try:
            content = json.loads(text)
            if isinstance(content["mask"], list):
                window = content["mask"][0] == "window"
                content["mask"] = tuple(content["mask"]) if window else np.array(content["mask"])
            return cls(**content | {"notes": tuple(content["notes"])})
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{path} is no DecoderSpec that save wrote: {type(error).__name__}: {error}") from error

    def _check_norms(self, norms: Any) -> dict[str, MatrixNorms]:
        shapes = self.shapes
        if not isinstance(norms, Mapping):
            norms = dict.fromkeys(shapes, norms)
        known = {*shapes, *self.layer_shapes}
        if unknown := sorted(set(norms) - known):
            raise ValueError(f"norms has {unknown[0]!r}, which is no matrix; expected names among {', '.join(shapes)}")
        checked = {}
        for name, shape in shapes.items():
            pair = norms.get(name, norms.get(name.partition(".")[2]))
            if pair is None:
                raise ValueError(f"norms has no entry for {name}")
            try:
                op, fro = (check_number(value, f"a norm of {name}", 0, closed=True) for value in pair)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"norms of {name} must be two finite numbers (op, fro), got {pair!r}: {error}"
                ) from None
            if not op <= fro * (1 + 1e-9):
                raise ValueError(f"norms of {name}: op={op:g} must be at most fro={fro:g}")
            if not fro <= math.sqrt(min(shape)) * op * (1 + 1e-9):
                raise ValueError(
                    f"norms of {name}: fro={fro:g} must be at most sqrt({min(shape)}) op={math.sqrt(min(shape)) * op:g}"
                )
            checked[name] = MatrixNorms(op, fro)
        return checked


def _check_mask(mask: Any, m: int) -> Any:
    """The mask as a name, ("window", w) or a boolean matrix."""
    if isinstance(mask, str):
        return check_choice(mask, "mask", ("causal", "full"))
    if isinstance(mask, tuple) and len(mask) == 2 and mask[0] == "window":
        return "window", check_integer(mask[1], "the mask's window")
    array = np.asarray(mask)
    if array.dtype.kind not in "biuf" or array.shape != (m, m) or not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"mask must be 'causal', 'full', ('window', w) or a binary matrix ({m}, {m}), "
            f"got dtype {array.dtype} of shape {array.shape}"
        )
    array = array.astype(bool)
    if empty := np.flatnonzero(~array.any(1)).tolist():
        raise ValueError(f"mask has no 1 in row {empty[0]}: the softmax of nothing")
    array.setflags(write=False)
    return array
