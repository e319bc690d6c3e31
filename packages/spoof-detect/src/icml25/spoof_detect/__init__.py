"""Statistical tests that tell forged watermarked text from genuine."""

from importlib.metadata import version as _version

from icml25.spoof_detect.colors import (
    CallableColors,
    Colors,
    GumbelColors,
    HashColors,
    KGWColors,
    SynthIDColors,
)
from icml25.spoof_detect.ngrams import NgramReference, context_only, sorted_context, sorted_ngram
from icml25.spoof_detect.power import expected_statistic, required_tokens
from icml25.spoof_detect.spoof_test import (
    CorrelationResult,
    SpoofResult,
    SpoofTest,
    correlation_test,
    fisher_difference,
)

__version__ = _version("icml25-spoof-detect")
__all__ = [
    "CallableColors",
    "Colors",
    "CorrelationResult",
    "GumbelColors",
    "HashColors",
    "KGWColors",
    "NgramReference",
    "SpoofResult",
    "SpoofTest",
    "SynthIDColors",
    "__version__",
    "context_only",
    "correlation_test",
    "expected_statistic",
    "fisher_difference",
    "required_tokens",
    "sorted_context",
    "sorted_ngram",
]
