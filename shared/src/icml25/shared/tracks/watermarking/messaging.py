"""What every watermark does on the problem "message": write with a language model, read from the tokens alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from icml25.shared.protocols.watermark_message import cells, context_rows, pile

__all__ = ["HubLM", "LanguageModel", "Reading", "Scheme", "TableLM", "generate", "measure_messages", "read", "write"]

Reading = tuple[np.ndarray | None, np.ndarray, np.ndarray | None]
PROMPT_TOKENS = 30
TIMED_SEQUENCES, TIMED_TOKENS = 10, 50
LAYERS_TOKENS = 100


class Scheme:
    """One watermark; a subclass says how it writes and reads.

    Attributes
    ----------
    multi_bit : whether it carries messages. Others write only the last cell.
    sequences : at most so many are written per cell, by schemes that take long.
    layers : further numbers of layers to write the cell of 16 bits with; :meth:`with_layers` makes such a scheme.
    bias_contexts : at most so many contexts are averaged over; 0 leaves that out.
    null_texts : at most so many texts without a watermark are read.
    """

    multi_bit = True
    sequences = 10**9
    layers: tuple[int, ...] = ()
    bias_contexts = 256
    null_texts = 1000

    def with_layers(self, n_layers: int) -> Scheme:
        """The same scheme with another number of layers."""
        raise NotImplementedError

    def config(self, key: str, message: str) -> Any:
        """A watermarking configuration for ``generate``, or None."""
        raise NotImplementedError

    def reader(self, key: str, bits: int, vocab_size: int) -> Callable[[Sequence[np.ndarray]], Reading] | None:
        """A function from texts to bits (n, bits) or None, p-values (n,) and z-scores or None; or None."""
        raise NotImplementedError


class LanguageModel(Protocol):
    """What a watermark writes with."""

    vocab_size: int

    def sample(self, rows: slice, tokens: int, config: Any) -> np.ndarray:
        """Sample (n, tokens) ids after some of the prompts, under a watermarking configuration or None."""
        ...

    def score(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """What the protocol can't compute itself: log_probs and expected_log_probs (n, T), or nothing."""
        ...


