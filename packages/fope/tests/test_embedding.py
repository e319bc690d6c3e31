"""The table and the rotation: closed forms, RoPE as a special case, statistics of the draw, state and dtypes."""

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from icml25.fope import FopeConfig, FourierPositionEmbedding, ablation, rotate, step_eye

L = 512


def embedding(head_dim=64, heads=2, length=L, **settings):
    return FourierPositionEmbedding(head_dim, heads, FopeConfig(length, **settings))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def score(module, q, k, n, m):
    """Score of query at n and key at m, (heads,)."""
    turned, _ = module(q, q, torch.tensor([n]))
    _, key = module(k, k, torch.tensor([m]))
    return (turned * key).sum(-1).flatten()


def test_tables_by_hand():
    module = embedding(16, 2, 64, zero_sin=0.25)  # frequencies 1, .3162, .1; the floor is .0982
    cos, sin = module.tables(torch.tensor([0, 7, 100]))
    assert cos.shape == sin.shape == (1, 2, 3, 16)
    for head in range(2):
        for t, n in enumerate((0, 7, 100)):
            for pair in range(3):
                c = sum(
                    module.cos_coefficients[head, i, pair].item() * math.cos(w * n)
                    for i, w in enumerate((1, 10**-0.5, 0.1))
                )
                s = sum(
                    module.sin_coefficients[head, i, pair].item() * math.sin(w * n)
                    for i, w in enumerate((1, 10**-0.5, 0.1))
                )
                assert cos[0, head, t, pair].item() == pytest.approx(c, abs=2e-5)
                assert sin[0, head, t, pair + 8].item() == pytest.approx(s, abs=2e-5)
    assert (cos.unflatten(-1, (2, 8))[..., 3:] == 1).all() and (sin.unflatten(-1, (2, 8))[..., 3:] == 0.25).all()
    assert torch.equal(cos[..., :8], cos[..., 8:]) and torch.equal(sin[..., :8], sin[..., 8:])


def test_half_of_the_head_stays_free_of_position():
    with pytest.warns(UserWarning, match="7 of 16 pairs carry noise and no main frequency"):
        module = embedding(64, 2, 1024)
    assert module.cos_coefficients.shape == (2, 18, 16)
    assert embedding(64, 2, 1024, max_series_pairs=None).cos_coefficients.shape == (2, 18, 18)
    with pytest.warns(UserWarning, match="no main frequency"):
        assert embedding(64, 2, 1024, max_series_pairs=7).cos_coefficients.shape == (2, 18, 7)


def test_main_frequencies():
    with pytest.warns(UserWarning, match="5 of 16"):
        module = embedding(64, 2, 2048)
    found = module.main_frequencies
    torch.testing.assert_close(found[:11], module.frequencies[::2])
    assert found[11:].isnan().all() and len(found) == 16
    spread = embedding(64, 2, 2048, main_frequency="spread").main_frequencies
    assert len(set(spread.tolist())) == 16


def test_rotation_is_a_plus_in_the_half_split_layout():
    module = embedding(8, 1, 64, sigma=0.0, zero_sin=0.0, max_series_pairs=None)  # one frequency survives twice: 1, .1
    x = torch.zeros(1, 1, 1, 8)
    x[..., 0] = 1
    turned, _ = module(x, x, torch.tensor([1]))
    expected = torch.zeros(8)
    expected[0], expected[4] = math.cos(1), math.sin(1)
    torch.testing.assert_close(turned.flatten(), expected)


def test_rope_is_a_special_case():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k = normal(2, 4, 24, 64), normal(2, 4, 24, 64, seed=1)
    positions = torch.arange(24)
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=256, num_attention_heads=4))
    expected = apply_rotary_pos_emb(q, k, *theirs(q, positions[None]))
    for settings in (
        {"clip_floor": False, "sigma": 0.0, "zero_sin": 0.0},
        {"clip_floor": False, "fourier_series": False},
        {"floor_ratio": 0.0, "sigma": 0.0, "max_series_pairs": None},
    ):
        ours = embedding(64, 4, **settings)(q, k, positions)
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    near = [x[:, :, :4] for x in (q, k)]
    for a, b in zip(embedding(64, 4, clip_floor=False, sigma=0.0)(*near, positions[:4]), expected, strict=True):
        torch.testing.assert_close(a, b[:, :, :4], atol=1e-6, rtol=0)


