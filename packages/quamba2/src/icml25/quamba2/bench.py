"""Quamba2 and its relatives on the track lm-efficiency."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

# Quamba: percentile clipping of x, rotation, one scale for B and for C. RTN: nothing but rounding, per tensor.
QUAMBA = {"mode": "w8a8", "reorder": False, "per_state_group": False}
SCHEMES: dict[str, dict[str, Any]] = {
    "w8a8": {"mode": "w8a8"},
    "w4a8": {"mode": "w4a8"},
    "w4a16": {"mode": "w4a16"},
    "quamba": QUAMBA,
    "rtn": {**QUAMBA, "hadamard": False, "w8_granularity": "tensor"},
}
PERCENTILES = (0.99999, 0.9999, 0.9995, 0.999, 0.998, 0.995)  # Quamba's best on validation tokens is taken
# W4A8 as the paper's ablation adds its parts, and with each part left out
STAGES = ({"hadamard": False}, {"gptq": False}, {"per_state_group": False}, {"reorder": False}, {})
LEFT_OUT = {"rotation": STAGES[0], "gptq": STAGES[1], "state_groups": STAGES[2], "clusters": STAGES[3]}
ASKED = {
    "bytes": ("w8a8", "w4a8", "w4a16", "rtn"),
    "drawn": ("w8a8", "quamba", "stages", "mix", "modes", "sizes"),
}
N_A16 = 2
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt


def warm_up() -> None:
    """Load what the clock should not see."""
    from icml25.quamba2 import quantize  # noqa: F401


def _quantized(model: Any, calibration: np.ndarray, **settings: Any) -> Any:
    import torch

    from icml25.quamba2 import QuambaConfig, quantize

    mamba1 = type(model).__name__ == "MambaForCausalLM"
    config = QuambaConfig(**({"reorder": False} if mamba1 else {}) | settings)
    return quantize(model, torch.from_numpy(calibration).split(8), config)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    from scipy.special import log_softmax

    return log_softmax(logits.astype(np.float64), axis=-1)


def _loss(model: Any, truth: np.ndarray, ids: np.ndarray) -> float:
    """KL to the float model, whose log-probabilities are ``truth``."""
    from icml25.quamba2.track.benchmark_utils.evaluation import logits_of

    return float((np.exp(truth) * (truth - _log_softmax(logits_of(model, ids)))).sum(-1).mean())


def _of_scheme(model: Any, scheme: str, arrays: dict[str, np.ndarray]) -> Any:
    """The model in a scheme; Quamba's percentile is the best on validation tokens."""
    from icml25.quamba2.track.benchmark_utils.evaluation import logits_of

    settings = SCHEMES[scheme]
    if scheme != "quamba":
        return _quantized(model, arrays["calibration"], **settings)
    truth = _log_softmax(logits_of(model, arrays["validation"]))
    tried = [_quantized(model, arrays["calibration"], **settings, percentile=alpha) for alpha in PERCENTILES]
    return min(tried, key=lambda candidate: _loss(candidate, truth, arrays["validation"]))


