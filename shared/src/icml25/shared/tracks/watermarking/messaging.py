"""What every watermark does on the problem "message": write with ``model.generate``, read from the tokens alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from icml25.shared.protocols.watermark_message import EDITS, cells, edit
from icml25.shared.tracks.watermarking.language_models import SyntheticLM, load_smollm2

__all__ = ["Reading", "Scheme", "generate", "load_model", "measure_messages"]

Reading = tuple[np.ndarray | None, np.ndarray, np.ndarray | None]
PROMPT_TOKENS = 30


class Scheme:
    """One watermark; a subclass says how it writes and reads.

    Attributes
    ----------
    multi_bit : whether it carries messages. Others write only the last cell.
    sequences : at most so many are written per cell, by schemes that take long.
    null_texts : at most so many null texts are read.
    bias_contexts : at most so many contexts are averaged over; 0 leaves that out.
    """

    multi_bit = True
    sequences = 10**9
    null_texts = 200
    bias_contexts = 256

    def config(self, key: str, message: str) -> Any:
        """A watermarking configuration for ``generate``, or None."""
        raise NotImplementedError

    def reader(self, key: str, bits: int, vocab_size: int) -> Callable[[Sequence[np.ndarray]], Reading] | None:
        """A function from texts to bits (n, bits) or None, p-values (n,) and z-scores or None; or None."""
        raise NotImplementedError


def load_model(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The model, its prompts (n, t) and their attention mask."""
    if params["model"] == "synthetic":
        prompts = torch.from_numpy(arrays["prompts"].astype(np.int64))
        return SyntheticLM(arrays["table"]), prompts, torch.ones_like(prompts)
    model, tokenizer = load_smollm2("bfloat16")
    batch = tokenizer(
        arrays["prompts"].tolist(), truncation=True, max_length=PROMPT_TOKENS, padding=True, return_tensors="pt"
    )
    return model, batch["input_ids"], batch["attention_mask"]


def generate(model: Any, prompts: torch.Tensor, mask: torch.Tensor, tokens: int, config: Any, top_k: int) -> np.ndarray:
    """Sample (n, tokens) ids after the prompts."""
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


def measure_messages(arrays: dict[str, np.ndarray], params: dict[str, Any], scheme: Scheme) -> dict[str, Any]:
    """Write and read all cells, edits and null texts."""
    if params["model"] == "synthetic":
        torch.set_num_threads(1)  # its steps are too small to share
    torch.manual_seed(params["seed"])
    model, prompts, mask = load_model(arrays, params)
    vocab, key = model.config.vocab_size, f"seed {params['seed']}"
    out: dict[str, Any] = {}
    wanted = cells(params["cells"])
    for cell in wanted if scheme.multi_bit else wanted[-1:]:
        messages = arrays[f"messages_{cell.name}"]
        n = min(len(prompts), scheme.sequences)
        share = len(prompts) // len(messages)
        start = time.perf_counter()
        texts = [
            generate(
                model,
                prompts[i * share : min((i + 1) * share, n)],
                mask[i * share : min((i + 1) * share, n)],
                cell.tokens,
                scheme.config(key, "".join(map(str, message))),
                params["top_k"],
            )
            for i, message in enumerate(messages)
            if i * share < n
        ]
        tokens = np.concatenate(texts)
        out["ms_per_token"] = 1000 * (time.perf_counter() - start) / tokens.size
        out[f"tokens_{cell.name}"] = tokens
        read = scheme.reader(key, cell.bits, vocab)
        if read is None:
            continue
        for prefix in cell.lengths:
            out |= _named(read([text[:prefix] for text in tokens]), f"{cell.name}_{prefix}")
    if params["model"] != "synthetic":
        out |= _score(model, prompts, mask, tokens, params["top_k"])
    if read is not None:
        for kind in EDITS:
            edited = edit(tokens, kind, vocab, params["seed"])
            out |= _named(read([text[text >= 0] for text in edited]), kind)
        other = scheme.reader("another key", cell.bits, vocab)
        out["p_other_key"] = other(list(tokens))[1]
        if "null_ids" in arrays:
            out |= _read_null(arrays, scheme, cell.bits, vocab)
    if "bias_logits" in arrays and scheme.bias_contexts:
        message = "".join(map(str, messages[0]))
        out["mean_distribution"] = mean_distribution(
            arrays["bias_logits"], arrays["bias_contexts"][: scheme.bias_contexts], scheme.config(key, message)
        )
    return out


def _named(reading: Reading, name: str) -> dict[str, np.ndarray]:
    bits, p, _ = reading
    return ({} if bits is None else {f"bits_{name}": bits}) | {f"p_{name}": p}


def _read_null(arrays: dict[str, np.ndarray], scheme: Scheme, bits: int, vocab: int) -> dict[str, np.ndarray]:
    """Read the null texts, each with its own key."""
    ids, keys = arrays["null_ids"][: scheme.null_texts], arrays["null_keys"][: scheme.null_texts]
    p, z = [], []
    for key in dict.fromkeys(keys.tolist()):
        _, p_key, z_key = scheme.reader(f"null {key}", bits, vocab)(list(ids[keys == key]))
        p.append(p_key)
        z.append(z_key)
    null = {"p_null": np.concatenate(p)}
    return null if z[0] is None else null | {"z_null": np.concatenate(z)}


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


@torch.no_grad()
def _score(model: Any, prompts: torch.Tensor, mask: torch.Tensor, tokens: np.ndarray, top_k: int) -> dict[str, Any]:
    """Log-probability of each token without watermark, and its mean if that token were sampled from the top k."""
    scored, expected = [], []
    for start in range(0, len(tokens), 8):
        rows = slice(start, start + 8)
        new = torch.from_numpy(tokens[rows])
        text = torch.cat([prompts[: len(tokens)][rows], new], 1)
        seen = torch.cat([mask[: len(tokens)][rows], torch.ones_like(new)], 1)
        positions = (seen.cumsum(1) - 1).clamp_min(0)
        logits = model(input_ids=text, attention_mask=seen, position_ids=positions).logits
        log_probs = logits[:, prompts.shape[1] - 1 : -1].float().log_softmax(-1)
        scored.append(log_probs.gather(-1, new[..., None])[..., 0])
        top = log_probs.topk(top_k, dim=-1).values
        expected.append((top.softmax(-1) * top).sum(-1))
    return {"log_probs": torch.cat(scored).numpy(), "expected_log_probs": torch.cat(expected).numpy()}
