"""Algorithm 1: embed the message while text is generated."""

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from transformers import LogitsProcessor

from icml25.bimark.detector import check_integer
from icml25.bimark.prf import ContextPRF, partitions
from icml25.bimark.reweight import reweight_layers

if TYPE_CHECKING:
    from icml25.bimark.config import BiMarkConfig

__all__ = ["BiMarkLogitsProcessor"]

SPARSE_SHARE = 8  # candidates are gathered when at most |V| / 8 logits of a row are finite
_CHANCE_OF_GREEDY = math.log(1e-9)


class BiMarkLogitsProcessor(LogitsProcessor):
    """Reweights the next-token distribution so that the sampled token votes for one bit of the message.

    ``model.generate(watermarking_config=config)`` builds and places it. In a loop of your own, call it after
    temperature, top-k and top-p, with all tokens so far, and sample from the softmax of what it returns. It keeps no state
    of the rows but the length of the prompt, which it learns at the first call of a generation: rows may be
    reordered, repeated or dropped between calls. A call with a sequence that is no longer than the last one begins a new
    generation, unless it goes back inside the same texts, as assisted generation does; :meth:`reset` says so explicitly.

    Parameters
    ----------
    config : a BiMarkConfig with a message.
    vocab_size : width of the logits.
    device : where the logits are; the partitions (|V| d bytes) follow them to another device.

    Raises
    ------
    ValueError: the configuration has no message, or vocab_size is below 2. TypeError: another configuration.

    Source: Algorithm 1.
    """

    def __init__(self, config: "BiMarkConfig", vocab_size: Any, device: str | torch.device = "cpu") -> None:
        if not hasattr(type(config), "key_bytes"):
            raise TypeError(
                f"config must be a BiMarkConfig, got {type(config).__name__} (BiMarkConfig.from_dict reads one)"
            )
        if config.message is None:
            raise ValueError("config has no message to embed; it is made for detection by public()")
        config.validate()
        check_integer("vocab_size", vocab_size, 2, None)
        self.config = config
        self.vocab_size = vocab_size
        self._message = np.array([int(bit) for bit in config.message], dtype=bool)
        self._prf = ContextPRF(config.key_bytes, config.message_bits, config.n_layers)
        members = partitions(config.key_bytes, config.n_layers, vocab_size)
        self._members = torch.from_numpy(np.array(members.T, order="C")).to(device)  # (|V|, d)
        self.reset()

    def reset(self) -> None:
        """Forget the prompt's length: the next call begins a new generation."""
        self._prompt: Tensor | None = None
        self._length = 0
        self._likeliest: Tensor | None = None
        self._greedy_evidence = 0.0

    def __call__(self, input_ids: Shaped[Tensor, "..."], scores: Shaped[Tensor, "..."]) -> Float[Tensor, "batch vocab"]:
        """Return the logits of the watermarked distribution.

        Parameters
        ----------
        input_ids : (B, t) int64, prompts (left-padded) and what was generated. They are only hashed, so that a prompt may
            hold ids outside the vocabulary, as some models have for images.
        scores : (B, |V|) logits after all warpers; -inf where a token is excluded.

        Returns
        -------
        (B, |V|) log-probabilities: float64 for float64 scores, else float32. Rows that can't be watermarked (fewer than
        ``window`` tokens so far, or a context that this text has used before) come back as they are.

        Raises
        ------
        ValueError: width other than vocab_size; another number of rows; NaN or +inf; a row without a finite logit.
        TypeError: not tensors, or of another dtype.
        """
        for name, value in (("input_ids", input_ids), ("scores", scores)):
            if not isinstance(value, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        if scores.ndim != 2 or scores.shape[1] != self.vocab_size:
            raise ValueError(
                f"scores have shape {tuple(scores.shape)}, but the watermark was made for vocab_size {self.vocab_size}; "
                "expected (batch, vocab_size). Use model.config.vocab_size: it differs from len(tokenizer) where the "
                "embedding is padded"
            )
        if input_ids.ndim != 2 or len(input_ids) != len(scores):
            raise ValueError(f"input_ids have shape {tuple(input_ids.shape)}; expected ({len(scores)}, length)")
        if not scores.is_floating_point():
            raise TypeError(f"scores have dtype {scores.dtype}; expected a floating one")
        if input_ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"input_ids have dtype {input_ids.dtype}; expected int64")
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).contiguous()
        if self._members.device != scores.device:
            self._members = self._members.to(scores.device)

        candidates, logits, columns, slots = self._gather(scores)
        directions, active, invalid = self._directions(input_ids, ~logits.amax(-1).isfinite())
        if invalid:
            found = "NaN or +inf" if (scores[invalid] != -torch.inf).any() else "no finite logit"
            raise ValueError(f"scores[{invalid[0]}] has {found}; expected finite logits or -inf, one of them finite")
        if not active.any():
            self._watch_for_greedy(logits, columns)
            return scores
        probs = reweight_layers(
            logits.softmax(-1),
            self._members.T[:, None] if columns is None else self._members[columns].permute(2, 0, 1),
            torch.from_numpy(directions).to(scores.device),
            self.config.base_scale,
        )
        watermarked = torch.where(torch.from_numpy(active).to(scores.device)[:, None], probs.log(), logits)
        self._watch_for_greedy(watermarked, columns)
        if candidates is None:
            return watermarked
        out = torch.full_like(scores, -torch.inf)
        out.view(-1)[candidates] = watermarked.view(-1)[slots]
        return out

    def _gather(self, scores: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:
        """Finite logits as (B, k), where they are few: their places in the flat scores, logits, ids, and places in (B, k)."""
        batch, vocab = scores.shape
        candidates = _candidates(scores)
        rows = candidates // vocab
        counts = torch.bincount(rows, minlength=batch)
        k = int(counts.max()) if batch else 0
        if k * SPARSE_SHARE > vocab or k == 0:
            return None, scores, None, None
        slots = (
            torch.arange(len(candidates), device=scores.device)
            + (torch.arange(batch, device=scores.device) * k - (counts.cumsum(0) - counts))[rows]
        )
        logits = scores.new_full((batch, k), -torch.inf)
        logits.view(-1)[slots] = scores.reshape(-1)[candidates]
        columns = torch.zeros((batch, k), dtype=torch.int64, device=scores.device)
        columns.view(-1)[slots] = candidates - rows * vocab
        return candidates, logits, columns, slots

    def _directions(self, input_ids: Tensor, invalid: Tensor) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Directions e = m_p XOR c (B, d), which rows are watermarked (B,), and which are invalid; one copy from the device."""
        batch, length = input_ids.shape
        window = self.config.window
        prompt_length = self._prompt_length(input_ids)
        flags = [invalid, self._followed(input_ids)]
        directions = np.zeros((batch, self.config.n_layers), dtype=bool)
        if length < window:
            flags = torch.stack(flags, 1).cpu().numpy()
            return directions, np.zeros(batch, dtype=bool), np.flatnonzero(flags[:, 0]).tolist()
        context = input_ids[:, length - window :]
        first = max(prompt_length - window, 0)  # where the context of the first generated token begins
        used = torch.ones((batch, length - window - first), dtype=torch.bool, device=input_ids.device)
        for j in range(window):
            used &= input_ids[:, first + j : length - window + j] == context[:, j, None]
        active = torch.ones(batch, dtype=torch.bool, device=input_ids.device)
        if self.config.pad_token_id is not None:
            is_text = (input_ids != self.config.pad_token_id).cumsum(1) > 0
            used &= is_text[:, first : length - window]
            active = is_text[:, length - window]
        active = active & ~used.any(1)
        facts = torch.cat([context, torch.stack([active.to(invalid.device), *flags], 1).to(context)], 1).cpu().numpy()
        active, invalid_rows, followed = (facts[:, window + i].astype(bool) for i in range(3))
        if self._likeliest is not None and not followed.all():
            self._greedy_evidence = math.inf  # sampled for sure: no more need to watch
        rows = np.flatnonzero(active)
        contexts = np.ascontiguousarray(facts[rows, :window], dtype="<i8")
        if len(rows):
            position, mask = self._prf([row.tobytes() for row in contexts])
            directions[rows] = self._message[position, None] ^ mask
        return directions, active, np.flatnonzero(invalid_rows).tolist()

    def _prompt_length(self, input_ids: Tensor) -> int:
        """Length of the prompt, learned at the first call of a generation."""
        length = input_ids.shape[1]
        if self._prompt is not None:
            start = self._prompt.shape[1]
            known = self._prompt.to(input_ids.device)
            if length <= self._length:  # assisted generation goes back, inside the same rows
                again = length > start and len(input_ids) == len(known) and torch.equal(input_ids[:, :start], known)
            else:  # rows may have been reordered, repeated or dropped, but each began as one of them
                again = bool(torch.isin(_fingerprints(input_ids[:, :start]), _fingerprints(known)).all())
            if not again:
                self.reset()
        if self._prompt is None:
            self._prompt = input_ids.clone()
        self._length = length
        return self._prompt.shape[1]

    def _followed(self, input_ids: Tensor) -> Tensor:
        """Whether each row went on with the token that was most likely."""
        if self._likeliest is None or len(self._likeliest) != len(input_ids):
            self._likeliest = None
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        return self._likeliest.to(input_ids.device) == input_ids[:, -1]

    def _watch_for_greedy(self, log_probs: Tensor, columns: Tensor | None) -> None:
        """Warn when all tokens so far were the most likely ones, against odds of 1e9 if they were sampled."""
        if self._greedy_evidence == math.inf:
            self._likeliest = None
            return
        best, slot = log_probs.log_softmax(-1).max(-1)
        self._likeliest = slot if columns is None else columns.gather(1, slot[:, None])[:, 0]
        if self._greedy_evidence < _CHANCE_OF_GREEDY:
            warnings.warn(
                "each token so far was the most likely one: greedy decoding of a watermark is biased, and repeats "
                "itself; use do_sample=True",
                UserWarning,
                stacklevel=3,
            )
            self._greedy_evidence = math.inf
            return
        self._greedy_evidence += float(best.sum())


def _fingerprints(ids: Tensor) -> Tensor:
    """A number (B,) for each row."""
    weights = torch.randint(2**62, (ids.shape[1],), generator=torch.Generator().manual_seed(0))
    return (ids * weights.to(ids.device)).sum(1)


def _candidates(scores: Tensor) -> Tensor:
    """Places in the flat scores of what isn't -inf (NaN is not either). On a CPU NumPy is several times faster."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(scores.detach().numpy() != -np.inf))
    return (scores.reshape(-1) != -torch.inf).nonzero()[:, 0]