def measured(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Everything asked of this package about a problem and seed, in one process; keys begin with the scheme."""
    from icml25.quamba2.track.benchmark_utils.evaluation import float_model

    models = {kind: [float_model(folder) for folder in folders] for kind, folders in params["models"].items()}
    special: dict[str, Callable[..., dict[str, Any]]] = {"stages": stages, "mix": mix, "modes": modes, "sizes": sizes}
    out: dict[str, Any] = {}
    for name in params["schemes"]:
        start = time.perf_counter()
        found = special[name](models, arrays, params["seed"]) if name in special else scheme(models, arrays, name)
        found["seconds"] = time.perf_counter() - start
        out |= {f"{name}/{key}": value for key, value in found.items()}
    return out


def scheme(models: dict[str, Any], arrays: dict[str, np.ndarray], name: str) -> dict[str, Any]:
    """One scheme on the trained model, or on all uneven ones."""
    import torch

    from icml25.quamba2.track.benchmark_utils.evaluation import DECODED, evaluate, logits_of, tensor_bytes

    held_out = arrays["held_out"]
    if "trained" in models:
        [model] = models["trained"]
        with torch.inference_mode():
            states = tensor_bytes(model(torch.from_numpy(held_out[:1, :16]), use_cache=True).cache) * DECODED
        return evaluate(_of_scheme(model, name, arrays), held_out) | {"float_state_bytes": states}
    logits, errors = [], []
    for model in models["profiled"]:
        small = _of_scheme(model, name, arrays)
        logits.append(logits_of(small, held_out))
        errors.append(max(group_errors(model, small, held_out)))
    return {"logits": np.stack(logits), "group_errors": np.array(errors)}


def group_errors(model: Any, small: Any, ids: np.ndarray) -> list[float]:
    """Relative rounding error of each SSD group of B and of C, layer by layer, on the float model's activations."""
    import torch

    from icml25.quamba2 import SymmetricQuantizer, fast_scan

    errors: list[float] = []

    def observe(layer: int, name: str, value: Any) -> None:
        if name in ("conv_B", "conv_C"):
            mixer = small.layers[layer].mixer
            groups = value.flatten(0, 1).unflatten(-1, (mixer.dims.n_groups, -1))
            quantizer = SymmetricQuantizer(getattr(mixer, f"scale_{name}")[:, None])
            rounded = quantizer.dequantize(quantizer.quantize(groups))
            errors.extend(((rounded - groups).norm(dim=(0, 2)) / groups.norm(dim=(0, 2))).tolist())

    with torch.inference_mode(), fast_scan(model, observe):
        model(torch.from_numpy(ids), use_cache=False)
    return errors


def stages(models: dict[str, Any], arrays: dict[str, np.ndarray], seed: int) -> dict[str, Any]:
    """W4A8 with rotation, GPTQ, state groups and sort-and-cluster added one by one, and with each of them left out."""
    from icml25.quamba2.track.benchmark_utils.evaluation import logits_of

    def logits(**settings: Any) -> np.ndarray:
        small = (_quantized(m, arrays["calibration"], mode="w4a8", **settings) for m in models["profiled"])
        return np.stack([logits_of(m, arrays["held_out"]) for m in small])

    ladder = [logits(**{k: v for part in STAGES[i:] for k, v in part.items()}) for i in range(len(STAGES))]
    out = {f"without_{name}": logits(**lacking) for name, lacking in LEFT_OUT.items() if name != "clusters"}
    return out | {"stages": np.stack(ladder), "without_clusters": ladder[-2]}


def mix(models: dict[str, Any], arrays: dict[str, np.ndarray], seed: int) -> dict[str, Any]:
    """Logits of each uneven model with the searched blocks, the first and the last ones in 16 bits, and with none."""
    from icml25.quamba2 import search_mixed
    from icml25.quamba2.track.benchmark_utils.evaluation import logits_of

    choices: dict[str, list[list[np.ndarray]]] = {"validation": [], "held_out": []}
    for model in models["profiled"]:
        mixed = _quantized(model, arrays["calibration"], mode="w4a8")
        truth = _log_softmax(logits_of(model, arrays["validation"]))

        def score(m: Any, truth: np.ndarray = truth) -> float:
            return -_loss(m, truth, arrays["validation"])

        own = search_mixed(mixed, score, N_A16, population=12, seed=seed)
        blocks = np.arange(len(mixed.layers))
        for found in choices.values():
            found.append([])
        for mask in (own, blocks < N_A16, blocks >= len(blocks) - N_A16, blocks < 0):
            mixed.set_a16_blocks([bool(flag) for flag in mask])
            for split, found in choices.items():
                found[-1].append(logits_of(mixed, arrays[split]))
    return {f"choices_{split}": np.array(found).swapaxes(0, 1) for split, found in choices.items()}


def modes(models: dict[str, Any], arrays: dict[str, np.ndarray], seed: int) -> dict[str, Any]:
    """Every mode of every architecture: 16 generated tokens, and logits before saving and after loading."""
    import torch

    from icml25.quamba2.track.benchmark_utils.evaluation import logits_of, saved_bytes

    tokens = arrays["held_out"][:1, :64]
    before, after, generated = [], [], []
    for model in models["small"]:
        for mode in ("w8a8", "w4a8", "w4a16"):
            quantized = _quantized(model, arrays["calibration"][:2, :64], mode=mode)
            prompt = torch.from_numpy(tokens[:, :8])
            new = quantized.generate(prompt, max_new_tokens=16, min_new_tokens=16, do_sample=False)
            generated.append(new[0, 8:].numpy())
            before.append(logits_of(quantized, tokens))
            after.append(logits_of(saved_bytes(quantized)[1], tokens))
    return {"before": np.stack(before), "after": np.stack(after), "generated": np.stack(generated)}


def sizes(models: dict[str, Any], arrays: dict[str, np.ndarray], seed: int) -> dict[str, Any]:
    """Bytes of W8A8 and W4A8, and the scan against that of transformers: CPU times of one thread, taken in turns."""
    import contextlib
    import ctypes
    import statistics

    import torch
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    from icml25.quamba2 import ssd_chunk_scan
    from icml25.quamba2.track.benchmark_utils.evaluation import saved_bytes

    def seconds(function: Any) -> float:
        start = time.process_time()
        function()
        return time.process_time() - start

    out = {}
    for name, settings in (("model_bytes", {"mode": "w8a8"}), ("small_bytes", {"mode": "w4a8", "gptq": False})):
        quantized = _quantized(models["wide"][0], arrays["calibration"][:1, :16], **settings)  # bytes, not quality
        out[name] = saved_bytes(quantized)[0]
    generator = torch.Generator().manual_seed(seed)

    def drawn(length: int, heads: int, width: int, states: int) -> tuple[Any, ...]:
        x = torch.randn(1, length, heads, width, generator=generator)
        dt = torch.rand(1, length, heads, generator=generator) * 0.1
        maps = torch.randn(2, 1, length, 1, states, generator=generator)
        A, D = torch.rand(2, heads, generator=generator)
        return x, dt, -A - 0.5, maps[0], maps[1], D

    def peer(inputs: tuple[Any, ...], chunk: int) -> Callable[[], Any]:
        x, dt, A, B, C, D = inputs
        return lambda: mamba2_chunk_scan(x, dt, A, B, C, chunk_size=chunk, D=D, return_final_states=True)

    with contextlib.suppress(AttributeError):  # glibc keeps what is freed, or some shapes page-fault at every call
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, 2**30)
        libc.mallopt(_MMAP_MAX, 0)
    short, long, narrow = drawn(1024, 16, 64, 128), drawn(4096, 16, 64, 128), drawn(1024, 24, 64, 64)
    with torch.inference_mode():
        calls: list[Callable[[], Any]] = [
            lambda inputs=inputs: ssd_chunk_scan(*inputs) for inputs in (short, long, narrow)
        ]
        calls += [peer(inputs, chunk) for inputs in (short, narrow) for chunk in (64, 256)]
        rounds = [[seconds(call) for call in calls] for _ in range(10)]
    ours, longer, narrow_ours, *others = map(statistics.median, zip(*rounds[1:], strict=True))
    theirs, narrow_theirs = min(others[:2]), min(others[2:])
    return out | {
        "scan_ratio": ours / theirs,
        "scan_ratio_narrow": narrow_ours / narrow_theirs,
        "scan_growth": longer / ours,
    }


