"""Quamba2 and its relatives on the track lm-efficiency."""

from __future__ import annotations

from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

# Quamba: percentile clipping of x, rotation, one scale for B and for C. RTN: nothing but rounding, per tensor.
SCHEMES: dict[str, dict[str, Any]] = {
    "w8a8": {"mode": "w8a8"},
    "w4a8": {"mode": "w4a8"},
    "w4a16": {"mode": "w4a16"},
    "quamba": {"mode": "w8a8", "reorder": False, "per_state_group": False, "percentile": 0.9995},
    "rtn": {"mode": "w8a8", "reorder": False, "per_state_group": False, "hadamard": False, "w8_granularity": "tensor"},
}
STAGES = ({"hadamard": False}, {"per_state_group": False}, {"reorder": False}, {})  # what each stage still lacks
ASKED = {
    "bytes": tuple(SCHEMES),
    "profiled": ("w8a8", "quamba", "stages"),
    "configurations": ("modes",),
    "scale": ("sizes",),
}
N_A16 = 2


def warm_up() -> None:
    """Load what the clock should not see."""
    from icml25.quamba2 import quantize  # noqa: F401


def _quantized(model: Any, calibration: np.ndarray, **settings: Any) -> Any:
    import torch

    from icml25.quamba2 import QuambaConfig, quantize

    mamba1 = type(model).__name__ == "MambaForCausalLM"
    config = QuambaConfig(**({"reorder": False} if mamba1 else {}) | settings)
    return quantize(model, torch.from_numpy(calibration).split(8), config)


