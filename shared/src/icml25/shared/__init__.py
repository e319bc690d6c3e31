"""Dataset loaders, evaluation protocols and the benchmark command of the icml25 packages."""

from importlib.metadata import version as _version

__version__ = _version("icml25-shared")
__all__ = ["__version__"]