@given(n=st.integers(0, 3000), m=st.integers(0, 3000), shift=st.integers(0, 3000))
def test_without_noise_scores_depend_on_the_distance_only(n, m, shift):
    module = embedding(sigma=0.0)
    q, k = normal(1, 2, 1, 64), normal(1, 2, 1, 64, seed=1)
    torch.testing.assert_close(score(module, q, k, n, m), score(module, q, k, n + shift, m + shift), atol=2e-3, rtol=0)


def test_a_draw_is_not_shift_invariant():
    module = embedding(sigma=3.0)
    q, k = normal(1, 2, 1, 64), normal(1, 2, 1, 64, seed=1)
    assert (score(module, q, k, 5, 2) - score(module, q, k, 105, 102)).abs().max() > 0.1


def test_periodic_where_all_frequencies_are_harmonics():
    theta = 2.0**16  # d = 32: each frequency is half the one before it
    module = FourierPositionEmbedding(32, 2, FopeConfig(64, theta=theta))
    module.frequencies.copy_(2 * math.pi / 64 * torch.tensor([8.0, 4, 2, 1]))
    module._frequencies_rest.zero_()
    cos, sin = module.tables(torch.arange(200))
    torch.testing.assert_close(cos[:, :, :136], cos[:, :, 64:], atol=1e-4, rtol=0)
    torch.testing.assert_close(sin[:, :, :136], sin[:, :, 64:], atol=1e-4, rtol=0)
    assert (cos[:, :, :64] - cos[:, :, 32:96]).abs().max() > 0.1


@pytest.mark.parametrize(("zero_sin", "factor"), [(1.0, 2.0), (0.0, 1.0)])
def test_zero_frequency_pairs_count_the_content(zero_sin, factor):
    module = embedding(zero_sin=zero_sin)
    keep = torch.zeros(64)
    keep[16:32] = keep[48:] = 1  # pairs beyond the 16 series
    q, k = normal(1, 2, 1, 64) * keep, normal(1, 2, 1, 64, seed=1) * keep
    for n, m in ((0, 0), (700, 3)):
        torch.testing.assert_close(score(module, q, k, n, m), factor * (q * k).sum(-1).flatten())


def test_expected_kernel_is_the_mean_over_draws():
    n, m, draws = 37, 12, 20000
    config = FopeConfig(64, sigma=1.0)
    module = FourierPositionEmbedding(16, draws, config)  # each head is a draw
    std = math.sqrt(2 / (3 * (3 + draws)))  # tiny for so many heads: draw with a std that shows instead
    noise = 0.2 * torch.randn(2, draws, 3, 3, generator=torch.Generator().manual_seed(0))
    module.cos_coefficients.copy_(step_eye(3, 3) + noise[0])
    module.sin_coefficients.copy_(step_eye(3, 3) + noise[1])
    cos, sin = (t[0, :, :, :8].double() for t in module.tables(torch.tensor([n, m])))
    even = cos[:, 0] * cos[:, 1] + sin[:, 0] * sin[:, 1]
    odd = cos[:, 0] * sin[:, 1] - sin[:, 0] * cos[:, 1]
    w = module.frequencies.double()
    mean = module.expected_kernel(torch.tensor(n - m))
    assert mean.shape == (8,)
    closed = mean[:3] + (0.2**2 - std**2) * (w * (n - m)).cos().sum()
    error = even.std(0) / math.sqrt(draws)
    assert ((even.mean(0)[:3] - closed).abs() < 4 * error[:3]).all()
    assert ((odd.mean(0)[:3] - (w * (m - n)).sin()).abs() < 4 * odd.std(0)[:3] / math.sqrt(draws)).all()
    assert (mean[3:] == 2).all() and torch.equal(even[:, 3:], torch.full_like(even[:, 3:], 2.0))


