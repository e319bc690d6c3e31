"""Short versions of what else one could do, for the benchmark: same epochs, same inverse gap weighting."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from icml25.cdf_bandit.bandit import EpochBandit
from icml25.cdf_bandit.measure import interval
from icml25.cdf_bandit.regression import CDFRegressor
from icml25.cdf_bandit.utility import evaluate_utility


class MeanRegressor:
    """Ridge regression of the outcome on random Fourier features of the context, one per action.

    Parameters
    ----------
    n_actions : A.
    n_features : random features.
    gamma : 1 / (2 width^2) of the kernel.
    seed : of the features.
    """

    def __init__(self, n_actions: int, n_features: int = 200, gamma: float = 10.0, seed: int = 0) -> None:
        self.n_actions, self.n_features, self.gamma, self.seed = n_actions, n_features, gamma, seed

    def fit(self, x: Float[np.ndarray, "n d"], a: Int[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> "MeanRegressor":
        """Fit one ridge regression per action; an action never taken gets the mean of all outcomes."""
        from sklearn.dummy import DummyRegressor
        from sklearn.kernel_approximation import RBFSampler
        from sklearn.linear_model import Ridge

        self.features = RBFSampler(gamma=self.gamma, n_components=self.n_features, random_state=self.seed).fit(x)
        z = self.features.transform(x)
        self.models = []
        for action in range(self.n_actions):
            taken = a == action
            model = Ridge(1.0).fit(z[taken], y[taken]) if taken.any() else DummyRegressor().fit(z, y)
            self.models.append(model)
        return self

    def predict(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n A"]:
        """Mean outcome of every action."""
        z = self.features.transform(x)
        return np.stack([model.predict(z) for model in self.models], 1)


class MeanFalcon(EpochBandit):
    """FALCON on the mean outcome, whatever the utility.

    Parameters
    ----------
    n_actions, domain, **options : of ``EpochBandit``.
    gamma : of ``MeanRegressor``.
    """

    def __init__(self, n_actions: int, domain: tuple[float, float], gamma: float = 10.0, **options: Any) -> None:
        self.model = MeanRegressor(n_actions, gamma=gamma)
        super().__init__(n_actions, domain, **options)

    def _learn(
        self, x: Float[np.ndarray, "n d"], a: Int[np.ndarray, " n"], y: Float[np.ndarray, " n"], delta: float
    ) -> tuple[float, int]:
        self.model = MeanRegressor(self.n_actions, gamma=self.model.gamma).fit(x, a, y)
        return math.sqrt(self.model.n_features * math.log(len(y) / delta)), len(y)

    def _values(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n A"]:
        return self.model.predict(x)


class EmpiricalBandit(EpochBandit):
    """Utility of the empirical CDF of each action, whatever the context.

    Parameters
    ----------
    n_actions, domain, **options : of ``EpochBandit``.
    utility : u(F, s, m).
    """

    def __init__(
        self, n_actions: int, domain: tuple[float, float], utility: Callable[..., Any], **options: Any
    ) -> None:
        self.utility = utility
        super().__init__(n_actions, domain, **options)

    def _learn(
        self, x: Float[np.ndarray, "n d"], a: Int[np.ndarray, " n"], y: Float[np.ndarray, " n"], delta: float
    ) -> tuple[float, int]:
        s = interval(*self.domain, 256)
        below = y[:, None] <= s.points
        F = np.stack([below[a == k if (a == k).any() else slice(None)].mean(0) for k in range(self.n_actions)])
        self.row = evaluate_utility(self.utility, F, s.points, s.weights)
        return math.sqrt(self.n_actions * math.log(len(y) / delta)), len(y)

    def _values(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n A"]:
        return np.tile(self.row, (len(x), 1))


class RidgeCDFRegressor(CDFRegressor):
    """Finite-dimensional CDF regression (Zhang, Makur, Azizzadenesheli 2022): ridge on a few atoms, no truncation."""

    ridge = 1e-2

    def _least_squares(
        self,
        eigenvalues: Float[np.ndarray, " G"],
        vectors: Float[np.ndarray, "G G"],
        moment: Float[np.ndarray, " G"],
        rank: int,
    ) -> Float[np.ndarray, " G"]:
        return vectors @ (vectors.T @ moment / (eigenvalues + self.ridge))
