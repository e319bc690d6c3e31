"""The tests on the problem "forgery" of the track "watermarking", and the clock on what they are made of."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

BY_CONTEXT = " by context"
COUNTING = ("n-grams", "n-grams by Counter", "throughput")


def warm_up() -> None:
    """Load what the clock should not see."""
    import icml25.spoof_detect  # noqa: F401


def colors_of(params: dict[str, Any]) -> Any:
    """The scheme with its key."""
    from icml25.spoof_detect import CallableColors, HashColors

    if params["scheme"] == "kgw":
        return HashColors(params["key"], params["h"], params["gamma"])
    return CallableColors(bimark_agreement(**params), params["h"])


def bimark_agreement(
    key: int, h: int, layers: int, message: str, vocab_size: int, **_: Any
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Colour of BiMark text: the share of layers whose vote is the message's bit, at first occurrences of a context.

    Layer i votes "is the token in V1^i" XOR the context's pad bit; the owner knows the message.
    """
    from icml25.bimark import context_randomness, partitions

    secret = key.to_bytes(8, "little")
    members = partitions(secret, layers, vocab_size)
    bits = np.array([bit == "1" for bit in message])

    def colors(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, valid = np.zeros(len(ids)), np.zeros(len(ids), dtype=bool)
        windows = np.lib.stride_tricks.sliding_window_view(ids, h)[:-1]
        contexts, first = np.unique(windows, axis=0, return_index=True)
        position, pad = context_randomness(secret, contexts, len(message), layers)
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
    test = SpoofTest(colors_of(params), reference)
    suspects, reprompted, out = arrays["suspects"], arrays["reprompted"], {}
    for total in arrays["lengths"].tolist():
        results = []
        for texts in arrays[f"tests_{total}"]:
            if name.startswith("standard"):
                results.append(test.standard(suspects[texts, :total]))
            else:
                again = reprompted[texts, : total - params["prompt"]]
                results.append(test.reprompting(suspects[texts, :total], reprompted=again))
        out[f"p_values_{total}"] = np.array([result.p_value for result in results])
        out[f"z_{total}"] = np.array([result.z for result in results])
    return out


def null_p_values(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """p-values of texts that know nothing of the key, each under a key of its own."""
    from icml25.spoof_detect import HashColors, NgramReference, SpoofTest

    documents = np.split(arrays["reference"], np.cumsum(arrays["reference_lengths"])[:-1])
    reference = NgramReference.from_token_ids(documents, params["h"] + 1, params["vocab_size"])
    p_values = []
    for key, text, other in zip(arrays["keys"].tolist(), arrays["suspects"], arrays["reprompted"], strict=True):
        test = SpoofTest(HashColors(key, params["h"], params["gamma"]), reference)
        result = test.standard([text]) if params["test"] == "standard" else test.reprompting([text], reprompted=[other])
        p_values.append(result.p_value)
    return {"p_values": np.array(p_values)}


def count(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Count n-grams and look some up."""
    if params["test"] == "n-grams by Counter":
        counter: Counter[tuple[int, ...]] = Counter()
        for document in arrays["reference"]:
            ids = document.tolist()
            counter.update(zip(*(ids[i:] for i in range(params["order"])), strict=False))
        return {"counts": np.array([counter[tuple(gram)] for gram in arrays["asked"].tolist()])}
    from icml25.spoof_detect import NgramReference

    reference = NgramReference.from_token_ids(arrays["reference"], params["order"], params["vocab_size"])
    return {"counts": reference.count(arrays["asked"])}


def throughput(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Things done per second by one thread, the median of three runs of each part."""
    from icml25.spoof_detect import HashColors, KGWColors, NgramReference

    ids, order, vocab_size = arrays["reference"], params["order"], params["vocab_size"]
    reference = NgramReference.from_token_ids(ids, order, vocab_size)
    counts = reference.count(arrays["asked"])
    text = ids.ravel()
    asked = np.lib.stride_tricks.sliding_window_view(text, order)
    asked = asked[np.random.default_rng(0).permutation(len(asked))[: 10**6]]
    rates = {
        "counted_per_second": _rate(ids.size, lambda: len(NgramReference.from_token_ids(ids, order, vocab_size))),
        "looked_up_per_second": _rate(len(asked), lambda: reference.count(asked)),
        "hashed_per_second": _rate(text.size, lambda: HashColors(1, order - 1).colors(text)),
    }
    if find_spec("transformers") and find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        contexts = np.arange(1000)
        rates["kgw_contexts_per_second"] = _rate(1000, lambda: KGWColors({}, 50_000).colors(contexts))
    return {"counts": counts, **rates}


def _rate(items: int, run: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(3):
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
        kept = ("suspects", "reprompted", "reference", "reference_lengths", "keys", "lengths", "asked")
        self.arrays = {k: v for k, v in problem.items() if k in kept or k.startswith("tests_")}
        self.params = {k: v for k, v in problem.items() if isinstance(v, (int, float, str))} | {"test": self.test}
        judge = (
            throughput
            if self.test == "throughput"
            else {"null": null_p_values, "counts": count}.get(question, verdicts)
        )
        self.function = judge.__name__

    def run(self, _: Any) -> None:
        """Judge in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return p-values, z, seconds and memory."""
        return self.result
