"""Draw docs/uncertainty.svg: uncertainty of normal test rows, and of rows of which one view belongs to another class."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from icml25.fuml import FUMLClassifier, corrupt_views

images, y = load_digits(return_X_y=True)
train, test = train_test_split(np.arange(len(y)), test_size=0.3, stratify=y, random_state=0)
views = [images[:, v::4] / 16 for v in range(4)]  # every fourth pixel column
clf = FUMLClassifier(epochs=60, head_bias=0.5, random_state=0).fit([v[train] for v in views], y[train])
normal = [v[test] for v in views]
conflict, _ = corrupt_views(normal, y[test], noise_ratio=0, conflict_ratio=1, random_state=0)

figure, axes = plt.subplots(figsize=(5, 2.4), layout="constrained")
for rows, label in ((normal, "normal"), (conflict, "one of four views from another class")):
    accuracy = clf.score(rows, y[test])
    axes.hist(clf.uncertainty(rows), bins=np.linspace(0, 1, 41), alpha=0.6, label=f"{label} (accuracy {accuracy:.3f})")
axes.set(xlabel="uncertainty of the decision", ylabel="test rows", title="FUML on scikit-learn's digits in 4 views")
axes.legend(frameon=False)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
