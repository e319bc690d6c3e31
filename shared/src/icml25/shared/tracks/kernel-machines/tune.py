"""Choose the weight C of each data set on a validation split of the training rows, with a seed that is never reported."""

import sys

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from icml25.shared.datasets import load

GRID = (0.1, 1.0, 10.0, 100.0)
SEED, FEATURES, ROWS = 1000, 1024, 20_000


def scores(name, **params):
    """Yield C with the validation R2 or accuracy of the squared and of the squared hinge loss."""
    data = load(name, **params)
    by_class = None if data.task == "regression" else data.y
    X, _, y, _ = train_test_split(data.X, data.y, test_size=0.3, stratify=by_class, random_state=SEED)
    X, Xv, y, yv = train_test_split(X[:ROWS], y[:ROWS], test_size=0.3, random_state=SEED)
    scaler = StandardScaler().fit(X)
    X, Xv = scaler.transform(X), scaler.transform(Xv)
    sampler = RBFSampler(gamma=1 / (2 * X.var(0, ddof=1).sum()), n_components=FEATURES, random_state=SEED).fit(X)
    psi, psi_v = sampler.transform(X), sampler.transform(Xv)
    for C in GRID:
        if data.task == "regression":
            t, tv = (y - y.mean()) / y.std(), (yv - y.mean()) / y.std()
            yield C, Ridge(alpha=1 / C, fit_intercept=False).fit(psi, t).score(psi_v, tv), np.nan
        else:
            labels = np.unique(y)
            ridge = Ridge(alpha=1 / C, fit_intercept=False).fit(psi, 2.0 * (y[:, None] == labels) - 1)
            svm = LinearSVC(C=C / 2, fit_intercept=False, max_iter=20_000).fit(psi, y)
            yield C, np.mean(labels[ridge.predict(psi_v).argmax(1)] == yv), svm.score(psi_v, yv)


if __name__ == "__main__":
    for name in sys.argv[1:] or ("breast_cancer", "diabetes", "digits", "flights", "friedman1"):
        for C, squared, margin in scores(name, **({"n": 2_000} if name == "friedman1" else {})):
            print(f"{name:14s} C = {C:6.1f}  squared {squared:.4f}  squared hinge {margin:.4f}", flush=True)
