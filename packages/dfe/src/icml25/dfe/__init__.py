"""Decentralized fair elimination: max-min fair multi-player bandits with regret that grows with log T."""

from importlib.metadata import version as _version

from icml25.dfe.baselines import ExploreThenCommit, PacketRandomMatching, PhasedCUCB, UniformMatching
from icml25.dfe.checks import SigmaTooSmallWarning
from icml25.dfe.dfe import (
    DFE,
    AnytimeDFE,
    DFEPlayer,
    HorizonTooShortWarning,
    MusicalChairsError,
    eliminate,
    players,
)
from icml25.dfe.env import Episode, MaxMinBandit, Segment, gap_instance, random_instance
from icml25.dfe.matching import bottleneck_matching, covering_matchings, saturating_support
from icml25.dfe.simulate import SimulationResult, play, simulate

__version__ = _version("icml25-dfe")
__all__ = [
    "DFE",
    "AnytimeDFE",
    "DFEPlayer",
    "Episode",
    "ExploreThenCommit",
    "HorizonTooShortWarning",
    "MaxMinBandit",
    "MusicalChairsError",
    "PacketRandomMatching",
    "PhasedCUCB",
    "Segment",
    "SigmaTooSmallWarning",
    "SimulationResult",
    "UniformMatching",
    "__version__",
    "bottleneck_matching",
    "covering_matchings",
    "eliminate",
    "gap_instance",
    "play",
    "players",
    "random_instance",
    "saturating_support",
    "simulate",
]
