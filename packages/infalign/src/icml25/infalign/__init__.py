"""InfAlign: align a language model for the procedure that will serve it, best-of-N or worst-of-N."""

from importlib.metadata import version as _version

from icml25.infalign.analysis import Tilt, beta_for_kl, fit_optimal, optimal, optimum_at_kl, tilted, tradeoff
from icml25.infalign.calibration import Calibrator, FewRolloutsWarning, RepeatedPromptWarning, prompt_key
from icml25.infalign.evaluation import WinRate, inference_win_rate, subset_weights, tilt_weights
from icml25.infalign.procedures import BestOf, Procedure, Standard, WorstOf, calibrated_reward
from icml25.infalign.rl import CTRLReward, reward_model_fn
from icml25.infalign.tabular import (
    ConvergenceError,
    ctrl,
    inference_distribution,
    kl_divergence,
    kl_rl,
    optimal_policy,
    policy_at_kl,
    win_rate,
)
from icml25.infalign.transforms import (
    Transform,
    best_of_n,
    exponential,
    from_grid,
    gumbel,
    identity,
    logarithm,
    power,
    worst_of_n,
    worst_power,
)

__version__ = _version("icml25-infalign")
__all__ = [
    "BestOf",
    "CTRLReward",
    "Calibrator",
    "ConvergenceError",
    "FewRolloutsWarning",
    "Procedure",
    "RepeatedPromptWarning",
    "Standard",
    "Tilt",
    "Transform",
    "WinRate",
    "WorstOf",
    "__version__",
    "best_of_n",
    "beta_for_kl",
    "calibrated_reward",
    "ctrl",
    "exponential",
    "fit_optimal",
    "from_grid",
    "gumbel",
    "identity",
    "inference_distribution",
    "inference_win_rate",
    "kl_divergence",
    "kl_rl",
    "logarithm",
    "optimal",
    "optimal_policy",
    "optimum_at_kl",
    "policy_at_kl",
    "power",
    "prompt_key",
    "reward_model_fn",
    "subset_weights",
    "tilt_weights",
    "tilted",
    "tradeoff",
    "win_rate",
    "worst_of_n",
    "worst_power",
]
