"""The tests on the problem "forgery" of the track "watermarking", and the clock on what they are made of."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

BY_CONTEXT = " by context"
COUNTING = ("n-grams", "n-grams by Counter", "throughput")


def warm_up() -> None:
    """Load what the clock should not see."""
    import icml25.spoof_detect  # noqa: F401
    from icml25.shared.protocols import watermark_forgery  # noqa: F401


def colors_of(params: dict[str, Any], key: int) -> Any:
    """The scheme with its key."""
    from icml25.spoof_detect import CallableColors, HashColors

    if params["scheme"] == "kgw":
        return HashColors(key, params["h"], params["gamma"])
    return CallableColors(bimark_agreement(**params, key=key), params["h"])


def bimark_agreement(
    key: int, h: int, layers: int, message: str, vocab_size: int, **_: Any
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Colour of BiMark text: the share of layers whose vote is the message's bit, at first occurrences of a context.

    Layer i votes "is the token in V1^i" XOR the context's pad bit; the owner knows the message.
    """
    from icml25.shared.protocols.watermark_forgery import bimark_hashes

    hashes, secret = bimark_hashes(), key.to_bytes(8, "little")
    members = hashes.partitions(secret, layers, vocab_size)
    bits = np.array([bit == "1" for bit in message])

    def colors(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, valid = np.zeros(len(ids)), np.zeros(len(ids), dtype=bool)
        windows = np.lib.stride_tricks.sliding_window_view(ids, h)[:-1]
        first = np.unique(windows @ vocab_size ** np.arange(h), return_index=True)[1]
        position, pad = hashes.context_randomness(secret, windows[first], len(message), layers)
        votes = members[:, ids[first + h]].T ^ pad
        x[first + h] = (votes == bits[position, None]).mean(axis=1)
        valid[first + h] = True
        return x, valid

    return colors


def verdicts(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """p-value and z of every test."""
    from icml25.spoof_detect import NgramReference, SpoofTest, context_only

    name = params["test"]
    key_fn = context_only if name.endswith(BY_CONTEXT) else None
    reference = NgramReference.from_token_ids(arrays["reference"], params["h"] + 1, params["vocab_size"], key_fn)
    of_key = {key: SpoofTest(colors_of(params, key), reference) for key in np.unique(arrays["keys"]).tolist()}
    suspects, reprompted, out = arrays["suspects"], arrays["reprompted"], {}
    for total in arrays["lengths"].tolist():
        results = []
        for texts in arrays[f"tests_{total}"]:
            test = of_key[int(arrays["keys"][texts[0]])]
            if name.startswith("standard"):
                results.append(test.standard(suspects[texts, :total]))
            else:
                again = reprompted[texts, : total - params["prompt"]]
                results.append(test.reprompting(suspects[texts, :total], reprompted=again))
        out[f"p_values_{total}"] = np.array([result.p_value for result in results])
        out[f"z_{total}"] = np.array([result.z for result in results])
    return out


def null_p_values(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """p-values of texts that know nothing of the key.

    Every text is tested under many keys. Which n-grams enter, and their counts, depend on the text alone and are asked
    for once; what remains of a test are colours, correlation and p-value. Under one key the suspect of a test may be the
    regenerated text of the one before.
    """
    from scipy.special import ndtr

    from icml25.spoof_detect import (
        CallableColors,
        HashColors,
        NgramReference,
        SpoofTest,
        correlation_test,
        fisher_difference,
    )

    documents = np.split(arrays["reference"], np.cumsum(arrays["reference_lengths"])[:-1])
    reference = NgramReference.from_token_ids(documents, params["h"] + 1, params["vocab_size"])
    positions = SpoofTest(CallableColors(lambda ids: np.arange(len(ids)), params["h"]), reference)
    entering = [positions.sequences([text])[:2] for text in arrays["texts"]]

    @lru_cache(maxsize=4)
    def correlation(key: int, index: int) -> tuple[float, int, float]:
        at, score = entering[index]
        x, _ = HashColors(key, params["h"], params["gamma"]).colors(arrays["texts"][index])
        found = correlation_test(x[at.astype(int)], score)
        return found.statistic, found.n, found.p_value

    p_values = []
    for key, text, other in zip(*(arrays[name].tolist() for name in ("keys", "suspects", "reprompted")), strict=True):
        statistic, n, p = correlation(key, text)
        if params["test"] == "reprompting":
            p = float(ndtr(-fisher_difference(statistic, n, *correlation(key, other)[:2])))
        p_values.append(p)
    return {"p_values": np.array(p_values)}


def count(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Count n-grams and look some up."""
    judge = counts_by_counter if params["test"] == "n-grams by Counter" else counts_by_reference
    return {"counts": judge(arrays["reference"], arrays["asked"], params["order"], params["vocab_size"])}


def counts_by_counter(documents: np.ndarray, asked: np.ndarray, order: int, _: int) -> np.ndarray:
    """Counts of n-grams by ``collections.Counter``, of tuples."""
    counter: Counter[tuple[int, ...]] = Counter()
    for document in documents:
        ids = document.tolist()
        counter.update(zip(*(ids[i:] for i in range(order)), strict=False))
    return np.array([counter[tuple(gram)] for gram in asked.tolist()])


def counts_by_reference(documents: np.ndarray, asked: np.ndarray, order: int, vocab_size: int) -> np.ndarray:
    """Counts of n-grams by this package."""
    from icml25.spoof_detect import NgramReference

    return NgramReference.from_token_ids(documents, order, vocab_size).count(asked)


def throughput(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Things done per second by one thread, the median of seven runs of each part."""
    from icml25.spoof_detect import HashColors, KGWColors, NgramReference

    ids, order, vocab_size = arrays["reference"], params["order"], params["vocab_size"]
    rates, references = {}, []

    def build() -> None:
        references[:] = [NgramReference.from_token_ids(ids, order, vocab_size)]
        len(references[0])  # merges what is left

    rates["counted_per_second"] = _rate(ids.size, build)
    reference, text = references[0], ids.ravel()
    asked = np.lib.stride_tricks.sliding_window_view(text, order)
    asked = asked[np.random.default_rng(0).permutation(len(asked))[: 10**6]]
    rates["looked_up_per_second"] = _rate(len(asked), lambda: reference.count(asked))
    rates["hashed_per_second"] = _rate(text.size, lambda: HashColors(1, order - 1).colors(text))
    if params["budget"] != "smoke" and find_spec("transformers") and find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        contexts = np.arange(301)
        rates["kgw_contexts_per_second"] = _rate(300, lambda: KGWColors({}, 50_000).colors(contexts))
    return {"counts": reference.count(arrays["asked"]), **rates}


def _rate(items: int, run: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return items / float(np.median(seconds))


class Solver(BaseSolver):
    """The two tests, for BiMark also with contexts in place of n-grams; n-gram counts and their peer."""

    name = "spoof-detect"
    sampling_strategy = "run_once"
    problems = ("forgery",)
    parameters = {  # noqa: RUF012
        "test": ["standard", "reprompting", f"standard{BY_CONTEXT}", f"reprompting{BY_CONTEXT}", *COUNTING]
    }

    def skip(
        self, problem: str, question: str = "", scheme: str = "", unavailable: str | None = None, **_: Any
    ) -> tuple[bool, str | None]:
        """Leave out what a data set is not about."""
        if problem != "forgery":
            return True, "carries no message"
        if unavailable is not None:
            return True, unavailable
        if (self.test in COUNTING) != (question == "counts"):
            return True, "another question"
        return self.test.endswith(BY_CONTEXT) and scheme != "bimark", "the scheme's colours depend on the token too"

    def set_objective(self, question: str, **problem: Any) -> None:
        """Note what the test may use."""
        kept = ("texts", "suspects", "reprompted", "reference", "reference_lengths", "keys", "lengths", "asked")
        self.arrays = {k: v for k, v in problem.items() if k in kept or k.startswith("tests_")}
        self.params = {k: v for k, v in problem.items() if isinstance(v, (int, float, str))} | {"test": self.test}
        judge = (
            throughput
            if self.test == "throughput"
            else {"null": null_p_values, "counts": count}.get(question, verdicts)
        )
        self.function = judge.__name__

    def run(self, _: Any) -> None:
        """Judge in a process of its own; short builds, of either counter, in three, for the clock's median."""
        times = 3 if self.function == "count" else 1
        results = [measure(__file__, self.function, self.arrays, self.params) for _ in range(times)]
        middle = {name: float(np.median([r[name] for r in results])) for name in ("seconds", "peak_memory_mb")}
        self.result = results[0] | middle

    def get_result(self) -> dict[str, Any]:
        """Return p-values, z, seconds and memory."""
        return self.result