def scheme(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """One scheme on the models of the problem; all but the logits are of the first."""
    import torch

    from icml25.quamba2.track.benchmark_utils.evaluation import evaluate, float_model, logits_of, tensor_bytes

    out: dict[str, Any] = {}
    for folder in params["models"]:
        model = float_model(folder)
        quantized = _quantized(model, arrays["calibration"], **SCHEMES[params["scheme"]])
        if params["problem"] == "bytes":
            with torch.inference_mode():
                states = tensor_bytes(model(torch.from_numpy(arrays["held_out"][:, :128]), use_cache=True).cache)
            return evaluate(quantized, arrays["held_out"]) | {"float_state_bytes": states}
        logits = logits_of(quantized, arrays["held_out"])[None]
        out["logits"] = np.concatenate([out["logits"], logits]) if out else logits
    return out


def stages(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """W4A8 with rotation, state groups and sort-and-cluster added one by one; then the searched mix of the first model."""
    from icml25.quamba2 import search_mixed
    from icml25.quamba2.track.benchmark_utils.evaluation import float_model, logits_of

    ladder: list[list[np.ndarray]] = [[] for _ in STAGES]
    models = [float_model(folder) for folder in params["models"]]
    for model in models:
        lacking = [{k: v for part in STAGES[i:] for k, v in part.items()} for i in range(len(STAGES))]
        for stage, settings in zip(ladder, lacking, strict=True):
            stage.append(
                logits_of(_quantized(model, arrays["calibration"], mode="w4a8", **settings), arrays["held_out"])
            )
    mixed = _quantized(models[0], arrays["calibration"], mode="w4a8")
    truth = _log_softmax(logits_of(models[0], arrays["validation"]))

    def score(candidate: Any) -> float:
        other = _log_softmax(logits_of(candidate, arrays["validation"]))
        return -float((np.exp(truth) * (truth - other)).sum(-1).mean())

    own = search_mixed(mixed, score, N_A16, seed=params["seed"])
    blocks = np.arange(len(mixed.layers))
    masks = (own, blocks < N_A16, blocks >= len(blocks) - N_A16)
    choices: dict[str, list[np.ndarray]] = {"validation": [], "held_out": []}
    for mask in masks:
        mixed.set_a16_blocks([bool(flag) for flag in mask])
        for split, found in choices.items():
            found.append(logits_of(mixed, arrays[split])[None])
    return {"stages": np.stack([np.stack(stage) for stage in ladder])} | {
        f"choices_{split}": np.stack(found) for split, found in choices.items()
    }


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    from scipy.special import log_softmax

    return log_softmax(logits.astype(np.float64), axis=-1)


def modes(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Every mode of every architecture: 16 generated tokens, and logits before saving and after loading."""
    import torch

    from icml25.quamba2.track.benchmark_utils.evaluation import float_model, logits_of, saved_bytes

    before, after, generated = [], [], []
    for folder in params["models"]:
        for mode in ("w8a8", "w4a8", "w4a16"):
            quantized = _quantized(float_model(folder), arrays["calibration"], mode=mode)
            prompt = torch.from_numpy(arrays["held_out"][:1, :8])
            new = quantized.generate(prompt, max_new_tokens=16, min_new_tokens=16, do_sample=False)
            generated.append(new[0, 8:].numpy())
            before.append(logits_of(quantized, arrays["held_out"]))
            after.append(logits_of(saved_bytes(quantized)[1], arrays["held_out"]))
    return {"before": np.stack(before), "after": np.stack(after), "generated": np.stack(generated)}


def sizes(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Bytes of W8A8 and W4A8, and the scan against that of transformers, in turns in one process."""
    import statistics
    import time

    import torch
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    from icml25.quamba2 import ssd_chunk_scan
    from icml25.quamba2.track.benchmark_utils.evaluation import float_model, saved_bytes

    def seconds(function: Any) -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    out = {}
    for name, mode in (("model_bytes", "w8a8"), ("small_bytes", "w4a8")):
        quantized = _quantized(float_model(params["models"][0]), arrays["calibration"][:2], mode=mode)
        out[name] = saved_bytes(quantized)[0]
    torch.manual_seed(params["seed"])
    heads, width, groups, states = 16, 64, 1, 128

    def drawn(length: int) -> tuple[Any, ...]:
        x, dt = torch.randn(1, length, heads, width), torch.rand(1, length, heads) * 0.1
        maps = torch.randn(2, 1, length, groups, states)
        return x, dt, -torch.rand(heads) - 0.5, maps[0], maps[1], torch.randn(heads)

    short, long = drawn(1024), drawn(4096)
    with torch.inference_mode():
        calls = (
            lambda: ssd_chunk_scan(*short),
            lambda: ssd_chunk_scan(*long),
            lambda: min(_peer(mamba2_chunk_scan, short, chunk) for chunk in (64, 256)),
        )
        for call in calls:
            call()
        rounds = [(seconds(calls[0]), seconds(calls[1]), calls[2]()) for _ in range(7)]
    ours, longer, peer = (statistics.median(column) for column in zip(*rounds, strict=True))
    return out | {"scan_ratio": ours / peer, "scan_growth": longer / ours}


def _peer(scan: Any, inputs: tuple[Any, ...], chunk: int) -> float:
    import time

    x, dt, A, B, C, D = inputs
    start = time.perf_counter()
    scan(x, dt, A, B, C, chunk_size=chunk, D=D, return_final_states=True)
    return time.perf_counter() - start


class Solver(BaseSolver):
    """Quamba2's modes, Quamba, plain rounding, and what is asked about special problems."""

    name = "quamba2"
    sampling_strategy = "run_once"
    parameters = {"scheme": [*SCHEMES, "stages", "modes", "sizes"]}  # noqa: RUF012

    def skip(self, problem: str, budget: str, seed: int, **_: Any) -> tuple[bool, str | None]:
        """Leave out what a problem does not ask about."""
        if budget == "smoke" and self.scheme not in ("w8a8", "w4a8"):
            return True, "two schemes show that it runs"
        if problem == "configurations" and seed > 0:
            return True, "an identity: one seed"
        return self.scheme not in ASKED[problem], f"{self.scheme} is not asked about"

    def set_objective(self, **public: Any) -> None:
        """Note models and tokens."""
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if key not in self.arrays}
        self.params |= {"scheme": self.scheme, "seed": int(public["seed"])}
        self.function = {"stages": stages, "modes": modes, "sizes": sizes}.get(self.scheme, scheme).__name__

    def run(self, _: Any) -> None:
        """Run in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return outputs, bytes, times and memory."""
        return self.result
