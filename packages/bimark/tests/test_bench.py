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
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.generation import BaseWatermarkingConfig
from transformers.modeling_outputs import CausalLMOutput

from icml25.bimark import BiMarkConfig, BiMarkLogitsProcessor

pytestmark = pytest.mark.bench
bench = pytest.importorskip("icml25.bimark.bench", reason="needs the bench extra", exc_type=ImportError)
context_rows = pytest.importorskip("icml25.shared.protocols.watermark_message").context_rows


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


class TableModel(PreTrainedModel, GenerationMixin):
    """The synthetic model for transformers: logits are a row of the table."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, table):
        super().__init__(PretrainedConfig(vocab_size=table.shape[1], use_cache=False))
        self.table = torch.nn.Parameter(table, requires_grad=False)
        self.generation_config.use_cache = False

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        return {"input_ids": input_ids}

    def forward(self, input_ids, attention_mask=None, return_dict=True):
        rows = context_rows(input_ids[:, -2:-1], input_ids[:, -1:], len(self.table))
        return CausalLMOutput(logits=self.table[rows])


class Watched(BaseWatermarkingConfig):
    """A watermark, and the distributions that it lets its model sample from."""

    def __init__(self, config):
        self.config, self.seen = config, []

    def validate(self):
        pass

    def construct_processor(self, vocab_size, device):
        made = self.config.construct_processor(vocab_size, device)

        def process(ids, scores):
            out = made(ids, scores)
            self.seen.append((ids.clone(), scores.clone(), out))
            return out

        return process


@pytest.mark.parametrize("name", SCHEMES)
def test_the_table_is_sampled_as_transformers_does(name, monkeypatch):
    """The benchmark's own loop and ``generate``: the same scores reach the watermark, the same tokens are drawn.

    The two number their candidates differently, so that a draw must not depend on the numbering: the token of a rank
    that the step picks.
    """
    from icml25.shared.tracks.watermarking import messaging

    def draw(probs, num_samples):
        rank = ((probs > 1e-6).sum(-1, keepdim=True) - 1).clamp(max=next(steps) % 4)
        return probs.argsort(descending=True).gather(1, rank)

    monkeypatch.setattr(torch, "multinomial", draw)
    table = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32))
    prompts = torch.tensor([[1, 2], [3, 4], [5, 6]])
    config = SCHEMES[name]().config("key", "1011001110001111")
    ours, theirs = Watched(config), Watched(config)
    steps = itertools.count()
    text = messaging.TableLM(table.numpy(), prompts.numpy(), 20).sample(slice(0, 3), 12, ours)
    steps = itertools.count()
    model = TableModel(table).eval()
    again = messaging.generate(model, prompts, torch.ones_like(prompts), 12, theirs, 20)
    np.testing.assert_array_equal(text, again)
    assert len(ours.seen) == len(theirs.seen) == 12
    for of_loop, of_generate in zip(ours.seen, theirs.seen, strict=True):
        for mine, yours in zip(of_loop, of_generate, strict=True):
            assert torch.equal(mine, yours)


def test_smoke_benchmark(tmp_path: Path):
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "bimark", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(tmp_path / "icml25-results" / "smoke" / "watermarking" / "bimark.parquet")
    assert table["solver_name"].tolist() == ["bimark"]
    assert table["bit_accuracy_b8_t20"].between(0.5, 1).all() and (table["bias_tv"] < 0.1).all()
