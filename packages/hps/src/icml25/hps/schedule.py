"""From easy to hard negatives in the course of training."""

import math
from dataclasses import dataclass

__all__ = ["GammaSchedule"]

KINDS = ("constant", "linear", "stages")


@dataclass(frozen=True)
class GammaSchedule:
    """gamma as a function of the part of training that is done.

    Parameters
    ----------
    kind : "linear" goes from start to end; "stages" changes after every fifth, as in the paper and its code, and so stops a fifth
        before the end (-5, -3, -1, 1, 3); "constant" stays at start.
    start, end : values of gamma; -5 and 5 in the paper.

    Raises
    ------
    ValueError: an unknown kind, or a value that isn't finite.
    """

    kind: str = "linear"
    start: float | int = -5.0
    end: float | int = 5.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; expected one of {KINDS}")
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ValueError(f"start and end are {self.start} and {self.end}; expected finite numbers")

    def at(self, progress: float | int) -> float | int:
        """Gamma when that part of training is done.

        Parameters
        ----------
        progress : in [0, 1], steps done over all steps.

        Raises
        ------
        ValueError: progress outside [0, 1].
        """
        if not 0 <= progress <= 1:
            raise ValueError(f"progress is {progress}; expected a number in [0, 1]")
        if self.kind == "constant":
            return self.start
        done = min(math.floor(5 * progress), 4) / 5 if self.kind == "stages" else progress
        return self.start + (self.end - self.start) * done
