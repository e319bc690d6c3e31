"""FoPE and its ablations on the track length-generalization, and its cost against transformers' RoPE."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

MODEL = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "num_hidden_layers": 2}
FUNCTIONS = {"reading": "train_and_read", "floor": "kept", "speed": "forward_times"}


def warm_up() -> None:
    """Load what the clock should not see."""
    from icml25.fope.track.benchmark_utils import decoder

    decoder.warm_up()


def train_and_read(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train the track's decoder with FoPE's positions, and read."""
    import torch

    from icml25.fope import FourierPositionEmbedding, ablation, rotate
    from icml25.fope.track.benchmark_utils import decoder

    width, heads, *_ = decoder.SIZES[params["size"]]

    class Position(torch.nn.Module):
        """The decoder asks for a rotation of so many tokens, and a bias."""

        def __init__(self) -> None:
            super().__init__()
            config = ablation(params["variant"], params["length"], seed=params["seed"])
            self.embedding = FourierPositionEmbedding(width // heads, heads, config)

        def forward(self, tokens: int) -> tuple[Any, None]:
            cos, sin = self.embedding.tables(torch.arange(tokens, device=self.embedding.frequencies.device))
            return lambda x: rotate(x, cos, sin), None

    return decoder.train_and_read(Position(), arrays, params)


def kept(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Frequencies that survive the floor in each case."""
    from icml25.fope import FopeConfig, kept_frequencies

    cases = zip(arrays["dims"].tolist(), arrays["lengths"].tolist(), arrays["thetas"].tolist(), strict=True)
    found = [kept_frequencies(d, FopeConfig(length, theta=theta)) for d, length, theta in cases]
    return {f"kept_{k}": frequencies.numpy() for k, frequencies in enumerate(found)}


def forward_times(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds of a Llama's forward pass with RoPE and, converted, with FoPE; and of two position tables.

    All in turns and on one core, so that other programs disturb little.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from icml25.fope import FopeConfig, FourierPositionEmbedding, convert_model, rotate

    torch.set_num_threads(1)
    tokens, config = params["tokens"], FopeConfig(512)
    peer, model = (LlamaForCausalLM(LlamaConfig(**MODEL, vocab_size=1000)).eval() for _ in range(2))
    convert_model(model, config)
    model.load_state_dict(peer.state_dict(), strict=False)
    ids = torch.randint(1000, (1, tokens), generator=torch.Generator().manual_seed(params["seed"]))
    embedding = FourierPositionEmbedding(64, 8, config)

    inputs = {n: (torch.arange(n) + 8192, torch.zeros(1, 8, n, 64)) for n in (params["short"], params["long"])}

    def read_long(length: int) -> None:
        positions, q = inputs[length]  # beyond what is cached
        rotate(q, *embedding.tables(positions))

    jobs = {
        "peer": lambda: peer(ids, use_cache=False),
        "model": lambda: model(ids, use_cache=False),
        "short": lambda: read_long(params["short"]),
        "long": lambda: read_long(params["long"]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    with torch.no_grad():
        for repeat in range(params["repeats"] + 1):
            for name, job in jobs.items():
                start = time.process_time()
                job()
                if repeat:  # the first one warms up
                    seconds[name].append(time.process_time() - start)
    return {f"{name}_seconds": np.array(values) for name, values in seconds.items()}


class Solver(BaseSolver):
    """FoPE, and its parts alone: "clip" (CF), "series" (FS)."""

    name = "fope"
    sampling_strategy = "run_once"
    problems = ("reading", "floor", "speed")
    parameters = {"variant": ["fope", "clip", "series"]}  # noqa: RUF012

    def skip(self, problem: str, budget: str, corpus: str = "", seed: int = 0, **_: Any) -> tuple[bool, str | None]:
        """Leave out what no claim asks for outside the paper budget."""
        if problem not in self.problems:
            return True, "not a problem of positions"
        if problem == "floor" and seed and budget != "paper":
            return True, "nothing is random"
        if self.variant == "fope" or (budget == "paper" and problem == "reading"):
            return False, None
        wanted = problem == "reading" and corpus == "markov_passkey" and (self.variant == "clip" or not seed)
        return not wanted, "left to the paper budget"

    def set_objective(self, problem: str, budget: str, seed: int, **public: Any) -> None:
        """Note the problem."""
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if key not in self.arrays}
        self.params |= {"budget": budget, "seed": int(seed), "variant": self.variant}
        self.function = FUNCTIONS[problem]

    def run(self, _: Any) -> None:
        """Run in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return losses and answers, frequencies, or times."""
        return self.result
