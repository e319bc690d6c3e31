"""People's text, and a real language model under transformers' watermark."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
needs_data = pytest.mark.skipif("ICML25_DATA" not in os.environ, reason="needs ICML25_DATA")


@pytest.mark.realdata
@needs_data
@pytest.mark.parametrize("source", ["wikitext2", "tinyshakespeare"])
@pytest.mark.parametrize("h", [1, 2])
def test_p_values_are_uniform_on_peoples_text(source, h):
    bench = pytest.importorskip("icml25.spoof_detect.bench", exc_type=ImportError)
    from icml25.shared.protocols import watermark_forgery

    settings = {"question": "null", "source": source, "h": h, "length": 400, "tests": 3000}
    public, truth = watermark_forgery.draw(settings, seed=1, budget="paper")
    arrays = {k: v for k, v in public.items() if isinstance(v, np.ndarray)}
    for test in ("standard", "reprompting"):
        columns = watermark_forgery.evaluate(public, truth, bench.null_p_values(arrays, {**public, "test": test}))
        print(source, h, test, columns)
        assert columns["rejected_5pct"] <= 0.062 and columns["rejected_1pct"] <= 0.017
        if test == "standard":  # Reprompting's z is narrower than N(0, 1): the two texts share n-grams
            assert columns["rejected_5pct"] >= 0.038 and columns["ks_distance"] < 0.03


def the_script():
    spec = importlib.util.spec_from_file_location("smollm2", Path(__file__).parents[1] / "docs" / "smollm2.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.realdata
@needs_data
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")  # GGUF reader
def test_smollm2_under_kgw_and_its_forgers():
    """The script of the README's figures, at a tenth of its size: what is genuine is called so."""
    pytest.importorskip("gguf", reason="needs the extra demo")
    datasets = pytest.importorskip("icml25.shared.datasets", reason="needs the bench extra")
    try:
        datasets.smollm2()
    except datasets.DataError as error:
        pytest.skip(str(error))
    script = the_script()
    found = script.run(texts=8, tokens=72, learned=8, pooled=(8,), seed=1000)
    assert found["genuine"]["green"] > 0.65 > found["distillation"]["green"] > 0.5
    for writer in ("genuine", "distillation", "stealing"):
        (standard,), (reprompting,) = found[writer]["standard", 8], found[writer]["reprompting", 8]
        print(writer, standard, reprompting, sep="\n")
        assert standard.status == reprompting.status == "ok" and reprompting.n_reference > 200
    assert not found["genuine"]["standard", 8][0].reject() and not found["genuine"]["reprompting", 8][0].reject()


@pytest.mark.parametrize("name", ["Distillation", "Stealing"])
def test_spoofers_are_their_formulas(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("icml25.shared", reason="needs the bench extra")
    script = the_script()
    spoofer = getattr(script, name)([np.array([7, 3, 7, 3, 7, 4])])  # after 7: 3 twice, 4 once
    scores = torch.randn(2, 60, generator=torch.Generator().manual_seed(0))
    scores[0, [3, 4]] = torch.tensor([5.0, 1.0])
    base = torch.zeros_like(scores).scatter(1, scores.topk(50).indices, scores.topk(50).values.softmax(dim=1))
    p = spoofer(torch.tensor([[1, 7], [1, 9]]), scores).exp()
    torch.testing.assert_close(p[1], base[1])  # 9 was never seen
    expected, counts = base[0].clone(), torch.tensor([2.0, 1.0])
    if name == "Distillation":
        expected *= 10 / 13
        expected[[3, 4]] += 3 / 13 * counts / 3
    else:
        expected[[3, 4]] *= torch.exp(1.5 * (counts / (3 * base[0, [3, 4]] + 1)).clamp(max=2))
    torch.testing.assert_close(p[0], expected)
