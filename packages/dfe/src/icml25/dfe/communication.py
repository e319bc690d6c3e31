"""Talking by collisions: ranks from musical chairs, means as grid indices, decisions as bits."""

from collections.abc import Callable, Generator
from math import ceil, log, log2
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

DIFFERENCE_BITS = 7  # on the good event a mean moves by less than 24 grid steps between two epochs
GRID_STEPS = 8  # grid steps in a half-width


def to_bits(number: int, width: int) -> list[int]:
    """The lowest ``width`` bits, highest first; two's complement of a negative number."""
    return [number >> place & 1 for place in reversed(range(width))]


def from_bits(bits: list[int]) -> int:
    """The number >= 0 whose bits these are, highest first."""
    number = 0
    for bit in bits:
        number = number << 1 | int(bit)
    return number


def from_signed_bits(bits: list[int]) -> int:
    """The number whose two's complement these bits are."""
    return from_bits(bits) - (bits[0] << len(bits))


def index_bits(n: int) -> int:
    """Bits of a number in 0..n-1."""
    return (n - 1).bit_length()


class MeanCodec:
    """Means of one player on a grid that becomes finer: absolute indices first, differences to the last value then.

    Sender and receiver hold one each; both keep the decoded values, so they agree on them exactly.

    Parameters
    ----------
    n_arms : K.

    Source: derived here; the error is at most half a grid step for means in [0, 1] that move by at most 63 steps.
    """

    def __init__(self, n_arms: int) -> None:
        self.values: Float[np.ndarray, " K"] = np.zeros(n_arms)
        self._absolute = True

    def width(self, step: float) -> int:
        """Bits a mean, for grid step q."""
        return max(ceil(log2(1 / step)) + 1, 1) if self._absolute else DIFFERENCE_BITS

    def encode(self, means: Float[np.ndarray, " K"], arms: Int[np.ndarray, " A"], step: float) -> list[int]:
        """Bits for the means of these arms; the values that the receiver will hold are noted."""
        bits, width = [], self.width(step)
        low, high = (0, 2**width - 1) if self._absolute else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        for index in np.rint(means[arms] / step).astype(int) - self._reference(arms, step):
            bits += to_bits(int(np.clip(index, low, high)), width)
        self.decode(bits, arms, step)
        return bits

    def decode(self, bits: list[int], arms: Int[np.ndarray, " A"], step: float) -> Float[np.ndarray, " K"]:
        """Values of all arms after these bits for these arms."""
        width, read = self.width(step), from_bits if self._absolute else from_signed_bits
        moves = np.array([read(bits[start : start + width]) for start in range(0, len(bits), width)], dtype=int)
        self.values[arms] = step * (self._reference(arms, step) + moves)
        self._absolute = False
        return self.values

    def _reference(self, arms: np.ndarray, step: float) -> np.ndarray:
        return np.rint(self.values[arms] / step).astype(int)


def encode_decision(
    old_active: Bool[np.ndarray, "N K"],
    active: Bool[np.ndarray, "N K"],
    old_base: Int[np.ndarray, " N"],
    base: Int[np.ndarray, " N"],
) -> list[int]:
    """Bits of what the leader decided: pairs dropped, and the base matching where it changed."""
    width = index_bits(active.size)
    dropped = np.flatnonzero(old_active & ~active).tolist()
    bits = [int(bool(dropped))]
    if dropped:
        bits += to_bits(len(dropped) - 1, width)
        for pair in dropped:
            bits += to_bits(pair, width)
    changed = bool((base != old_base).any())
    bits.append(int(changed))
    if changed:
        for arm in base.tolist():
            bits += to_bits(arm, index_bits(active.shape[1]))
    return bits


Rounds = Generator[int | None, tuple[float, bool], Any]  # yields an arm (None: waits for a message)


def decode_decision(
    listen: Callable[[int], Rounds], old_active: Bool[np.ndarray, "N K"], old_base: Int[np.ndarray, " N"]
) -> Rounds:
    """Read `encode_decision`'s bits as they come: ``listen(n)`` plays until n bits have arrived."""
    active, base = old_active.copy(), old_base
    width, arm_width = index_bits(active.size), index_bits(active.shape[1])
    if (yield from listen(1))[0]:
        count = from_bits((yield from listen(width))) + 1
        for _ in range(count):
            active.flat[from_bits((yield from listen(width)))] = False
    if (yield from listen(1))[0]:
        arms = []
        for _ in range(len(base)):
            arms.append(from_bits((yield from listen(arm_width))))
        base = np.array(arms, dtype=np.int64)
    return active, base


def musical_chairs_rounds(n_arms: int, horizon: int) -> tuple[int, int]:
    """Rounds of the two parts: finding an arm of one's own, ceil(2 K log T), and counting the others, 2 K."""
    return ceil(2 * n_arms * log(horizon)), 2 * n_arms


def musical_chairs(
    n_arms: int, horizon: int, rng: np.random.Generator
) -> Generator[int, tuple[float, bool], tuple[int, int] | None]:
    """A player that knows only K and T finds its rank and the number of players from its collisions.

    Yields arms, is sent (reward, collision), returns (rank, number of players), or None where no arm became its own.

    Source: Boursier and Perchet (2019), sequential hopping: a player whose own arm is k waits 2 k rounds and then moves
    to the next arm each round; it meets each other player exactly once, those of lower arms while it waits.
    """
    chairs, hops = musical_chairs_rounds(n_arms, horizon)
    own = None
    for _ in range(chairs):
        arm = int(rng.integers(n_arms)) if own is None else own
        _, collided = yield arm
        if own is None and not collided:
            own = arm
    place = 0 if own is None else own
    rank = others = 0
    for t in range(hops):
        waiting = t < 2 * place
        _, collided = yield place if waiting else (place + t - 2 * place + 1) % n_arms
        others += collided
        rank += collided and waiting
    return None if own is None else (int(rank), int(others) + 1)
