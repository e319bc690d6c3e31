"""In-context learning as retrieval from an associative memory that the examples reshape: landscapes, exact predictions, probes."""

from importlib.metadata import version as _version

from icml25.icl_hopfield.gaussian import (
    posterior_predict,
    posterior_prefix,
    posterior_risk,
    prior_as_ghosts,
    softmax_finite,
    softmax_limit,
)
from icml25.icl_hopfield.memory import (
    Memory,
    context_share,
    energy_path,
    energy_shift,
    ghost_examples,
    reshaping_effect,
)
from icml25.icl_hopfield.models import ICLTransformer, OneLayerAttention
from icml25.icl_hopfield.stability import generalization_bound, stability_bound, stability_profile
from icml25.icl_hopfield.tasks import DecisionTreeTask, LinearRegressionTask, ReLUNetTask, Task, flip_labels
from icml25.icl_hopfield.train import adam, evaluate_prefix, train

__version__ = _version("icml25-icl-hopfield")
__all__ = [
    "DecisionTreeTask",
    "ICLTransformer",
    "LinearRegressionTask",
    "Memory",
    "OneLayerAttention",
    "ReLUNetTask",
    "Task",
    "__version__",
    "adam",
    "context_share",
    "energy_path",
    "energy_shift",
    "evaluate_prefix",
    "flip_labels",
    "generalization_bound",
    "ghost_examples",
    "posterior_predict",
    "posterior_prefix",
    "posterior_risk",
    "prior_as_ghosts",
    "reshaping_effect",
    "softmax_finite",
    "softmax_limit",
    "stability_bound",
    "stability_profile",
    "train",
]
