"""Budget-balanced Shapley payments that make federated learning reciprocally fair, with the equilibria they lead to."""

from importlib.metadata import version as _version

from icml25.mshap.accuracy import Accuracy, CallableAccuracy, LinearFractional, PowerLaw, fit_linear_fractional
from icml25.mshap.fedbr import FedBRShap, Round
from icml25.mshap.game import Costs, FLGame, LinearCosts
from icml25.mshap.mechanisms import Mechanism, MShap, NoPayment, WelfareBG, free_riders, reciprocity
from icml25.mshap.shapley import ShapleyEstimator, sample_orders, settle, shapley_shares
from icml25.mshap.solve import Equilibrium, compare, evaluate, exploitability, solve

__version__ = _version("icml25-mshap")
__all__ = [
    "Accuracy",
    "CallableAccuracy",
    "Costs",
    "Equilibrium",
    "FLGame",
    "FedBRShap",
    "LinearCosts",
    "LinearFractional",
    "MShap",
    "Mechanism",
    "NoPayment",
    "PowerLaw",
    "Round",
    "ShapleyEstimator",
    "WelfareBG",
    "__version__",
    "compare",
    "evaluate",
    "exploitability",
    "fit_linear_fractional",
    "free_riders",
    "reciprocity",
    "sample_orders",
    "settle",
    "shapley_shares",
    "solve",
]
