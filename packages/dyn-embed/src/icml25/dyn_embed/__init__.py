"""Vectors whose l_p distances track shortest paths in a graph under edge insertions and deletions."""

from importlib.metadata import version as _version

from icml25.dyn_embed.baselines import frechet_embedding, landmark_embedding
from icml25.dyn_embed.clustering import ShiftedClustering
from icml25.dyn_embed.dynamic import DynamicEmbedding
from icml25.dyn_embed.embedding import DecrementalEmbedding, StaticEmbedding
from icml25.dyn_embed.metrics import distortion

__version__ = _version("icml25-dyn-embed")
__all__ = [
    "DecrementalEmbedding",
    "DynamicEmbedding",
    "ShiftedClustering",
    "StaticEmbedding",
    "__version__",
    "distortion",
    "frechet_embedding",
    "landmark_embedding",
]