def test_expected_kernel_of_the_reported_setting():
    module = embedding(64, 8)
    delta = torch.tensor([[0, 3], [100, -7]])
    kernel = module.expected_kernel(delta)
    tau = 0.02165
    w = module.frequencies.double()
    expected = (w * 3).cos() + tau**2 * (w * 3).cos().sum()
    assert kernel.shape == (2, 2, 32)
    torch.testing.assert_close(kernel[0, 1, :16].double(), expected, atol=1e-4, rtol=0)
    with pytest.warns(UserWarning, match="7 of 16"):
        lacking = embedding(64, 8, 1024)
    assert (lacking.expected_kernel(delta)[..., 9:16].abs() < 0.05).all()
    with pytest.raises(ValueError, match="no closed form with normalize"):
        embedding(normalize=True).expected_kernel(delta)


def test_spectrum_rebuilds_the_table():
    module = embedding(sigma=2.0)
    spectrum, n = module.spectrum(), torch.arange(50)
    assert spectrum.positive.shape == spectrum.negative.shape == (2, 16, 16)
    turn = torch.exp(1j * n[:, None].double() * spectrum.frequencies.double())
    series = torch.einsum("hoi,ti->hto", spectrum.positive.to(turn.dtype), turn)
    series += torch.einsum("hoi,ti->hto", spectrum.negative.to(turn.dtype), turn.conj())
    cos, sin = (t[0, :, :, :16].double() for t in module.tables(n))
    torch.testing.assert_close(series.real, cos, atol=1e-4, rtol=0)
    torch.testing.assert_close(series.imag, sin, atol=1e-4, rtol=0)


