"""What is measured of a model, the same for every method: called in the solver's own process."""

import tempfile
import time
from pathlib import Path

import numpy as np

PROMPT, STEPS, REPEATS = 128, 48, 5
DECODED = 8  # rows that are also decoded token by token, and compared after saving and loading


def float_model(folder):
    """A model of a folder; from here on one thread computes, so that times do not depend on the number of cores."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def logits_of(model, ids):
    """(n, l, vocab) float32 logits of a single pass."""
    import torch

    with torch.inference_mode():
        return model(torch.from_numpy(ids), use_cache=False).logits.numpy()


def saved_bytes(model):
    """Bytes of the weights that ``save_pretrained`` writes, and the folder's reload by the model's own class."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        size = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        return size, type(model).from_pretrained(folder).eval()


def tensor_bytes(thing, seen=None):
    """Bytes of all tensors reachable from an object's attributes, lists and dicts."""
    import torch

    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return thing.nbytes
    if isinstance(thing, dict):
        return sum(tensor_bytes(value, seen) for value in thing.values())
    if isinstance(thing, (list, tuple)):
        return sum(tensor_bytes(value, seen) for value in thing)
    return tensor_bytes(vars(thing), seen) if hasattr(thing, "__dict__") else 0


def evaluate(model, ids, size=None):
    """Outputs, bytes and times of one model on held-out tokens (n, l).

    ``size`` replaces the saved size for models that cannot be saved; these are not reloaded either.
    """
    import torch

    out = {"logits": logits_of(model, ids)[None]}
    if size is None:
        size, again = saved_bytes(model)
        out["reloaded"] = logits_of(again, ids[:DECODED])[None]
    tokens = torch.from_numpy(ids[:DECODED])
    with torch.inference_mode():
        step = model(tokens[:, :PROMPT], use_cache=True)
        cache, decoded = step.cache, []
        state_bytes = tensor_bytes(cache)
        last = min(PROMPT + STEPS, tokens.shape[1])
        for i in range(PROMPT, last):
            step = model(tokens[:, i : i + 1], cache=cache, use_cache=True)
            decoded.append(step.logits[:, -1])
        prefill, decode = [], []
        for _ in range(REPEATS):
            start = time.perf_counter()
            cache = model(tokens[:1, :PROMPT], use_cache=True).cache
            prefill.append((time.perf_counter() - start) / PROMPT)
            start = time.perf_counter()
            for i in range(8):
                model(tokens[:1, i : i + 1], cache=cache, use_cache=True)
            decode.append((time.perf_counter() - start) / 8)
    return out | {
        "decoded": torch.stack(decoded, 1).numpy(),
        "model_bytes": int(size),
        "state_bytes": int(state_bytes),
        "prefill_us": float(np.median(prefill)) * 1e6,
        "decode_us": float(np.median(decode)) * 1e6,
    }