def _asked(problem: str, budget: str, seed: int) -> list[str]:
    """Two schemes are enough to show that it runs, and one seed to show an identity."""
    schemes = ("w8a8", "w4a8") if budget == "smoke" else ASKED[problem]
    return [name for name in schemes if name != "modes" or seed == 0]


_DONE: dict[str, dict[str, Any]] = {}  # schemes of one problem and seed share a process, whose start costs seconds


class Solver(BaseSolver):
    """Quamba2's modes, Quamba, plain rounding, and what is asked about special problems.

    All schemes of a problem and seed run in one process: ``seconds`` are a scheme's own, peak memory is that of all.
    """

    name = "quamba2"
    sampling_strategy = "run_once"
    parameters = {"scheme": [*SCHEMES, "stages", "mix", "modes", "sizes"]}  # noqa: RUF012

    def skip(self, problem: str, budget: str, seed: int, **_: Any) -> tuple[bool, str | None]:
        """Leave out what a problem does not ask about."""
        return self.scheme not in _asked(problem, budget, seed), f"{self.scheme} is not asked about"

    def set_objective(self, **public: Any) -> None:
        """Note models and tokens."""
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        schemes = _asked(public["problem"], public["budget"], public["seed"])
        self.params = {"models": public["models"], "schemes": schemes, "seed": int(public["seed"])}

    def run(self, _: Any) -> None:
        """Run all schemes in a process of their own, or take what an earlier one left."""
        key = json.dumps(self.params)
        if key not in _DONE:
            _DONE.clear()
            _DONE[key] = measure(__file__, "measured", self.arrays, self.params)
        found, prefix = _DONE[key], f"{self.scheme}/"
        self.result = {"peak_memory_mb": found["peak_memory_mb"]} | {
            name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)
        }

    def get_result(self) -> dict[str, Any]:
        """Return outputs, bytes, times and memory."""
        return self.result
