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


def test_smoke_benchmark(tmp_path: Path):
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "bimark", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(tmp_path / "icml25-results" / "smoke" / "watermarking" / "bimark.parquet")
    assert table["solver_name"].tolist() == ["bimark"]
    assert table["bit_accuracy_b8_t20"].between(0.5, 1).all() and (table["bias_tv"] < 0.1).all()
