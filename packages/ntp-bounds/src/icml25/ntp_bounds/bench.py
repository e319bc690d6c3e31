"""Measured gaps and bounds on the track generalization-bounds."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

FUNCTIONS = {
    "gap": "measured_gaps",
    "cover": "covering_numbers",
    "bounds": "bounds",
    "markov": "exact_gaps",
    "speed": "times",
}
TRAINED = {"width": 128, "layers": 2, "heads": 4, "tokens": 64, "vocab": 128, "batch": 16}


def warm_up() -> None:
    """Load what the clock should not see."""
    import torch

    from icml25.ntp_bounds import measure_gap

    torch.set_num_threads(1)
    measure_gap(2, 4, 4, steps=1, n_test=1)


def measured_gaps(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train at each size, several times with windows and weights of their own."""
    from icml25.ntp_bounds import DecoderSpec, log_cover, measure_gap

    names = ("n_sequences", "seq_len", "dim", "steps")
    gap, foretold, vocab = [], [], params["vocab"]
    data = arrays["train_text"], arrays["test_text"]
    for n, m, d, steps in zip(*(arrays[name].tolist() for name in names), strict=True):
        seeds = [params["seed"] * 1000 + k for k in range(params["replicates"])]
        gap.append([measure_gap(n, m, d, data=data, vocab=vocab, steps=steps, seed=seed).gap for seed in seeds])
        spec = DecoderSpec.random(vocab, d, 2, 4 * d, 1, m)
        foretold.append(np.sqrt(log_cover(spec, 0.1 * np.sqrt(m / 2)) / n))
    return {"gap": np.array(gap), "foretold": np.array(foretold)}


def covering_numbers(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """By the route through the softmax in which the mask matters."""
    from dataclasses import replace

    from icml25.ntp_bounds import DecoderSpec, bound, log_cover

    specs = [
        DecoderSpec.random(n_layers=layers, seq_len=m)
        for m, layers in zip(arrays["seq_len"].tolist(), arrays["n_layers"].tolist(), strict=True)
    ]
    masks = ("full", "causal", ("window", params["window"]))
    covers = [[log_cover(replace(s, mask=mask), arrays["eps"], softmax="l2") for s in specs] for mask in masks]
    reports = [[bound(s, n) for n in arrays["n_sequences"]] for s in specs]
    return {
        "log_cover": np.array(covers),
        "joint": np.array([[r.rademacher for r in row] for row in reports]),
        "parts": np.array([[r.predictor + r.representation for r in row] for row in reports]),
    }


def bounds(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """The bound at each number of sequences, in the variant's metric."""
    from icml25.ntp_bounds import sweep
    from icml25.ntp_bounds.track.benchmark_utils.classes import bounded_class

    sizes = [round(n) for n in arrays["n_sequences"]]
    rows = sweep(bounded_class(params), sizes, delta=params["delta"], metric=params["variant"])
    return {"bound": np.array([row["gap"] for row in rows])}


def exact_gaps(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Drive the gap up inside one class, fixed beforehand; risk and empirical risk are sums over all sequences."""
    import torch

    from icml25.ntp_bounds import DecoderSpec, MarkovChain, bound
    from icml25.ntp_bounds.experiments import ascend
    from icml25.ntp_bounds.models import Decoder

    n, m = params["n_sequences"], params["seq_len"]
    sizes = (2, 4, 2, 8, 1, m)
    spec, gap = DecoderSpec(*sizes, norms=(1.0, 1.4)), []
    for k, (transition, counts) in enumerate(zip(arrays["transition"], arrays["counts"], strict=True)):
        tokens, weight = MarkovChain(transition).enumerate(m + 1)
        model, excess = Decoder(*sizes, seed=params["seed"] * 1000 + k), torch.from_numpy(weight - counts / n)
        gap.append(ascend(model, torch.from_numpy(tokens), excess, spec, steps=params["steps"]))
    return {"gap": np.array(gap), "bound": np.full(len(gap), bound(spec, n, params["delta"]).gap)}


def times(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds of bounds, of a finite class, and of training steps, ours and a Llama's in turns."""
    from icml25.ntp_bounds import DecoderSpec, bound, rademacher_finite, sweep

    deep = DecoderSpec(50_000, 4096, 32, 16384, params["layers"], 4096, norms=(2.0, 64.0))
    small = DecoderSpec.random()
    F = np.random.default_rng(params["seed"]).standard_normal((100, params["points"]))
    seconds: dict[str, list[float]] = {}

    def clock(name: str, job: Any) -> None:
        start = time.process_time()
        job()
        seconds.setdefault(name, []).append(time.process_time() - start)

    for _ in range(params["repeats"]):
        clock("bound", lambda: bound(deep, 10**9))
    clock("sweep", lambda: sweep(small, range(10, 10 + params["classes"] // 4), (8, 16), (16, 32)))
    clock("finite", lambda: rademacher_finite(F, 10_000))
    jobs = dict(zip(("model", "peer"), _training_steps(params["seed"]), strict=True))
    for job in jobs.values():
        job()  # the first step warms up
    for _ in range(params["repeats"]):
        for name, job in jobs.items():
            clock(name, job)
    return {f"{name}_seconds": np.array(values) for name, values in seconds.items()}


def _training_steps(seed: int) -> tuple[Any, Any]:
    """One AdamW step of our decoder and of a Llama with as many parameters in its layers."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import LlamaConfig, LlamaForCausalLM

    from icml25.ntp_bounds.models import Decoder

    d, layers, heads, m, v = (TRAINED[name] for name in ("width", "layers", "heads", "tokens", "vocab"))
    config = LlamaConfig(
        vocab_size=v,
        hidden_size=d,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=8 * d // 3,
        max_position_embeddings=m,
    )
    llama = LlamaForCausalLM(config)
    decoder = Decoder(v, d, heads, 4 * d, layers, m, norm="rmsnorm", pre_norm=True)
    tokens = torch.randint(v, (TRAINED["batch"], m + 1), generator=torch.Generator().manual_seed(seed))

    def step(model: Any, logits: Any) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)

        def run() -> None:
            optimizer.zero_grad()
            cross_entropy(logits(tokens[:, :-1]).mT, tokens[:, 1:]).backward()
            optimizer.step()

        return run

    return step(decoder, decoder), step(llama, lambda x: llama(x, use_cache=False).logits)


class Solver(BaseSolver):
    """Ours: gaps measured, bounds in the Frobenius metric, and as a variant the bound in the metric of tokens."""

    name = "ntp-bounds"
    sampling_strategy = "run_once"
    problems = tuple(FUNCTIONS)
    parameters = {"variant": ["frobenius", "token"]}  # noqa: RUF012

    def skip(self, problem: str, budget: str, seed: int = 0, **_: Any) -> tuple[bool, str | None]:
        """Run once what isn't random, and the variant only where it differs."""
        if problem not in FUNCTIONS:
            return True, "not a problem of this method"
        if problem in ("cover", "bounds") and seed:
            return True, "nothing is random"
        return (True, "bounds only") if self.variant != "frobenius" and problem != "bounds" else (False, None)

    def set_objective(self, problem: str, budget: str, seed: int, **public: Any) -> None:
        """Note the problem."""
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if key not in self.arrays}
        self.params |= {"seed": int(seed), "variant": self.variant}
        self.function = FUNCTIONS[problem]

    def run(self, _: Any) -> None:
        """Run in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return gaps, covering numbers, bounds or times."""
        return self.result
