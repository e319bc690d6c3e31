"""The solver, its rivals' readers, and the smoke benchmark."""

import importlib.util
import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from icml25.bimark import BiMarkConfig, BiMarkLogitsProcessor

pytestmark = pytest.mark.bench
bench = pytest.importorskip("icml25.bimark.bench", reason="needs the bench extra", exc_type=ImportError)


def rival(name):
    from icml25.shared import registry

    file = registry.tracks()["watermarking"].folder / "solvers" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"rival_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_loop_that_is_timed_does_the_same():
    config = BiMarkConfig("key", "1011")
    scores = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    scores[scores < scores.topk(20).values[:, -1:]] = -torch.inf
    ids = torch.arange(40).view(4, 10)
    looped = bench.literal_processor(config, 300)(ids, scores)
    batched = BiMarkLogitsProcessor(config, 300)(ids, scores)
    torch.testing.assert_close(looped.softmax(-1), batched.softmax(-1), atol=1e-6, rtol=1e-4)


def test_kgw_counts_as_transformers_does():
    from transformers import PretrainedConfig, WatermarkDetector

    scheme = rival("kgw").scheme()
    texts = np.random.default_rng(0).integers(0, 50, (3, 60))
    detector = WatermarkDetector(
        PretrainedConfig(vocab_size=50, bos_token_id=50), "cpu", scheme.config("key", ""), ignore_repeated_ngrams=True
    )
    theirs = detector(torch.from_numpy(texts), return_dict=True)
    from scipy.stats import binom

    expected = binom.sf(theirs.num_green_tokens - 1, theirs.num_tokens_scored, 12 / 50)
    np.testing.assert_allclose(scheme.reader("key", 0, 50)(list(texts))[1], expected, rtol=1e-9)


@pytest.mark.parametrize("n", [0, 1, 5, 7])
def test_largest_of_four_colour_counts(n):
    counts = Counter(
        max(colours.count(c) for c in range(4)) if n else 0 for colours in itertools.product(range(4), repeat=n)
    )
    expected = [counts[k] / 4**n for k in range(n + 1)]
    np.testing.assert_allclose(rival("mpac").best_colour_pmf(n), expected, atol=1e-12)


def test_mpac_reads_what_it_wrote():
    scheme = rival("mpac").scheme(delta=20.0)
    processor = scheme.config("key", "10110010").construct_processor(200)
    ids, generator = torch.tensor([[5]]), torch.Generator().manual_seed(0)
    for _ in range(150):
        probs = processor(ids, torch.zeros(1, 200)).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1, generator=generator)], 1)
    bits, p, _ = scheme.reader("key", 8, 200)([ids[0].numpy()])
    assert "".join(map(str, bits[0])) == "10110010" and p[0] < 1e-10
    other = scheme.reader("other", 8, 200)([np.random.default_rng(i).integers(0, 200, 100) for i in range(200)])[1]
    assert np.mean(other <= 0.1) < 0.2


def test_synthid_recognises_its_own():
    scheme = rival("synthid").scheme(5)
    processor = scheme.config("key", "").construct_processor(200, "cpu")
    ids, generator = torch.tensor([[5, 6]] * 3), torch.Generator().manual_seed(0)
    for _ in range(60):
        probs = processor(ids, torch.zeros(3, 200)).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1, generator=generator)], 1)
    texts = list(ids[:, 2:].numpy())
    assert scheme.reader("key", 0, 200)(texts)[1].max() < 1e-3
    assert scheme.reader("other", 0, 200)(texts)[1].min() > 1e-3


def written_and_read(scheme):
    """Write 16 bits in 60 tokens with a scheme, and read the pile; what the reader got, and the scores."""
    from icml25.shared.protocols import watermark_message as protocol
    from icml25.shared.tracks.watermarking import messaging

    settings = {"dataset": "m", "model": "synthetic", "cells": "16x60", "sequences": 6, "messages": 2, "null": 40}
    public, truth = protocol.draw(settings | {"bias": 0, "vocab": 300, "rows": 64}, seed=1000, budget="smoke")
    arrays = {k: v for k, v in public.items() if isinstance(v, np.ndarray)}
    params = {k: v for k, v in public.items() if not isinstance(v, np.ndarray)}
    torch.manual_seed(0)
    model = messaging.TableLM(public["table"], public["prompts"], public["top_k"])
    written = messaging.write(arrays, params, scheme(), model)
    texts, _ = protocol.pile(public, written)
    result = written | messaging.read(texts, scheme(), model.vocab_size)
    return texts, protocol.evaluate(public, truth, result)


SCHEMES = {
    "bimark": lambda: bench.scheme(),
    "mpac": lambda: rival("mpac").scheme(4.0),
    "kgw": lambda: rival("kgw").scheme(4.0),
    "synthid": lambda: rival("synthid").scheme(6),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_what_was_written_is_read_without_the_messages(name):
    texts, scores = written_and_read(SCHEMES[name])
    assert set(texts) == {"texts", "keys", "bits", "layers"}
    assert scores["detected_b16_t60"] >= 0.8 and scores["false_alarms"] <= 0.1
    if name in ("bimark", "mpac"):
        assert scores["bit_accuracy_b16_t60"] > 0.75
    assert abs(scores["log_prob_gap"]) < 0.5 or name in ("mpac", "kgw")


@pytest.mark.parametrize("name", SCHEMES)
def test_the_table_is_sampled_as_transformers_does(name, llama):
    """Rivals and method run in ``generate`` too, where their scores are the same."""
    from icml25.shared.tracks.watermarking import messaging

    config = SCHEMES[name]().config("key", "1011001110001111")
    seen = []

    class Watched:
        def construct_processor(self, vocab_size, device):
            made = config.construct_processor(vocab_size, device)

            def watched(ids, scores):
                out = made(ids, scores)
                seen.append((ids.clone(), scores.clone(), out))
                return out

            return watched

    table = np.random.default_rng(0).standard_normal((8, 300)).astype(np.float32)
    model = messaging.TableLM(table, np.array([[1, 2], [3, 4]]), 20)
    model.sample(slice(0, 2), 12, Watched())
    for ids, scores, _ in seen:
        row = messaging.context_rows(ids[:, -2], ids[:, -1], 8)
        kept = torch.from_numpy(table)[row]
        assert (scores == kept.masked_fill(kept < kept.topk(20).values[:, -1:], -torch.inf)).all()
    assert [ids.shape[1] for ids, _, _ in seen] == list(range(2, 14))
    text = messaging.generate(llama, torch.tensor([[1, 5], [2, 7]]), torch.ones(2, 2).long(), 12, config, 20)
    assert text.shape == (2, 12)


def test_smoke_benchmark(tmp_path: Path):
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "bimark", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(tmp_path / "icml25-results" / "smoke" / "watermarking" / "bimark.parquet")
    assert table["solver_name"].tolist() == ["bimark"]
    assert table["bit_accuracy_b8_t20"].between(0.5, 1).all() and (table["bias_tv"] < 0.1).all()
