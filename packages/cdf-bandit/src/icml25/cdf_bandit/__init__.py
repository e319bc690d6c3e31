"""Contextual bandits for any functional of the outcome's distribution, by regression of the whole conditional CDF."""

from importlib.metadata import version as _version

from icml25.cdf_bandit.bandit import CDFBandit, EpochBandit, inverse_gap_weighting
from icml25.cdf_bandit.basis import CallableBasis, GaussianBasis, KumaraswamyBasis, LogisticBasis
from icml25.cdf_bandit.env import MixtureEnvironment, Regret, simulate
from icml25.cdf_bandit.measure import Measure, atoms, box, interval
from icml25.cdf_bandit.operator import estimate_decay
from icml25.cdf_bandit.regression import CDFRegressor
from icml25.cdf_bandit.utility import (
    CVaR,
    Entropic,
    Expectation,
    MeanVariance,
    Moment,
    Probability,
    SmoothedQuantile,
    Utility,
    Variance,
)

__version__ = _version("icml25-cdf-bandit")
__all__ = [
    "CDFBandit",
    "CDFRegressor",
    "CVaR",
    "CallableBasis",
    "Entropic",
    "EpochBandit",
    "Expectation",
    "GaussianBasis",
    "KumaraswamyBasis",
    "LogisticBasis",
    "MeanVariance",
    "Measure",
    "MixtureEnvironment",
    "Moment",
    "Probability",
    "Regret",
    "SmoothedQuantile",
    "Utility",
    "Variance",
    "__version__",
    "atoms",
    "box",
    "estimate_decay",
    "interval",
    "inverse_gap_weighting",
    "simulate",
]
