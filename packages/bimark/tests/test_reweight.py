"""One layer and many, against closed forms and enumeration."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icml25.bimark import bit_flip_reweight, multilayer_reweight


def distributions(rng, rows, vocab, scale=2.0):
    return torch.from_numpy(rng.standard_normal((rows, vocab)) * scale).softmax(-1)


@given(st.integers(2, 40), st.integers(1, 6), st.sampled_from([1.0, 0.5, 0.1]), st.integers(0, 2**32))
def test_the_mean_over_all_directions_is_the_distribution(vocab, layers, base_scale, seed):
    rng = np.random.default_rng(seed)
    probs = distributions(rng, 1, vocab, rng.uniform(0.1, 6))
    partitions = torch.from_numpy(rng.random((layers, vocab)) < 0.5)
    directions = torch.tensor(list(itertools.product([0, 1], repeat=layers)))
    out = multilayer_reweight(probs.expand(len(directions), -1), partitions, directions, base_scale)
    assert (out >= 0).all()
    torch.testing.assert_close(out.sum(-1), torch.ones(len(out), dtype=out.dtype), atol=1e-12, rtol=0)
    torch.testing.assert_close(out.mean(0), probs[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("p1", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("base_scale", [1.0, 0.5, 0.1])
def test_probability_that_a_token_votes_for_the_bit(p1, base_scale):
    probs = torch.tensor([[p1, 1 - p1]], dtype=torch.float64)
    v1 = torch.tensor([True, False])
    right = [bit_flip_reweight(probs, v1, torch.tensor([e]), base_scale)[0, 1 - e] for e in (0, 1)]
    assert sum(right) / 2 == pytest.approx(0.5 + min(base_scale * p1, 1 - p1), abs=1e-12)


def test_tails_empty_a_small_half_and_heads_double_an_even_one():
    v1 = torch.tensor([True, True, False, False])
    small = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    out = bit_flip_reweight(small, v1, torch.tensor([0]))
    assert (out[0, :2] == 0).all()
    torch.testing.assert_close(out[0, 2:], small[0, 2:] * (1 + 0.3 / 0.7))
    even = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)
    out = bit_flip_reweight(even, v1, torch.tensor([1]))
    torch.testing.assert_close(out, torch.tensor([[0.2, 0.8, 0, 0]], dtype=torch.float64))


@pytest.mark.parametrize("e", [0, 1])
@pytest.mark.parametrize("v1", [(True, False, False), (False, True, True)])
def test_a_determined_step_stays(e, v1):
    probs = torch.tensor([[1.0, 0.0, 0.0]])
    out = bit_flip_reweight(probs, torch.tensor(v1), torch.tensor([e]))
    torch.testing.assert_close(out, probs, atol=0, rtol=0)


def test_each_layer_works_on_the_one_before():
    rng = np.random.default_rng(0)
    probs = distributions(rng, 5, 20)
    partitions, directions = torch.from_numpy(rng.random((4, 20)) < 0.5), torch.from_numpy(rng.integers(0, 2, (5, 4)))
    expected = probs
    for layer in range(4):
        expected = bit_flip_reweight(expected, partitions[layer], directions[:, layer], 0.7)
    torch.testing.assert_close(multilayer_reweight(probs, partitions, directions, 0.7), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_and_rounding_gives_no_negatives(dtype):
    rng = np.random.default_rng(1)
    probs = distributions(rng, 64, 500, 4.0).to(dtype)
    partitions, directions = torch.from_numpy(rng.random((10, 500)) < 0.5), torch.from_numpy(rng.random((64, 10)) < 0.5)
    out = multilayer_reweight(probs, partitions, directions)
    assert out.dtype == dtype and (out >= 0).all()
    exact = multilayer_reweight(probs.double(), partitions, directions)
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("base_scale", [0, -0.5, 1.01, float("nan")])
def test_base_scale_out_of_range(base_scale):
    probs, v1 = torch.full((1, 4), 0.25), torch.tensor([True, True, False, False])
    with pytest.raises(ValueError, match=r"base_scale must be in \(0, 1\]"):
        bit_flip_reweight(probs, v1, torch.tensor([1]), base_scale)
    with pytest.raises(ValueError, match=r"base_scale must be in \(0, 1\]"):
        multilayer_reweight(probs, v1[None], torch.tensor([[1]]), base_scale)
    with pytest.raises(Exception, match=r"base_scale must be a number|Type-check"):
        bit_flip_reweight(probs, v1, torch.tensor([1]), str(base_scale))


@pytest.mark.parametrize(
    ("probs", "partition", "direction", "error", "match"),
    [
        ([[0.5, 0.5]], [True, False], 2, ValueError, "must be 0 or 1"),
        ([[0.5, 0.6]], [True, False], 1, ValueError, "sum to one"),
        ([[-0.5, 1.5]], [True, False], 1, ValueError, "not negative"),
        ([[float("nan"), 1.0]], [True, False], 1, ValueError, "finite"),
        ([[0.5, 0.5]], [1, 0], 1, TypeError, "must be bool"),
        ([[0, 1]], [True, False], 1, TypeError, "float32 or float64"),
    ],
    ids=str,
)
def test_values_that_make_no_sense(probs, partition, direction, error, match):
    probs, partition, direction = torch.tensor(probs), torch.tensor(partition), torch.tensor([direction])
    with pytest.raises(error, match=match):
        bit_flip_reweight(probs, partition, direction)
    with pytest.raises(error, match=match):
        multilayer_reweight(probs, partition[None], direction[None])


def test_shapes_that_do_not_fit():
    probs = torch.full((2, 4), 0.25)
    with pytest.raises(Exception, match=r"don't fit|Type-check"):
        multilayer_reweight(probs, torch.ones(3, 5, dtype=torch.bool), torch.ones(2, 3))
    with pytest.raises(Exception, match=r"don't fit|Type-check"):
        multilayer_reweight(probs, torch.ones(3, 4, dtype=torch.bool), torch.ones(2, 2))
    with pytest.raises(Exception, match=r"don't fit|Type-check"):
        bit_flip_reweight(probs, torch.ones(5, dtype=torch.bool), torch.ones(2))