def test_spectrum_by_fourier_transform():
    module = FourierPositionEmbedding(32, 1, FopeConfig(64, theta=2.0**16, sigma=1.0))
    module.frequencies.copy_(2 * math.pi / 64 * torch.tensor([8.0, 4, 2, 1]))
    cos, sin = (t[0, 0, :, 0] for t in module.tables(torch.arange(64)))
    found = torch.fft.fft(torch.complex(cos, sin)) / 64
    spectrum = module.spectrum()
    torch.testing.assert_close(found[[8, 4, 2, 1]].real, spectrum.positive[0, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[[-8, -4, -2, -1]].real, spectrum.negative[0, 0], atol=1e-5, rtol=0)


def test_heads_and_bases_draw_their_own():
    module = embedding()
    assert (module.cos_coefficients[0] != module.cos_coefficients[1]).any()
    assert (module.cos_coefficients != module.sin_coefficients).any()
    one = embedding(separate_heads=False, separate_basis=False)
    assert one.cos_coefficients.shape == (1, 16, 16) and "sin_coefficients" not in one.state_dict()
    cos, _sin = one.tables(torch.arange(9))
    assert cos.shape == (1, 2, 9, 64) and torch.equal(cos[:, 0], cos[:, 1])
    assert torch.equal(one.spectrum().negative, torch.zeros(2, 16, 16))


def test_normalize_divides_by_the_sum():
    module = embedding(normalize=True)
    cos, _ = module.tables(torch.zeros(1, dtype=torch.long))
    torch.testing.assert_close(cos[..., :16], torch.ones(1, 2, 1, 16))  # cos 0 = 1: the sum of the coefficients


def test_seeds_and_generators():
    same, other = embedding(seed=1), embedding(seed=2)
    assert torch.equal(embedding(seed=1).cos_coefficients, same.cos_coefficients)
    assert (same.cos_coefficients != other.cos_coefficients).any()
    state = torch.random.get_rng_state()
    config = FopeConfig(L)
    given_one = FourierPositionEmbedding(64, 2, config, generator=torch.Generator().manual_seed(2))
    assert torch.equal(given_one.cos_coefficients, other.cos_coefficients)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_state_is_in_the_checkpoint():
    old, new = embedding(seed=1), embedding(seed=2)
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    for a, b in zip(old.tables(torch.arange(30)), new.tables(torch.arange(30)), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="size mismatch"):
        embedding(length=256).load_state_dict(old.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_casting_the_model_leaves_the_table_in_float32(dtype):
    module = embedding()
    before = module.tables(torch.arange(10))
    module.to(dtype)
    assert all(value.dtype in (torch.float32, torch.int64) for value in module.state_dict().values())
    for a, b in zip(module.tables(torch.arange(10)), before, strict=True):
        assert torch.equal(a, b)
    q = normal(1, 2, 10, 64).to(dtype)
    out, _ = module(q, q, torch.arange(10))
    assert out.dtype == dtype
    exact, _ = embedding()(q.float(), q.float(), torch.arange(10))
    torch.testing.assert_close(out.float(), exact, atol=3e-2, rtol=1e-2)


def test_autocast_does_not_reach_the_table():
    module, positions = embedding(), torch.arange(60)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = module.tables(positions)
    for a, b in zip(inside, module.tables(positions), strict=True):
        assert a.dtype == torch.float32 and torch.equal(a, b)


@pytest.mark.parametrize("n", [50_000, 1_000_003])
def test_phases_hold_at_long_positions(n):
    module = embedding(sigma=0.0)
    w = 10000.0 ** (-2 * torch.arange(16, dtype=torch.float64) / 64)
    cos, sin = module.tables(torch.tensor([n]))
    torch.testing.assert_close(cos[0, 0, 0, :16].double(), (w * n).cos(), atol=1e-3, rtol=0)
    torch.testing.assert_close(sin[0, 0, 0, :16].double(), (w * n).sin(), atol=1e-3, rtol=0)


def test_chunks_are_seamless():
    module = embedding(16, 1, 64)
    cos, sin = module.tables(torch.arange(8190, 8200).repeat(1000))
    few_cos, few_sin = module.tables(torch.arange(8190, 8200))
    for a, b in ((cos[:, :, 8190:8200], few_cos), (sin[:, :, -10:], few_sin)):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_positions_of_each_row():
    module = embedding()
    rows = torch.tensor([[0, 1, 2], [5, 700, 6]])
    cos, _ = module.tables(rows)
    assert cos.shape == (2, 2, 3, 64)
    for b in range(2):
        torch.testing.assert_close(cos[b], module.tables(rows[b])[0][0])
    assert module.tables(torch.zeros(0, dtype=torch.long))[0].shape == (1, 2, 0, 64)
    assert module.tables(torch.zeros((0, 4), dtype=torch.int32))[0].shape == (0, 2, 4, 64)


def test_query_heads_share_the_table_of_their_key_head():
    module = embedding(heads=2)
    q, k = normal(1, 6, 5, 64), normal(1, 2, 5, 64, seed=1)
    turned, _ = module(q, k, torch.arange(5))
    cos, sin = module.tables(torch.arange(5))
    repeated = rotate(q, cos.repeat_interleave(3, 1), sin.repeat_interleave(3, 1))
    torch.testing.assert_close(turned, repeated)


def test_gradients():
    q, k = normal(1, 2, 5, 64).requires_grad_(), normal(1, 2, 5, 64, seed=1).requires_grad_()
    module = embedding()
    assert not list(module.parameters())
    sum(x.square().sum() for x in module(q, k, torch.arange(5))).backward()
    assert q.grad.abs().min() > 0 and k.grad.abs().min() > 0
    learned = embedding(learnable=True)
    assert {name for name, _ in learned.named_parameters()} == {"cos_coefficients", "sin_coefficients"}
    sum(x.square().sum() for x in learned(q, k, torch.arange(5))).backward()
    assert learned.cos_coefficients.grad.abs().max() > 0 and learned.sin_coefficients.grad.abs().max() > 0
    before = learned.tables(torch.arange(5))[0]
    with torch.no_grad():
        learned.cos_coefficients.add_(1)
    assert (learned.tables(torch.arange(5))[0] - before).abs().max() > 0.5


def test_gradient_of_the_rotation():
    module = FourierPositionEmbedding(8, 1, FopeConfig(16, zero_sin=0.3))
    x = normal(1, 1, 3, 8, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: module(t, t, torch.arange(3)), x)


@pytest.mark.filterwarnings("ignore:.* pairs carry noise:UserWarning")
@pytest.mark.parametrize("settings", [{}, {"learnable": True}, {"separate_basis": False}, {"separate_heads": False}])
def test_extension_keeps_the_old_block(settings):
    old = embedding(**settings)
    new = old.extend(2 * L)
    assert new.config.max_train_length == 2 * L and old.config.max_train_length == L
    assert new.cos_coefficients.shape[1:] == (18, 16)
    assert torch.equal(new.cos_coefficients[..., :16, :16], old.cos_coefficients)
    fresh = new.cos_coefficients[..., 16:, :] - step_eye(18, 16)[16:]
    assert 0 < fresh.std() < 0.1
    if "sin_coefficients" in old.state_dict():
        assert torch.equal(new.sin_coefficients[..., :16, :16], old.sin_coefficients)
    assert torch.equal(new.main_rows, old.main_rows)
    assert torch.equal(old.extend(2 * L).cos_coefficients, new.cos_coefficients)
    other = old.extend(2 * L, torch.Generator().manual_seed(9))
    assert (other.cos_coefficients[..., 16:, :] != new.cos_coefficients[..., 16:, :]).any()


def test_contraction_slices():
    old = embedding()
    new = old.extend(128)
    kept = len(new.frequencies)
    assert kept == 11 and torch.equal(new.cos_coefficients, old.cos_coefficients[:, :kept, :kept])


def test_without_noise_extension_is_the_longer_table():
    old = embedding(32, 1, 64, sigma=0.0)
    torch.testing.assert_close(old.extend(100).cos_coefficients, embedding(32, 1, 100, sigma=0.0).cos_coefficients)


@pytest.mark.parametrize("head_dim", [0, 2, 6, 63, -4])
def test_bad_head_dim(head_dim):
    with pytest.raises(ValueError, match="head_dim must be a positive multiple of 4"):
        FourierPositionEmbedding(head_dim, 2, FopeConfig(L))


def test_bad_heads_and_lengths():
    with pytest.raises(ValueError, match="n_heads must be at least 1"):
        FourierPositionEmbedding(64, 0, FopeConfig(L))
    with pytest.raises(ValueError, match="no frequency survives"):
        FourierPositionEmbedding(64, 2, FopeConfig(6))
    with pytest.raises(ValueError, match="n_freq_dim must be at least head_dim"):
        FourierPositionEmbedding(64, 2, FopeConfig(L, n_freq_dim=32))


@pytest.mark.parametrize(
    ("positions", "error", "words"),
    [
        (torch.tensor([0, -1]), ValueError, "positions must be at least 0, got -1"),
        (torch.tensor([0.0, 1.0]), TypeError, "whole numbers, got dtype torch.float32"),
        (torch.tensor([0.0, math.nan]), TypeError, "whole numbers"),
        (torch.tensor([True, False]), TypeError, "torch.bool"),
        (torch.zeros(1, 1, 2, dtype=torch.long), ValueError, r"got shape \(1, 1, 2\)"),
        (torch.tensor(3), ValueError, r"got shape \(\)"),
    ],
)
def test_bad_positions(positions, error, words):
    with pytest.raises(error, match=words):
        embedding().tables(positions)


@pytest.mark.parametrize(
    ("q", "k", "t", "error", "words"),
    [
        ((1, 2, 5, 64), (1, 2, 5, 32), 5, ValueError, r"got q \(1, 2, 5, 64\) and k \(1, 2, 5, 32\)"),
        ((1, 3, 5, 64), (1, 2, 5, 64), 5, ValueError, r"got q \(1, 3, 5, 64\) and k \(1, 2, 5, 64\)"),
        ((1, 4, 5, 64), (1, 4, 5, 64), 5, ValueError, "k must have n_heads = 2"),
        ((1, 0, 5, 64), (1, 2, 5, 64), 5, ValueError, "k must have n_heads = 2"),
        ((1, 2, 5, 64), (1, 2, 4, 64), 5, ValueError, "same batch and tokens"),
        ((2, 2, 5, 64), (1, 2, 5, 64), 5, ValueError, "same batch and tokens"),
        ((2, 5, 64), (2, 5, 64), 5, ValueError, "must be"),
        ((1, 2, 5, 64), (1, 2, 5, 64), 4, ValueError, r"positions of shape \(4,\) do not fit"),
        ((3, 2, 5, 64), (3, 2, 5, 64), (2, 5), ValueError, r"positions of shape \(2, 5\) do not fit"),
    ],
)
def test_bad_shapes(q, k, t, error, words):
    positions = torch.arange(t) if isinstance(t, int) else torch.zeros(t, dtype=torch.long)
    with pytest.raises(error, match=words):
        embedding()(torch.zeros(q), torch.zeros(k), positions)


def test_queries_must_be_floating_point():
    x = torch.zeros(1, 2, 3, 64)
    with pytest.raises(TypeError, match=r"k must be a tensor of floating point numbers, got a tensor of torch\.int64"):
        embedding()(x, x.long(), torch.arange(3))


def test_linear_memory_and_no_square():
    """No tensor in table and rotation is larger than the table itself."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    self.numel = max(self.numel, tensor.numel())
            return out

    module, t = embedding(16, 2, 64), 3000
    q = normal(1, 2, t, 16)
    with Largest() as seen:
        module(q, q, torch.arange(t))
    assert seen.numel == 2 * t * 16


def test_prints_and_moves_to_meta():
    module = embedding()
    assert "frequencies=16, series_pairs=16, max_train_length=512" in repr(module)
    moved = copy.deepcopy(module).to("meta")
    assert moved.cos_coefficients.is_meta and moved.tables(torch.arange(3, device="meta"))[0].shape == (1, 2, 3, 64)


def test_the_default_setting_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedding()
        FourierPositionEmbedding(64, 2, ablation("series", 1024))
        embedding(64, 2, 1024, main_frequency="spread")


@pytest.mark.parametrize("n", [10**6, 10**8])
def test_phases_are_those_of_float64(n):
    module = embedding(sigma=0.0)
    w = 10000.0 ** (-2 * torch.arange(16, dtype=torch.float64) / 64)
    cos, _ = module.tables(torch.tensor([n]))
    torch.testing.assert_close(cos[0, 0, 0, :16].double(), (w * n).cos(), atol=1e-6, rtol=0)


def test_the_state_holds_what_was_drawn_and_no_frequencies():
    assert set(embedding().state_dict()) == {"step_eye", "noise_std", "cos_coefficients", "sin_coefficients"}
    yarn = {"scale": 4, "original_length": L}
    scaled, plain = embedding(seed=5, yarn=yarn), embedding(seed=1)
    before = scaled.frequencies.clone()
    scaled.load_state_dict(plain.state_dict())
    assert torch.equal(scaled.frequencies, before) and (before != plain.frequencies).any()
    assert torch.equal(scaled.cos_coefficients, plain.cos_coefficients)
    same = plain.extend(L, yarn=yarn)
    for a, b in zip(same.tables(torch.arange(900)), scaled.tables(torch.arange(900)), strict=True):
        assert torch.equal(a, b)
    assert same.config.yarn["scale"] == 4 and plain.extend(L).config.yarn is None
    assert same.extend(256).config.yarn == same.config.yarn


@pytest.mark.filterwarnings("ignore:.* pairs carry noise:UserWarning")
def test_kernel_of_an_extended_table():
    """Mean over draws and positions of c(n) c(m) + s(n) s(m), by simulation, where a pair has two main frequencies."""
    draws, delta = 200, 25
    old = embedding(64, draws, L, init_scale="paper", sigma=0.05)
    new = old.extend(2 * L)
    assert new.step_eye[:16].equal(torch.eye(16)) and new.step_eye[16:].sum() == 1 and new.step_eye[16, 8] == 1
    n = torch.randint(10**6, (400,), generator=torch.Generator().manual_seed(0))
    (c, s), (c0, s0) = ([t[0, :, :, :16] for t in new.tables(x)] for x in (n + delta, n))
    torch.testing.assert_close((c * c0 + s * s0).mean((0, 1)), new.expected_kernel(delta)[:16], atol=0.1, rtol=0)
    assert abs(new.expected_kernel(0)[8] - 2) < 0.1  # the two of them, at distance zero
    assert torch.equal(new.main_rows, torch.arange(16))
    fresh = embedding(64, draws, 2 * L, init_scale="paper", sigma=0.05)
    assert (fresh.expected_kernel(delta) - new.expected_kernel(delta)).abs().max() > 0.5


@pytest.mark.filterwarnings("ignore:.* pairs carry noise:UserWarning")
def test_contraction_may_take_a_main_frequency_away():
    old = embedding(length=2048)  # main rows 0, 2, .. 20
    new = old.extend(L)
    assert new.main_rows.tolist() == [0, 2, 4, 6, 8, 10, 12, 14] + [-1] * 8
    assert torch.equal(new.cos_coefficients, old.cos_coefficients[:, :16])
    assert new.main_frequencies[8:].isnan().all() and new.expected_kernel(3)[8:16].abs().max() < 0.05


def test_extension_stays_on_the_device():
    longer = embedding().to("meta").extend(2 * L)
    assert all(t.is_meta for t in longer.buffers())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32])
def test_positions_of_any_whole_number_type(dtype):
    module = embedding()
    for a, b in zip(module.tables(torch.arange(120).to(dtype)), module.tables(torch.arange(120)), strict=True):
        assert torch.equal(a, b)


def test_compiles():
    module, q = embedding(), normal(1, 2, 7, 64)
    compiled = torch.compile(module, backend="eager")  # no fullgraph: annotations may be checked in tests
    for a, b in zip(compiled(q, q, torch.arange(7)), module(q, q, torch.arange(7)), strict=True):
        torch.testing.assert_close(a, b)


# The annotations refuse wrong types, too, where they are checked: only the argument's name is compared.
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((64, 2, None), TypeError, "config"),
        ((64, 2, {"max_train_length": 512}), TypeError, "config"),
        ((64, 2, 512), TypeError, "config"),
        ((64, 2.0, FopeConfig(L)), TypeError, "n_heads"),
        (("64", 2, FopeConfig(L)), TypeError, "head_dim"),
        ((64.0, 2, FopeConfig(L)), TypeError, "head_dim"),
        ((64, 2, FopeConfig(L, sigma=1e300)), ValueError, "sigma = 1e\\+300 is too large"),
        ((64, 2, FopeConfig(1024, sigma=0.0, normalize=True)), ValueError, "normalize divides by"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* pairs carry noise:UserWarning")
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        FourierPositionEmbedding(*arguments)


def test_bad_flag_and_generator():
    with pytest.raises(TypeError, match="n_heads must be a whole number, got True"):
        FourierPositionEmbedding(64, True, FopeConfig(L))
    with pytest.raises(TypeError, match="generator"):
        FourierPositionEmbedding(64, 2, FopeConfig(L), generator=3)


@pytest.mark.parametrize(
    ("x", "table"),
    [
        ((1, 3, 5, 64), (1, 2, 5, 64)),
        ((1, 2, 5, 64), (1, 2, 1, 64)),
        ((1, 2, 5, 64), (1, 2, 5, 32)),
        ((3, 2, 5, 64), (2, 2, 5, 64)),
        ((2, 5, 64), (1, 2, 5, 64)),
    ],
)
def test_rotate_refuses_tables_that_do_not_fit(x, table):
    with pytest.raises(ValueError, match="x must be"):
        rotate(torch.zeros(x), torch.zeros(table), torch.zeros(table))


def test_kept_rows_are_those_of_the_formula():
    module = embedding()
    for positions in (torch.arange(9), torch.tensor([[9], [10]]), torch.arange(40)[None] + 2, torch.tensor([100000])):
        for found, expected in zip(
            module.tables(positions), module._computed(torch.atleast_2d(positions)), strict=True
        ):
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    padded = torch.tensor([[-1, 0, 1]])  # what transformers may give under left padding
    for found, expected in zip(module._tables(padded), module._computed(padded), strict=True):
        assert torch.equal(found, expected)


def test_rows_are_kept_geometrically_and_within_bounds():
    module = embedding(16, 1, 64)
    module.tables(torch.tensor([10**6]))
    assert module._cache is None
    sizes = []
    for positions in (torch.arange(10), *torch.arange(10, 50).split(1), torch.arange(9000)):
        module.tables(positions)
        sizes.append(module._cache.cos.shape[1])
    assert sizes[0] == 10 and set(sizes) == {10, 20, 40, 80}


@pytest.mark.parametrize("change", ["in place", "replaced", "loaded", "moved"])
def test_rows_follow_the_coefficients(change):
    module, other = embedding(), embedding(seed=1)
    module.tables(torch.arange(5))
    if change == "in place":
        module.cos_coefficients.copy_(other.cos_coefficients)
        module.sin_coefficients.copy_(other.sin_coefficients)
    elif change == "replaced":
        module.cos_coefficients, module.sin_coefficients = other.cos_coefficients, other.sin_coefficients
    elif change == "loaded":
        module.load_state_dict(other.state_dict())
    else:
        module.to("meta").to_empty(device="cpu").load_state_dict(other.state_dict())
        module.frequencies.copy_(other.frequencies)
        module._frequencies_rest.copy_(other._frequencies_rest)
    for found, expected in zip(module.tables(torch.arange(5)), other.tables(torch.arange(5)), strict=True):
        assert torch.equal(found, expected)


def test_rows_kept_in_inference_serve_training():
    module, q = embedding(), normal(1, 2, 5, 64).requires_grad_()
    with torch.inference_mode():
        module.tables(torch.arange(5))
    assert module._cache is not None
    module(q, q.detach(), torch.arange(5))[0].sum().backward()
    assert q.grad.abs().sum() > 0


def test_rows_of_learned_coefficients_are_not_kept():
    module = embedding(learnable=True)
    before = module.tables(torch.arange(5))[0]
    with torch.no_grad():
        module.cos_coefficients.data += 1
    after = module.tables(torch.arange(5))[0]
    assert after.requires_grad and (after != before).any()
    module = embedding()
    module.cos_coefficients.requires_grad_()  # a buffer whose gradient someone asks for
    assert module.tables(torch.arange(5))[0].requires_grad


def test_copies_leave_the_rows_behind():
    module = embedding()
    module.tables(torch.arange(5))
    twin = copy.deepcopy(module)
    assert twin._cache is None and module._cache is not None
    assert torch.equal(twin.tables(torch.arange(5))[0], module.tables(torch.arange(5))[0])
    assert "_cache" not in str(list(module.state_dict()))


@pytest.mark.parametrize("heads", [2, 6])
def test_rotation_makes_no_large_tensor_but_its_result(heads):
    from torch.utils._python_dispatch import TorchDispatchMode

    x, sizes = normal(1, heads, 50, 64), {}

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes[out.untyped_storage().data_ptr()] = out.untyped_storage().nbytes()
            return out

    cos, sin = embedding(heads=2).tables(torch.arange(50))
    given = {t.untyped_storage().data_ptr() for t in (x, cos, sin)}
    before = x.clone()
    with Record():
        out = rotate(x, cos, sin)
    made = [size for pointer, size in sizes.items() if pointer not in given]
    assert made == [out.untyped_storage().nbytes()] and torch.equal(x, before)


def test_extension_warns_of_pairs_that_lack_a_main_frequency_afterwards(recwarn):
    assert (embedding().extend(2 * L).main_rows >= 0).all() and not recwarn.list
    old = embedding(length=2048, main_frequency="spread")
    with pytest.warns(UserWarning, match=r"\d+ of 16 pairs carry noise and no main frequency after the extension"):
        old.extend(L)
