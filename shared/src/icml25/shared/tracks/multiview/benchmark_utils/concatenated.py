"""Classifiers of scikit-learn on the concatenated views."""

import numpy as np
from threadpoolctl import threadpool_limits

PARTS = ("train", "normal", "conflict")


def tiny_problem():
    """Arrays and parameters for a first call that loads what the clock should not see."""
    views = {f"{part}_0": np.arange(40.0).reshape(40, 1) for part in PARTS}
    return {"y_train": np.arange(40) // 20, **views}, {"seed": 0, "n_classes": 2}


def fit_predict(classifier, arrays, params):
    """Train on one table, decide both test sets; the uncertainty is the entropy in units of log K."""
    n_views = sum(name.startswith("train_") for name in arrays)
    table = {part: np.hstack([arrays[f"{part}_{v}"] for v in range(n_views)]) for part in PARTS}
    with threadpool_limits(1):  # like the networks
        classifier.fit(table["train"], arrays["y_train"])
    out = {}
    for part in PARTS[1:]:
        p = classifier.predict_proba(table[part])
        out[f"label_{part}"] = p.argmax(1)
        out[f"uncertainty_{part}"] = -(p * np.log(np.maximum(p, 1e-300))).sum(1) / np.log(params["n_classes"])
    return out
