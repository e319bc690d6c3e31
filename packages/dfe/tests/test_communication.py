"""Bits arrive as they were sent, means within half a grid step, ranks distinct."""

from collections.abc import Generator

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.dfe.communication import (
    MeanCodec,
    decode_decision,
    encode_decision,
    from_bits,
    from_signed_bits,
    index_bits,
    musical_chairs,
    musical_chairs_rounds,
    to_bits,
)
from icml25.dfe.env import collisions


@settings(deadline=None, max_examples=100)
@given(number=st.integers(-64, 63))
def test_bits(number: int) -> None:
    assert from_signed_bits(to_bits(number, 7)) == number
    assert from_bits(to_bits(number + 64, 7)) == number + 64
    assert to_bits(5, 4) == [0, 1, 0, 1]


def test_index_bits() -> None:
    assert [index_bits(n) for n in (1, 2, 3, 4, 5, 48, 64, 65)] == [0, 1, 2, 2, 3, 6, 6, 7]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), first=st.floats(0.02, 2.0))
def test_means_arrive_within_half_a_step(seed: int, first: float) -> None:
    rng = np.random.default_rng(seed)
    sender, receiver = MeanCodec(5), MeanCodec(5)
    means, step, arms = rng.random(5), first, np.arange(5)
    for _ in range(6):
        width = receiver.width(step)
        bits = sender.encode(means, arms, step)
        assert len(bits) == width * len(arms)
        values = receiver.decode(bits, arms, step)
        assert (values == sender.values).all()
        assert (np.abs(values - means)[arms] <= step / 2 + 1e-12).all()
        step *= 0.7
        arms = arms[rng.random(len(arms)) < 0.9]
        means = means + rng.uniform(-20, 20, 5) * step
    assert receiver.width(step) == 7


def test_widths_of_the_first_message() -> None:
    assert [MeanCodec(1).width(q) for q in (0.38, 0.25, 0.1, 1.0, 8.0)] == [3, 3, 5, 1, 1]


def test_saturation_is_shared_by_both_sides() -> None:
    sender, receiver = MeanCodec(1), MeanCodec(1)
    arms = np.array([0])
    receiver.decode(sender.encode(np.array([-3.0]), arms, 0.1), arms, 0.1)
    assert receiver.values[0] == 0
    receiver.decode(sender.encode(np.array([99.0]), arms, 0.1), arms, 0.1)
    assert receiver.values[0] == sender.values[0] == 0.1 * 63


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 5), extra=st.integers(0, 4))
def test_decisions_arrive_as_sent(seed: int, n: int, extra: int) -> None:
    rng = np.random.default_rng(seed)
    k = n + extra
    old_active = rng.random((n, k)) < 0.8
    active = old_active & (rng.random((n, k)) < rng.choice([0.0, 0.5, 1.0]))
    old_base = rng.permutation(k)[:n]
    base = old_base if rng.random() < 0.3 else rng.permutation(k)[:n]
    wire = iter(bits := encode_decision(old_active, active, old_base, base))

    def listen(n_bits: int) -> Generator:
        yield 0
        return [next(wire) for _ in range(n_bits)]

    reader = decode_decision(listen, old_active, old_base)
    found = None
    try:
        next(reader)
        while True:
            reader.send((0.0, False))
    except StopIteration as stop:
        found = stop.value
    assert next(wire, None) is None and len(bits) >= 2
    assert (found[0] == active).all() and (found[1] == base).all()


def seat(n: int, k: int, horizon: int, seed: int) -> list:
    scripts = [musical_chairs(k, horizon, rng) for rng in np.random.default_rng(seed).spawn(n)]
    arms = [next(script) for script in scripts]
    found = []
    for _ in range(sum(musical_chairs_rounds(k, horizon))):
        collided = collisions(np.array([arms]), k)[0].tolist()
        arms = []
        for script, collision in zip(scripts, collided, strict=True):
            try:
                arms.append(script.send((0.0, collision)))
            except StopIteration as stop:
                found.append(stop.value)
    return found


def test_musical_chairs_ranks_are_distinct() -> None:
    right = 0
    for seed in range(100):
        n = 1 + seed % 8
        found = seat(n, 8, 10**5, seed)
        right += sorted(found) == [(rank, n) for rank in range(n)]
    assert right >= 99


def test_musical_chairs_without_time_finds_nothing() -> None:
    assert seat(3, 3, 1, 0) == [None] * 3
    assert musical_chairs_rounds(8, 10**5) == (185, 16)
