"""Classify rows that are described by several views, some of which may be wrong at test time."""

from itertools import pairwise

import numpy as np
from benchopt import BaseObjective
from sklearn.model_selection import train_test_split

from icml25.shared.protocols.multiview import (
    accuracy_by_rejection,
    conflicting_views,
    scale_views,
    uncertainty_auroc,
    uncertainty_fpr95,
)


class Objective(BaseObjective):
    """Accuracy and uncertainty on a normal and on a conflicting test set."""

    name = "Multi-view"
    parameters = {"budget": ["smoke"], "seed": [0]}  # noqa: RUF012
    sampling_strategy = "run_once"

    def set_data(self, views, y, name):
        """Split 80/20 by class and corrupt a copy of the test part."""
        train, test = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=self.seed)
        self.y_train, self.y_test = y[train], y[test]
        self.train, self.normal = scale_views([v[train] for v in views], [v[test] for v in views])
        self.conflict, _ = conflicting_views(self.normal, self.y_test, (self.train, self.y_train), self.seed)

    def get_objective(self):
        """Hand out training rows with labels, and test rows without."""
        return {
            "views_train": self.train,
            "y_train": self.y_train,
            "views_normal": self.normal,
            "views_conflict": self.conflict,
            "n_classes": int(self.y_train.max()) + 1,
            "budget": self.budget,
            "seed": self.seed,
        }

    def evaluate_result(
        self,
        label_normal,
        label_conflict,
        uncertainty_normal,
        uncertainty_conflict,
        seconds,
        peak_memory_mb,
        label_orders=None,
        **scalars,
    ):
        """Turn labels and uncertainties into the columns of the result table.

        ``label_orders`` (orders, n) are labels of the conflicting set with the views fused in other orders.
        """
        correct = label_conflict == self.y_test
        keep100, keep90, keep80, keep70 = kept = accuracy_by_rejection(correct, uncertainty_conflict)
        spread = np.nan
        if label_orders is not None:
            accuracy = (label_orders == self.y_test).mean(1)
            spread = accuracy.max() - accuracy.min()
        return {
            "accuracy_normal": float((label_normal == self.y_test).mean()),
            "accuracy_conflict": keep100,
            "uncertainty_gap": float(uncertainty_conflict.mean() - uncertainty_normal.mean()),
            "uncertainty_auroc": uncertainty_auroc(uncertainty_normal, uncertainty_conflict),
            "fpr95": uncertainty_fpr95(uncertainty_normal, uncertainty_conflict),
            "accuracy_keep90": keep90,
            "accuracy_keep80": keep80,
            "accuracy_keep70": keep70,
            "rejection_gain": keep80 - keep100,
            "rejection_drop": float(max(a - b for a, b in pairwise(kept))),
            "order_spread": float(spread),
            "seconds": seconds,
            "peak_memory_mb": peak_memory_mb,
            **scalars,
        }

    def get_one_result(self):
        """Return a result of the right shape."""
        n = len(self.y_test)
        return {
            "label_normal": np.zeros(n, dtype=int),
            "label_conflict": np.zeros(n, dtype=int),
            "uncertainty_normal": np.linspace(0, 1, n),
            "uncertainty_conflict": np.linspace(0, 1, n),
            "seconds": 0.0,
            "peak_memory_mb": 0.0,
        }
