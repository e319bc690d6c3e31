"""The solver of the watermarking track."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.bench
bench = pytest.importorskip("icml25.spoof_detect.bench", reason="needs the bench extra", exc_type=ImportError)

SETTINGS = {
    "question": "forgery",
    "h": 2,
    "keys": 2,
    "length": 400,
    "lengths": [400, 800],
    "genuine": 6,
    "forged": 4,
    "held_out": 6,
    "learned": 60,
}


def draw(**settings):
    from icml25.shared.protocols import watermark_forgery

    return watermark_forgery.draw(settings, seed=0, budget="smoke")


def numbers(public):
    return {k: v for k, v in public.items() if isinstance(v, np.ndarray)}


def test_colours_are_those_of_the_world():
    from icml25.spoof_detect import HashColors

    public, _ = draw(**SETTINGS)
    for text, key, expected in zip(public["suspects"], public["keys"], public["suspect_colors"], strict=True):
        x, valid = HashColors(int(key), public["h"], public["gamma"]).colors(text)
        np.testing.assert_array_equal(np.where(valid, x, np.nan), expected)


@pytest.mark.parametrize("test", ["standard", "reprompting"])
def test_verdicts(test):
    from icml25.spoof_detect import HashColors, NgramReference, SpoofTest

    public, truth = draw(**SETTINGS)
    out = bench.verdicts(numbers(public), {**public, "test": test})
    reference = NgramReference.from_token_ids(public["reference"], 3, 4000)
    for index, texts in enumerate(public["tests_800"]):
        spoof_test = SpoofTest(HashColors(int(public["keys"][texts[0]]), 2), reference)
        if test == "standard":
            one = spoof_test.standard(public["suspects"][texts])
        else:
            one = spoof_test.reprompting(public["suspects"][texts], reprompted=public["reprompted"][texts])
        assert (out["z_800"][index], out["p_values_800"][index]) == (one.z, one.p_value)
    writer = truth["writer"][public["tests_400"][:, 0]]
    assert out["z_400"][writer != "genuine"].mean() > out["z_400"][writer == "genuine"].mean() + 1


@pytest.mark.parametrize("test", ["standard", "reprompting"])
def test_null(test):
    from icml25.spoof_detect import HashColors, NgramReference, SpoofTest

    public, _ = draw(question="null", source="stdlib", h=1, length=200, tests=30)
    p_values = bench.null_p_values(numbers(public), {**public, "test": test})["p_values"]
    documents = np.split(public["reference"], np.cumsum(public["reference_lengths"])[:-1])
    reference = NgramReference.from_token_ids(documents, 2, public["vocab_size"])
    for i in range(30):  # what is shared between keys changes nothing
        whole = SpoofTest(HashColors(int(public["keys"][i]), 1), reference)
        text, other = (public["texts"][public[name][i]] for name in ("suspects", "reprompted"))
        result = whole.standard([text]) if test == "standard" else whole.reprompting([text], reprompted=[other])
        assert p_values[i] == pytest.approx(result.p_value, rel=1e-12)


@pytest.mark.parametrize("test", ["n-grams", "n-grams by Counter"])
def test_counts(test):
    public, truth = draw(question="counts", tokens=4000, order=3)
    np.testing.assert_array_equal(bench.count(numbers(public), {**public, "test": test})["counts"], truth["counts"])


def reweighted_as_bimark_does(world):
    import torch

    from icml25.bimark import multilayer_reweight

    rng = np.random.default_rng(0)
    p, contexts = rng.dirichlet(np.full(4000, 0.02), 8), rng.integers(4000, size=(8, 2))
    ours = world.weights(contexts, np.tile(np.arange(4000), (8, 1)), p)
    directions = torch.tensor(world.directions(contexts)).long()
    theirs = multilayer_reweight(torch.tensor(p), torch.tensor(world._members), directions)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-9)


@pytest.mark.parametrize("test", ["standard", "reprompting by context"])
def test_bimark(test):
    pytest.importorskip("icml25.bimark", reason="needs icml25-bimark")
    import importlib.util
    from pathlib import Path

    from icml25.shared import protocols

    file = Path(protocols.__file__).parents[1] / "tracks" / "watermarking" / "datasets" / "forgery_bimark.py"
    spec = importlib.util.spec_from_file_location("forgery_bimark", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    public, truth = draw(**SETTINGS | {"watermark": module.watermark, "length": 200, "lengths": [200]})
    for index in (0, 1, -1):
        text, key, expected = (public[name][index] for name in ("suspects", "keys", "suspect_colors"))
        x, valid = bench.colors_of(public, int(key)).colors(text)
        np.testing.assert_allclose(np.where(valid, x, np.nan), expected, rtol=1e-6)
    assert np.nanmean(public["suspect_colors"][truth["writer"] == "genuine"]) > 0.55
    reweighted_as_bimark_does(module.BiMark(int(public["keys"][0])))
    out = bench.verdicts(numbers(public), {**public, "test": test})
    assert np.isfinite(out["z_200"]).all()


def test_smoke_benchmark(tmp_path):
    pd = pytest.importorskip("pandas")
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "spoof-detect", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(tmp_path / "icml25-results" / "smoke" / "watermarking" / "spoof-detect.parquet")
    assert len(table) == 7 and (table["seconds"] > 0).all()
    assert (table["count_errors"].dropna() == 0).all() and (table["genuine_flagged"].dropna() == 1).all()
