"""Deep fuzzy multi-view learning for reliable classification (FUML, ICML 2025)."""

from .corruption import corrupt_views
from .estimator import FUMLClassifier, FusionReport
from .fusion import conflict, drf, fuse, fusion_weights
from .loss import category_credibility_loss, fuml_loss
from .matfile import load_mat
from .membership import credibility, memberships, training_credibility, uncertainty
from .model import FUML, FUMLOutput, ViewMLP

__all__ = [
    "FUML",
    "FUMLClassifier",
    "FUMLOutput",
    "FusionReport",
    "ViewMLP",
    "category_credibility_loss",
    "conflict",
    "corrupt_views",
    "credibility",
    "drf",
    "fuml_loss",
    "fuse",
    "fusion_weights",
    "load_mat",
    "memberships",
    "training_credibility",
    "uncertainty",
]
__version__ = "0.1.0"