class TableLM:
    """The synthetic model: logits are a row of a table, picked by the last two tokens, of which the top k are sampled.

    A watermark gets the scores that ``generate`` would give it (-inf outside the top k); tokens are then drawn among the
    candidates, so that the vocabulary costs little.

    Parameters
    ----------
    table : (rows, vocab) float32 logits, as ``watermark_message.draw`` gives them.
    prompts : (n, 2) token ids.
    top_k : number of candidates.
    """

    def __init__(self, table: np.ndarray, prompts: np.ndarray, top_k: int) -> None:
        self.vocab_size = table.shape[1]
        self.prompts = torch.from_numpy(prompts)
        self.logits, self.candidates = torch.from_numpy(table).topk(top_k)

    def sample(self, rows: slice, tokens: int, config: Any) -> np.ndarray:
        """Sample (n, tokens) ids after some of the prompts."""
        processor = None if config is None else config.construct_processor(self.vocab_size, "cpu")
        ids = torch.nn.functional.pad(self.prompts[rows], (0, tokens))
        scores = torch.empty(len(ids), self.vocab_size)
        for t in range(2, ids.shape[1]):
            row = context_rows(ids[:, t - 2], ids[:, t - 1], len(self.logits))
            logits, candidates = self.logits[row], self.candidates[row]
            if processor is not None:
                scores.fill_(-torch.inf).scatter_(1, candidates, logits)
                logits = processor(ids[:, :t], scores).gather(1, candidates)
            chosen = torch.multinomial(logits.softmax(-1), 1)
            ids[:, t] = candidates.gather(1, chosen)[:, 0]
        return ids[:, 2:].numpy()

    def score(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Nothing: the protocol knows the table."""
        return {}


class HubLM:
    """A causal language model of transformers.

    Parameters
    ----------
    model, tokenizer : the tokenizer pads on the left.
    prompts : (n,) texts, of which the first 30 tokens are kept.
    top_k : number of candidates.
    """

    def __init__(self, model: Any, tokenizer: Any, prompts: np.ndarray, top_k: int) -> None:
        batch = tokenizer(
            prompts.tolist(), truncation=True, max_length=PROMPT_TOKENS, padding=True, return_tensors="pt"
        )
        self.vocab_size = model.config.vocab_size
        self.model, self.top_k = model, top_k
        self.prompts, self.mask = batch["input_ids"], batch["attention_mask"]

    def sample(self, rows: slice, tokens: int, config: Any) -> np.ndarray:
        """Sample (n, tokens) ids after some of the prompts."""
        return generate(self.model, self.prompts[rows], self.mask[rows], tokens, config, self.top_k)

    @torch.no_grad()
    def score(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Log-probability of each token without watermark, and its mean if that token were sampled from the top k."""
        scored, expected = [], []
        for start in range(0, len(tokens), 8):
            rows = slice(start, min(start + 8, len(tokens)))
            new = torch.from_numpy(tokens[rows])
            text = torch.cat([self.prompts[rows], new], 1)
            seen = torch.cat([self.mask[rows], torch.ones_like(new)], 1)
            positions = (seen.cumsum(1) - 1).clamp_min(0)
            logits = self.model(input_ids=text, attention_mask=seen, position_ids=positions).logits
            log_probs = logits[:, self.prompts.shape[1] - 1 : -1].float().log_softmax(-1)
            scored.append(log_probs.gather(-1, new[..., None])[..., 0])
            top = log_probs.topk(self.top_k, dim=-1).values
            expected.append((top.softmax(-1) * top).sum(-1))
        return {"log_probs": torch.cat(scored).numpy(), "expected_log_probs": torch.cat(expected).numpy()}


def generate(model: Any, prompts: torch.Tensor, mask: torch.Tensor, tokens: int, config: Any, top_k: int) -> np.ndarray:
    """Sample (n, tokens) ids after the prompts with transformers' own loop."""
    out = model.generate(
        input_ids=prompts,
        attention_mask=mask,
        do_sample=True,
        top_k=top_k,
        top_p=1.0,
        temperature=1.0,
        repetition_penalty=1.0,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        eos_token_id=None,
        pad_token_id=0,
        watermarking_config=config,
    )
    return out[:, prompts.shape[1] :].numpy()


def measure_messages(
    arrays: dict[str, np.ndarray], params: dict[str, Any], make_scheme: Callable[[], Scheme]
) -> dict[str, Any]:
    """Write all cells; then another scheme object reads the pile that the protocol makes of them, which has no message."""
    torch.manual_seed(params["seed"])
    if params["model"] == "synthetic":
        torch.set_num_threads(1)  # its steps are too small to share
        model: LanguageModel = TableLM(arrays["table"], arrays["prompts"], params["top_k"])
    else:
        from icml25.shared.tracks.watermarking.language_models import load_smollm2

        model = HubLM(*load_smollm2("bfloat16"), arrays["prompts"], params["top_k"])
    written = write(arrays, params, make_scheme(), model)
    texts, _ = pile({**arrays, **params}, written)
    return written | read(texts, make_scheme(), model.vocab_size)


def write(
    arrays: dict[str, np.ndarray], params: dict[str, Any], scheme: Scheme, model: LanguageModel
) -> dict[str, Any]:
    """Tokens of all cells, milliseconds per token, and the mean next-token distribution."""
    out: dict[str, Any] = {}
    wanted = cells(params["cells"])
    n = min(len(arrays["prompts"]), scheme.sequences)

    def sequences(name: str, tokens: int, by: Scheme) -> np.ndarray:
        """Each message in every m-th sequence, under its own key."""
        messages, keys = arrays[f"messages_{name}"], arrays[f"keys_{name}"]
        texts = np.empty((n, tokens), dtype=np.int64)
        for i, (key, message) in enumerate(zip(keys.tolist(), messages, strict=True)):
            if i < n:
                config = by.config(_key(key), "".join(map(str, message)))
                rows = slice(i, n, len(messages))
                texts[rows] = model.sample(rows, tokens, config)
        return texts

    for cell in wanted if scheme.multi_bit else wanted[-1:]:
        out[f"tokens_{cell.name}"] = sequences(cell.name, cell.tokens, scheme)
    last = wanted[-1]
    out |= model.score(out[f"tokens_{last.name}"])
    if "tokens_b16" in out and scheme.layers:
        length = min(LAYERS_TOKENS, out["tokens_b16"].shape[1])
        for n_layers in scheme.layers:
            out[f"tokens_layers_{n_layers}"] = sequences("b16", length, scheme.with_layers(n_layers))
        out["tokens_layers_10"] = out["tokens_b16"][:, :length]
    if "null_ids" in arrays:
        out["null_texts"] = min(scheme.null_texts, len(arrays["null_ids"]))
    message = "".join(map(str, arrays[f"messages_{last.name}"][0]))
    config = scheme.config(_key(int(arrays[f"keys_{last.name}"][0])), message)
    rows = slice(0, min(TIMED_SEQUENCES, n))
    for tokens in (5, TIMED_TOKENS):  # after a warm-up; as many sequences for all
        start = time.perf_counter()
        model.sample(rows, tokens, config)
        out["ms_per_token"] = 1000 * (time.perf_counter() - start) / (tokens * rows.stop)
    if "bias_logits" in arrays and scheme.bias_contexts:
        contexts = arrays["bias_contexts"][: scheme.bias_contexts]
        out["mean_distribution"] = mean_distribution(arrays["bias_logits"], contexts, config)
    return out


def read(texts: dict[str, np.ndarray], scheme: Scheme, vocab_size: int) -> dict[str, np.ndarray]:
    """Bits, p-values and z-scores of a pile of texts, of which only key, bits and layers are known."""
    count = len(texts["keys"])
    bits_read = np.full((count, texts["bits"].max()), -1, dtype=np.int8)
    p_read, z_read = np.ones(count), np.zeros(count)
    kinds = np.stack([texts["keys"], texts["bits"], texts["layers"]], 1)
    found: Reading = (None, p_read, None)
    for kind in np.unique(kinds, axis=0):
        key, bits, layers = kind.tolist()
        reader = (scheme.with_layers(layers) if layers else scheme).reader(_key(key), bits, vocab_size)
        if reader is None:
            return {}
        at = np.flatnonzero((kinds == kind).all(1))
        found = reader([text[text >= 0] for text in texts["texts"][at]])
        p_read[at] = found[1]
        if found[0] is not None:
            bits_read[at, :bits] = found[0]
        if found[2] is not None:
            z_read[at] = found[2]
    out = {"p_read": p_read}
    out |= {} if found[0] is None else {"bits_read": bits_read}
    return out if found[2] is None else out | {"z_read": z_read}


def _key(number: int) -> str:
    return f"key {number}"


def mean_distribution(logits: np.ndarray, contexts: np.ndarray, config: Any, batch: int = 1024) -> np.ndarray:
    """Mean next-token distribution (6, vocab) over contexts, for each of the given logits."""
    total = np.zeros(logits.shape)
    for k, row in enumerate(torch.from_numpy(logits)):
        processor = config.construct_processor(logits.shape[1], "cpu")
        for start in range(0, len(contexts), batch):
            ids = torch.from_numpy(contexts[start : start + batch])
            if hasattr(processor, "reset"):
                processor.reset()
            scores = processor(ids, row.expand(len(ids), -1).clone())
            total[k] += scores.softmax(-1).double().sum(0).numpy()
    return total / len(contexts)
