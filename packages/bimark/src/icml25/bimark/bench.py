"""BiMark on the problem "message" of the track "watermarking" (needs the extra ``bench``).

Beside what every scheme does there, it writes with fewer and more layers, and reports how long a step of the processor and
the detection take: against transformers' SynthID, against a loop over sequences, layers and the whole vocabulary, at two
vocabulary sizes, and against a decode step of a model of SmolLM2's shape.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from icml25.shared.isolated import measure
from icml25.shared.tracks.watermarking.message_solver import MessageSolver

LAYERS = (1, 2, 5, 20)


def warm_up() -> None:
    """Load what the clock should not see."""
    import icml25.bimark.processor
    import icml25.shared.tracks.watermarking.messaging  # noqa: F401


def scheme(n_layers: int = 10) -> Any:
    """Writes by ``BiMarkConfig``, reads by ``BiMarkDetector``."""
    from icml25.bimark import BiMarkConfig, BiMarkDetector
    from icml25.shared.tracks.watermarking.messaging import Reading, Scheme

    class BiMark(Scheme):
        layers = LAYERS
        bias_contexts = null_texts = 10**9

        def with_layers(self, n_layers: int) -> Scheme:
            return scheme(n_layers)

        def config(self, key: str, message: str) -> BiMarkConfig:
            return BiMarkConfig(key, message, n_layers=n_layers)

        def reader(self, key: str, bits: int, vocab_size: int) -> Callable[[Any], Reading]:
            config = BiMarkConfig(key, None, n_layers=n_layers, message_bits=bits)
            detector = BiMarkDetector(config, vocab_size)

            def read(texts: Any) -> Reading:
                found = list(detector.detect_batch(list(texts)))
                bits_read = np.stack([f.bits for f in found])
                return bits_read, np.array([f.p_value for f in found]), np.array([f.z_score for f in found])

            return read

    return BiMark()


def write_and_read(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """The problem as for every scheme, and 16 bits with other numbers of layers."""
    from icml25.shared.tracks.watermarking.messaging import measure_messages

    return measure_messages(arrays, params, scheme)


def speed(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, float]:
    """Seconds of a step and of detection, each pair in turns on the same inputs; medians of one thread's processor time."""
    import torch
    from transformers import SynthIDTextWatermarkingConfig

    from icml25.bimark import BiMarkConfig, BiMarkDetector
    from icml25.bimark.prf import ContextPRF

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(params["seed"])
    config = BiMarkConfig(f"speed {params['seed']}", "1011001110001111")

    def step(batch: int, vocab: int, made_by: Any) -> Callable[[], Any]:
        """A step after 100 tokens, of logits with 50 candidates."""
        processor = made_by.construct_processor(vocab, "cpu") if hasattr(made_by, "construct_processor") else made_by
        ids = torch.randint(vocab, (batch, 100), generator=generator)
        scores = torch.randn(batch, vocab, generator=generator)
        scores[scores < scores.topk(50).values[:, -1:]] = -torch.inf

        def run() -> Any:
            if hasattr(processor, "reset"):
                processor.reset()
                processor(ids[:, :20], scores)  # so that 80 generated contexts have to be looked through
            start = time.process_time()
            processor(ids, scores)
            return time.process_time() - start

        return run

    out: dict[str, float] = {}
    synthid = SynthIDTextWatermarkingConfig(ngram_len=5, keys=list(range(1, 10)))
    ours, theirs = medians(step(8, 49152, config), step(8, 49152, synthid), repeats=3)
    out |= {"step_ms": 1000 * ours, "step_over_synthid": ours / theirs}
    batched, looped = medians(step(32, 32000, config), step(32, 32000, literal_processor(config, 32000)), repeats=3)
    out["step_over_loop"] = batched / looped
    large, small = medians(step(8, 131072, config), step(8, 32768, config), repeats=30)
    out["step_growth_with_vocabulary"] = large / small
    single, decode = medians(step(8, 49152, config), decode_step(8, generator), repeats=5)
    out |= {"step_over_decode": single / decode, "decode_ms": 1000 * decode}

    rng = np.random.default_rng(params["seed"])
    texts = rng.integers(0, 49152, (200, 200))
    detector = BiMarkDetector(config, 49152)
    detector.detect_batch(texts[:20])
    start = time.process_time()
    detector.detect_batch(texts)
    out["detected_tokens_per_second"] = texts.size / (time.process_time() - start)
    prf = ContextPRF(config.key_bytes, 16, 10)
    contexts = [row.tobytes() for row in rng.integers(0, 49152, (1000, 2))]
    [seconds] = medians(_timed(lambda: prf(contexts)), repeats=20)
    out["prf_us_per_row"] = 1e6 * seconds / len(contexts)
    return out


def medians(*runs: Callable[[], float], repeats: int) -> list[float]:
    """Median seconds of functions that time themselves, called in turns, after one call each that doesn't count."""
    seconds: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats + 1):
        for run, times in zip(runs, seconds, strict=True):
            spent = run()
            if repeat:
                times.append(spent)
    return [statistics.median(times) for times in seconds]


def _timed(work: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return run


def decode_step(batch: int, generator: Any) -> Callable[[], float]:
    """A step of a Llama of SmolLM2-135M's shape with random weights, in bfloat16, after 100 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(49152, (batch, 100), generator=generator)
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values

    @torch.no_grad()
    def run() -> float:
        start = time.process_time()
        model(ids[:, :1], past_key_values=cache, use_cache=True)
        return time.process_time() - start

    return run


def literal_processor(config: Any, vocab_size: int) -> Callable[[Any, Any], Any]:
    """Algorithm 1 one sequence, one layer and all tokens at a time, as in the official code; the same randomness."""
    import torch

    from icml25.bimark import context_randomness, partitions

    members = torch.from_numpy(partitions(config.key_bytes, config.n_layers, vocab_size).copy())

    def process(input_ids: Any, scores: Any) -> Any:
        out = torch.empty_like(scores)
        for row, (ids, logits) in enumerate(zip(input_ids.tolist(), scores, strict=True)):
            context = np.array([ids[-config.window :]])
            [position], [mask] = context_randomness(config.key_bytes, context, config.message_bits, config.n_layers)
            p = logits.softmax(-1)
            for v1, pad in zip(members, mask, strict=True):
                p1 = p[v1].sum().item()
                if 1e-12 < p1 < 1 - 1e-12:
                    d1 = max(min(1 / p1, 1 + config.base_scale), 1) - 1
                    d0 = min(d1 * p1 / (1 - p1), 1)
                    heads = int(config.message[position]) ^ int(pad)
                    p = torch.where(v1, p * (1 + d1 if heads else 1 - d1), p * (1 - d0 if heads else 1 + d0))
            out[row] = (p / p.sum()).log()
        return out

    return process


class Solver(MessageSolver):
    """BiMark with the paper's settings: ten layers, base scale 1, contexts of two tokens."""

    name = "bimark"
    file = __file__

    def run(self, _: Any) -> None:
        """Write and read; then measure speed, outside the small runs of tests."""
        super().run(_)
        if self.params["budget"] == "quick" and self.params["model"] == "synthetic":
            times = measure(__file__, "speed", {}, {"seed": self.params["seed"]})
            self.result |= {k: v for k, v in times.items() if k not in ("seconds", "peak_memory_mb")}
