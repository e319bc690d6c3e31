"""What the benchmark measures is what the estimator does."""

import warnings

import numpy as np
import pytest

from icml25.cat_iv import CATSelector, make_anlce

bench = pytest.importorskip("icml25.cat_iv.bench", reason="needs the bench extra")


@pytest.mark.bench
@pytest.mark.parametrize("method", ["CAT", "CAT F>10", "CAT unadjusted", "CAT n x n"])
def test_the_estimator_gives_the_same(method: str) -> None:
    draws = [make_anlce(300, covariates=method != "CAT F>10", seed=s) for s in (21, 22)]
    arrays = {
        k: np.stack([getattr(s, k) for s in draws]) for k in ("Z", "x", "y", "W") if getattr(draws[0], k) is not None
    }
    out = bench.select(arrays | {"sizes": np.array([150, 300])}, {"method": method, "n_valid": 2, "seed": 0})
    model = CATSelector(min_first_stage_f=10 if method == "CAT F>10" else None)
    for k, n in enumerate((150, 300)):
        for r, s in enumerate(draws):
            W = None if s.W is None or method == "CAT unadjusted" else s.W[:n]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                model.fit(s.Z[:n], s.x[:n], s.y[:n], W)
            np.testing.assert_array_equal(out["support"][k, r], model.support_)
            np.testing.assert_allclose(out["pair_scores"][k, r], model.pair_scores_, atol=1e-6)
            assert out["effect"][k, r] == pytest.approx(model.effect_, rel=1e-6)


@pytest.mark.bench
def test_too_few_strong_candidates_is_no_answer() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "Z": rng.normal(size=(1, 60, 3)),
        "x": rng.normal(size=(1, 60)),
        "y": rng.normal(size=(1, 60)),
        "sizes": np.array([60]),
    }
    out = bench.select(arrays, {"method": "CAT F>10", "n_valid": 2, "seed": 0})
    assert not out["support"].any() and np.isnan(out["effect"]).all()


@pytest.mark.bench
@pytest.mark.parametrize("method", ["Sargan", "sisVIVE", "TSHT", "AIT"])
def test_rivals_run(method: str) -> None:
    s = make_anlce(200, seed=1)
    arrays = {"Z": s.Z[None], "x": s.x[None], "y": s.y[None], "sizes": np.array([100, 200])}
    out = bench.select(arrays, {"method": method, "n_valid": 2, "seed": 0})
    assert out["support"].shape == (2, 1, 5) and out["effect"].shape == (2, 1) and "pair_scores" not in out
    assert (np.isfinite(out["effect"]) == out["support"].any(2)).all()
