"""Theory of trained two-layer networks from kernels to features: kernel rescaling, kernel adaptation, exact, Langevin."""

from importlib.metadata import version as _version

from icml25.feature_scales.exact import ExactPosterior, exact_posterior
from icml25.feature_scales.kernels import kernel
from icml25.feature_scales.langevin import Samples, langevin
from icml25.feature_scales.model import ConvergenceError, TwoLayer
from icml25.feature_scales.tasks import ising_task, teacher_task
from icml25.feature_scales.theory import Theory, anneal, solve

__version__ = _version("icml25-feature-scales")
__all__ = [
    "ConvergenceError",
    "ExactPosterior",
    "Samples",
    "Theory",
    "TwoLayer",
    "__version__",
    "anneal",
    "exact_posterior",
    "ising_task",
    "kernel",
    "langevin",
    "solve",
    "teacher_task",
]
