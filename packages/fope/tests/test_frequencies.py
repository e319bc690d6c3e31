"""The floor, the main frequencies, the noise and YaRN, against values worked out by hand and against transformers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icml25.fope import (
    FopeConfig,
    FourierPositionEmbedding,
    cycles,
    kept_frequencies,
    noise_std,
    rope_frequencies,
    step_eye,
    yarn_frequencies,
)


@pytest.mark.parametrize(("d", "length", "kept"), [(64, 512, 16), (64, 1024, 18), (64, 2048, 21), (128, 512, 31)])
def test_number_of_kept_frequencies(d, length, kept):
    assert len(kept_frequencies(d, FopeConfig(length))) == kept


def test_kept_are_exactly_those_that_finish_a_period():
    for length in (64, 500, 4096):
        grid = rope_frequencies(64, 10000.0)
        kept = kept_frequencies(64, FopeConfig(length))
        assert torch.equal(kept, grid[cycles(grid, length) >= 1])
        assert (cycles(grid[len(kept) :], length) < 1).all() and len(kept) < len(grid)


def test_a_frequency_on_the_floor_is_kept():
    for index, length in ((8, 256), (5, 100), (11, 777)):
        theta = (length / (2 * math.pi)) ** (32 / (2 * index))
        assert len(kept_frequencies(32, FopeConfig(length, theta=theta))) == index + 1
        assert len(kept_frequencies(32, FopeConfig(length, theta=theta, floor_ratio=1.0001))) == index


def test_floor_ratio_and_finer_grid():
    assert len(kept_frequencies(64, FopeConfig(512, floor_ratio=0.0))) == 32
    assert len(kept_frequencies(64, FopeConfig(512, floor_ratio=2.0))) == 13
    finer = kept_frequencies(64, FopeConfig(512, n_freq_dim=128))
    assert len(finer) == 31 and torch.equal(finer[::2], kept_frequencies(64, FopeConfig(512)))


def test_no_frequency_survives():
    with pytest.raises(ValueError, match="no frequency survives max_train_length = 6"):
        kept_frequencies(64, FopeConfig(6))
    assert len(kept_frequencies(64, FopeConfig(7))) == 1
    assert len(kept_frequencies(64, FopeConfig(6, clip_floor=False))) == 32


def test_n_freq_dim_below_head_dim():
    with pytest.raises(ValueError, match="n_freq_dim must be at least head_dim = 64, got 32"):
        kept_frequencies(64, FopeConfig(512, n_freq_dim=32))


@pytest.mark.parametrize("dim", [0, 3, -4])
def test_bad_dim(dim):
    with pytest.raises(ValueError, match="dim must be even"):
        rope_frequencies(dim)


def test_step_eye():
    assert torch.equal(step_eye(4, 4), torch.eye(4))
    eye = step_eye(18, 16)
    assert eye.sum() == 9 and (eye.argmax(0)[:9] == torch.arange(0, 18, 2)).all() and (eye[:, 9:] == 0).all()
    assert step_eye(21, 16).sum() == 11


@given(pairs=st.integers(1, 40), more=st.integers(0, 60))
def test_spread_gives_each_pair_a_frequency_of_its_own(pairs, more):
    eye = step_eye(pairs + more, pairs, "spread")
    rows = eye.argmax(0)
    assert (eye.sum(0) == 1).all() and len(set(rows.tolist())) == pairs
    assert rows[0] == 0 and (pairs == 1 or rows[-1] == pairs + more - 1)


def test_noise_std_of_the_tensor_of_the_official_code():
    assert noise_std(8, 16, 16, FopeConfig(512)) == pytest.approx(0.02165, abs=5e-6)
    tensor = torch.empty(8, 16, 16)
    fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(tensor)
    assert noise_std(8, 16, 16, FopeConfig(512)) == pytest.approx(0.3 * math.sqrt(2 / (fan_in + fan_out)))
    assert noise_std(8, 16, 16, FopeConfig(512, separate_heads=False)) == pytest.approx(0.3 * math.sqrt(2 / 32))
    assert noise_std(8, 16, 16, FopeConfig(512, init_scale="paper")) == 0.3
    assert noise_std(8, 16, 16, FopeConfig(512, fourier_series=False)) == 0


@pytest.mark.parametrize("settings", [{}, {"separate_heads": False}, {"init_scale": "paper"}, {"n_freq_dim": 256}])
@pytest.mark.filterwarnings("ignore:.* pairs carry noise:UserWarning")
def test_drawn_noise_has_that_std(settings):
    config = FopeConfig(8192, sigma=0.5, **settings)
    drawn = FourierPositionEmbedding(128, 32, config)
    heads, kept, pairs = drawn.cos_coefficients.shape
    noise = torch.cat([drawn.cos_coefficients - step_eye(kept, pairs), drawn.sin_coefficients - step_eye(kept, pairs)])
    assert noise.std().item() == pytest.approx(noise_std(32, kept, pairs, config), rel=0.05)
    assert abs(noise.mean()) < 5 * noise.std() / math.sqrt(noise.numel())
    assert heads == (32 if config.separate_heads else 1)


def test_yarn_is_that_of_transformers():
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for length, scale, d in ((512, 16.0, 64), (2048, 4.0, 128)):
        rope = {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": scale,
            "original_max_position_embeddings": length,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        }
        model = LlamaConfig(
            hidden_size=4 * d, num_attention_heads=4, max_position_embeddings=int(length * scale), rope_parameters=rope
        )
        theirs, _ = ROPE_INIT_FUNCTIONS["yarn"](model, torch.device("cpu"))
        ours = yarn_frequencies(rope_frequencies(d), 10000.0, scale=scale, original_length=length)
        torch.testing.assert_close(ours.float(), theirs, rtol=1e-5, atol=0)


def test_yarn_after_the_floor():
    plain = kept_frequencies(64, FopeConfig(512))
    scaled = kept_frequencies(64, FopeConfig(512, yarn={"scale": 16, "original_length": 512}))
    assert len(scaled) == len(plain) and scaled[0] == plain[0]
    assert (scaled <= plain).all() and scaled[-1] < plain[-1] / 5  # on the ramp
    same = kept_frequencies(64, FopeConfig(512, yarn={"scale": 1, "original_length": 512}))
    torch.testing.assert_close(same, plain)


def test_yarn_counts_on_the_whole_grid_and_the_finer_grid_needs_series():
    yarn = {"scale": 16, "original_length": 512}
    whole = yarn_frequencies(rope_frequencies(64), 10000.0, **yarn)
    assert torch.equal(kept_frequencies(64, FopeConfig(512, yarn=yarn)), whole[:16])
    plain = kept_frequencies(64, FopeConfig(512, fourier_series=False))
    assert torch.equal(kept_frequencies(64, FopeConfig(512, fourier_series=False, n_freq_dim=128)), plain)


def test_bad_numbers():
    with pytest.raises(ValueError, match="theta must be finite and above 1"):
        rope_frequencies(64, -2.0)
    with pytest.raises(ValueError, match="n_pairs must be at least 1"):
        step_eye(2, 0)
    with pytest.raises(ValueError, match="n_pairs must be at most n_kept = 2"):
        step_eye(2, 3)
    with pytest.raises(ValueError, match="scale"):
        yarn_frequencies(rope_frequencies(64), 10000.0, scale=0, original_length=512)
