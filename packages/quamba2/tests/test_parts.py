"""Quantizer, packing, integer products, Hadamard transforms, GPTQ, sort-and-cluster."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from icml25.quamba2 import (
    GroupSpec,
    SymmetricQuantizer,
    W4A8Linear,
    W4A16Linear,
    W8A8Linear,
    gptq_quantize,
    hadamard_matrix,
    hadamard_transform,
    pack_int4,
    sort_and_cluster,
    unpack_int4,
)
from icml25.quamba2 import linear as linear_module
from icml25.quamba2.gptq import round_to_nearest
from icml25.quamba2.hadamard import _factors
from icml25.quamba2.linear import QuantizedEmbedding, integer_matmul
from icml25.quamba2.observers import MaxObserver, PercentileObserver
from icml25.quamba2.reorder import segment


@settings(deadline=None, max_examples=30)
@given(hnp.arrays(np.float32, 20, elements=st.floats(-100, 100, width=32)), st.sampled_from([2, 4, 8, 16]))
def test_quantizer_error_is_half_a_step(values, bits):
    v = torch.from_numpy(values)
    quantizer = SymmetricQuantizer.from_max(v.abs().max(), bits)
    q = quantizer.quantize(v)
    assert q.dtype == (torch.int8 if bits <= 8 else torch.int16)
    error = (quantizer.dequantize(q) - v).abs().max()
    assert error <= quantizer.scale / 2 * (1 + 1e-3) + 1e-7 * v.abs().max()


def test_quantizer_rounds_half_to_even_and_clips():
    quantizer = SymmetricQuantizer(torch.tensor(1.0))
    v = torch.tensor([0.5, 1.5, -0.5, -1.5, 127.4, 300.0, -300.0])
    assert quantizer.quantize(v).tolist() == [0, 2, 0, -2, 127, 127, -128]
    integers = torch.arange(-128.0, 128)
    assert torch.equal(quantizer.dequantize(quantizer.quantize(integers)), integers)
    assert torch.equal(quantizer.quantize(integers.half()), quantizer.quantize(integers))
    assert SymmetricQuantizer.from_max(torch.zeros(())).scale > 0


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_scales(scale):
    with pytest.raises(ValueError, match="scale must be positive"):
        SymmetricQuantizer(torch.tensor(scale))


def test_bad_bits():
    with pytest.raises(ValueError, match=r"bits must be in 2\.\.16, got 17"):
        SymmetricQuantizer(torch.tensor(1.0), 17)


@settings(deadline=None, max_examples=30)
@given(hnp.arrays(np.int8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=7), elements=st.integers(-8, 7)))
def test_int4_round_trip(values):
    q = torch.from_numpy(values)
    packed = pack_int4(q)
    assert packed.dtype == torch.uint8 and packed.shape[-1] == (q.shape[-1] + 1) // 2
    assert torch.equal(unpack_int4(packed, q.shape[-1]), q)


def test_int4_layout_and_bad_input():
    assert pack_int4(torch.tensor([[1, -8, 7]])).tolist() == [[0x81, 0x07]]
    with pytest.raises(ValueError, match=r"-8\.\.7, got -9\.\.8"):
        pack_int4(torch.tensor([8, -9]))
    with pytest.raises(ValueError, match="3 bytes cannot hold n=4"):
        unpack_int4(torch.zeros(3, dtype=torch.uint8), 4)


@pytest.mark.parametrize("rows", [0, 1, 3, 17, 64])
@pytest.mark.parametrize("private", [True, False])
def test_integer_product_is_exact(rows, private, monkeypatch):
    if not private:
        monkeypatch.setattr(linear_module, "_has_int_mm", lambda device: False)
    x = torch.randint(-128, 128, (rows, 37), dtype=torch.int8)
    weight = torch.randint(-128, 128, (11, 37), dtype=torch.int8)
    product = integer_matmul(x, weight)
    assert product.dtype == torch.int32 and torch.equal(product.long(), x.long() @ weight.long().T)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_w8a8_linear(granularity):
    weight, bias = torch.randn(7, 20), torch.randn(7)
    layer = W8A8Linear.from_float(weight, bias, granularity)
    q, scale = torch.randint(-128, 128, (3, 2, 20), dtype=torch.int8), torch.tensor(0.03)
    dequantized = layer.weight.double() * layer.weight_scale.double()[:, None]
    expected = (q.double() * 0.03) @ dequantized.T + bias
    torch.testing.assert_close(layer(q, scale).double(), expected, rtol=1e-5, atol=1e-5)
    assert len(layer.weight_scale) == (7 if granularity == "channel" else 1)
    limit = layer.weight_scale.max() / 2 * 1.001
    assert (dequantized - weight).abs().max() <= limit


@pytest.mark.parametrize("columns", [20, 33, 70])
def test_4bit_linears(columns, monkeypatch):
    monkeypatch.setattr(linear_module, "_BLOCK", 100)  # several blocks of rows
    weight, bias = torch.randn(9, columns), torch.randn(9)
    integer = W4A8Linear.from_float(weight, bias, group_size=32)
    q, scales = round_to_nearest(weight, 4, 32)
    dequantized = q.double() * scales.double().repeat_interleave(32, 1)[:, :columns]
    x, scale = torch.randint(-128, 128, (2, 3, columns), dtype=torch.int8), torch.tensor(0.03)
    expected = (x.double() * 0.03) @ dequantized.T + bias
    torch.testing.assert_close(integer(x, scale).double(), expected, rtol=1e-5, atol=1e-4)
    floating = W4A16Linear.from_float(weight, bias, group_size=32)
    torch.testing.assert_close(floating(x * scale).double(), expected, rtol=1e-5, atol=1e-4)
    assert floating(torch.randn(2, columns).bfloat16()).dtype == torch.bfloat16
    assert integer.weight.dtype == torch.uint8 and integer.weight.nbytes == 9 * ((columns + 1) // 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_of_integers_and_scales_stays(dtype):
    layer = W4A8Linear.from_float(torch.randn(4, 10))
    before = {name: (t.dtype, t.clone()) for name, t in layer.state_dict().items()}
    layer.to(dtype)
    for name, tensor in layer.state_dict().items():
        assert tensor.dtype == before[name][0] and torch.equal(tensor, before[name][1])


@pytest.mark.parametrize("bits", [4, 8])
def test_embedding_rows(bits):
    table = torch.randn(6, 5)
    table[2] = torch.tensor([-3.0, 1.0, 0.5, 0.0, 2.0])  # largest magnitude is negative
    table[3] = 0
    layer = QuantizedEmbedding(6, 5, bits)
    layer.load_float_(table)
    rows = layer(torch.tensor([[2, 3], [0, 5]]))
    step = table.abs().amax(1) / (2 ** (bits - 1) - 1)
    assert rows.shape == (2, 2, 5)
    assert (rows[0, 0] - table[2]).abs().max() <= step[2] / 2 * 1.001
    assert torch.equal(rows[0, 1], torch.zeros(5))
    with pytest.raises(IndexError):
        layer(torch.tensor([6]))


@pytest.mark.parametrize("n", [1, 2, 12, 20, 24, 28, 40, 48, 64, 80, 96, 768])
def test_hadamard(n):
    H = hadamard_matrix(n, torch.float64)
    torch.testing.assert_close(H @ H.T, torch.eye(n, dtype=torch.float64), atol=1e-10, rtol=0)
    torch.testing.assert_close(H.abs(), torch.full((n, n), n**-0.5, dtype=torch.float64), atol=1e-12, rtol=0)
    x = torch.randn(3, 2, n, dtype=torch.float64)
    torch.testing.assert_close(hadamard_transform(x), x @ H, atol=1e-10, rtol=0)


def test_a_large_hadamard_matrix_by_rows():
    rows = torch.zeros(6, 2560, dtype=torch.float64)
    rows[range(6), [0, 1, 39, 40, 1279, 2559]] = 1
    H = hadamard_transform(rows)
    torch.testing.assert_close(H @ H.T, torch.eye(6, dtype=torch.float64), atol=1e-10, rtol=0)
    torch.testing.assert_close(H.abs(), torch.full((6, 2560), 2560**-0.5, dtype=torch.float64), atol=1e-12, rtol=0)


def test_hadamard_of_other_sizes_warns_and_is_orthogonal():
    _factors.cache_clear()
    with pytest.warns(UserWarning, match="order 36"):
        H = hadamard_matrix(36, torch.float64)
    torch.testing.assert_close(H @ H.T, torch.eye(36, dtype=torch.float64), atol=1e-12, rtol=0)
    assert (H != 0).sum() == 36 * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hadamard_matrix(36)
    with pytest.raises(ValueError, match="no channels"):
        hadamard_transform(torch.zeros(2, 0))
    with pytest.raises(ValueError, match="at least 1"):
        hadamard_matrix(0)


def test_hadamard_spreads_an_outlier():
    x = torch.zeros(1, 256)
    x[0, 3] = 1
    assert hadamard_transform(x).abs().max() == pytest.approx(1 / 16)


def test_gptq_with_identity_hessian_rounds_to_nearest():
    weight = torch.randn(8, 50)
    for got, expected in zip(gptq_quantize(weight, torch.eye(50), 4, 16), round_to_nearest(weight, 4, 16), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("group", [16, 64, 128])
def test_gptq_beats_rounding_on_correlated_inputs(group):
    x = torch.randn(400, 8) @ torch.randn(8, 64) + 0.1 * torch.randn(400, 64)
    weight = torch.randn(12, 64)

    def error(q, scale):
        dequantized = q.float() * scale.repeat_interleave(group, 1)[:, :64]
        return (x @ (weight - dequantized).T).norm()

    found = error(*gptq_quantize(weight, 2 / 400 * x.T @ x, 4, group))
    assert found < 0.7 * error(*round_to_nearest(weight, 4, group))


def test_gptq_is_the_greedy_optimum():
    """With the first column rounded, the others move to the least-squares optimum (brute force for two columns)."""
    H = torch.tensor([[2.0, 1.2], [1.2, 3.0]])
    weight = torch.tensor([[0.73, 7.5]])
    q, scale = gptq_quantize(weight, H, 4, 2, 1e-12)
    first = q[0, 0] * scale[0, 0]
    moved = weight[0, 1] + (weight[0, 0] - first) * H[0, 1] / H[1, 1]
    assert int(q[0, 1]) == int((moved / scale[0, 0]).round().clamp(-8, 7))


def test_gptq_dead_columns_and_bad_input():
    hessian = torch.eye(6)
    hessian[2, 2] = 0
    q, _ = gptq_quantize(torch.randn(3, 6), hessian)
    assert (q[:, 2] == 0).all() and (q[:, 1] != 0).any()
    with pytest.raises(ValueError, match=r"hessian must be \(6, 6\)"):
        gptq_quantize(torch.randn(3, 6), torch.eye(5))
    with pytest.raises(ValueError, match="finite"):
        gptq_quantize(torch.randn(3, 6), torch.full((6, 6), float("nan")))
    with pytest.raises(ValueError, match="bits"):
        gptq_quantize(torch.randn(3, 6), torch.eye(6), 9)
    with pytest.raises(ValueError, match="not positive definite"):
        gptq_quantize(torch.randn(3, 2), torch.tensor([[1.0, 5.0], [5.0, 1.0]]))


@pytest.mark.parametrize("seed", range(6))
def test_segmentation_is_optimal(seed):
    rng = np.random.default_rng(seed)
    rows, n = int(rng.integers(2, 9)), int(rng.integers(1, 5))
    n = min(n, rows)
    features = np.sort(rng.lognormal(size=(rows, 3)), axis=0)

    def cost(sizes):
        parts = np.split(features, np.cumsum(sizes)[:-1])
        return sum(((part - part.mean(0)) ** 2).sum() for part in parts)

    every = [np.diff([0, *cuts, rows]) for cuts in itertools.combinations(range(1, rows), n - 1)]
    assert cost(segment(features, n)) == pytest.approx(min(map(cost, every)), abs=1e-12)


def profiled(heads=16, width=16):
    generator = torch.Generator().manual_seed(0)
    gains = torch.randn(heads, width, generator=generator).mul(1.2).exp()
    return gains * torch.randn(heads, 1, generator=generator).exp()


def test_kmeans_finds_plateaus():
    stats = torch.tensor([0.1, 1.0, 5.0, 9.0]).repeat_interleave(4).repeat(8, 1)[:, torch.randperm(16)]
    spec = sort_and_cluster(stats + 0.01 * torch.rand(8, 16), 2, 2, 4, channel_cluster="kmeans")
    assert (spec.channel_sizes == 4).all()
    assert sort_and_cluster(stats, 2, 2, 1, channel_cluster="kmeans").channel_sizes.tolist() == [[[16]] * 2] * 2


def test_sort_and_cluster():
    stats = profiled()
    spec = sort_and_cluster(stats, 2, 4, 4)
    assert spec.head_sizes.shape == (2, 4) and spec.channel_sizes.shape == (2, 4, 4)
    assert spec.head_sizes.sum(1).tolist() == [8, 8] and (spec.channel_sizes.sum(-1) == 16).all()
    assert sorted(spec.head_order.tolist()) == list(range(16))
    assert (spec.head_order[:8] < 8).all() and (spec.head_order[8:] >= 8).all()
    assert torch.equal(spec.channel_order // 16, spec.head_order.repeat_interleave(16))
    assert (stats.flatten()[spec.channel_order].view(16, 16).diff(dim=1) >= 0).all()
    assert spec.channel_group.unique().tolist() == list(range(32))


def test_groups_have_smaller_scales_than_the_tensor():
    stats = profiled()
    x = torch.randn(100, 256) * stats.flatten()
    whole = MaxObserver(torch.zeros(256, dtype=torch.long), 1)
    whole.update(x)
    spec = sort_and_cluster(stats, 2)
    grouped = MaxObserver(spec.channel_group, 32)
    grouped.update(x[:, spec.channel_order])
    assert grouped.maximum.max() == whole.maximum and (grouped.maximum < whole.maximum / 4).sum() > 16
    single = sort_and_cluster(stats, 1, 1, 1)
    assert single.channel_group.tolist() == [0] * 256
    alone = MaxObserver(single.channel_group, 1)
    alone.update(x[:, single.channel_order])
    assert torch.equal(alone.maximum, whole.maximum)


def test_clusters_are_clipped_and_dead_heads_stay_finite():
    stats = profiled(4, 3)
    stats[1] = 0
    spec = sort_and_cluster(stats, 2, 4, 4)
    assert spec.head_sizes.tolist() == [[1, 1], [1, 1]] and spec.channel_sizes.shape == (2, 2, 3)
    raw = sort_and_cluster(stats, 2, 4, 4, normalize=False)
    assert isinstance(raw, GroupSpec)


def test_ward_finds_the_shapes():
    """Profiles of two shapes and any magnitude: normalised ones cluster by shape, raw ones by magnitude."""
    flat, steep = torch.ones(8), torch.linspace(0.01, 1, 8) ** 4
    stats = torch.stack([flat, 100 * flat, steep, 100 * steep])
    by_shape = sort_and_cluster(stats, 1, 2, 2)
    assert set(by_shape.head_order[:2].tolist()) in ({0, 1}, {2, 3})
    by_size = sort_and_cluster(stats, 1, 2, 2, normalize=False)
    assert {tuple(sorted(by_size.head_order[:s].tolist())) for s in by_size.head_sizes[0, :1]} != {(0, 1)}


@pytest.mark.parametrize(
    ("stats", "groups", "match"),
    [
        (torch.ones(8), 1, "Mamba1 has no heads"),
        (torch.ones(6, 4), 4, "6 heads, not a multiple of n_groups=4"),
        (torch.full((4, 4), float("nan")), 1, "finite"),
        (-torch.ones(4, 4), 1, ">= 0"),
        (torch.ones(0, 4), 1, "shape"),
    ],
)
def test_bad_statistics(stats, groups, match):
    with pytest.raises(ValueError, match=match):
        sort_and_cluster(stats, groups)
    with pytest.raises(ValueError, match="channel_cluster"):
        sort_and_cluster(torch.ones(2, 2), 1, channel_cluster="other")
    with pytest.raises(ValueError, match="at least 1"):
        sort_and_cluster(torch.ones(2, 2), 1, 0)


def test_percentile_observer():
    index = torch.tensor([0, 1, 1])
    observer = PercentileObserver(index, 2, 0.9)
    first = torch.arange(30.0).view(10, 3)
    observer.update(first)
    expected = torch.tensor([first[:, 0].sort().values[8], first[:, 1:].flatten().sort().values[17]])
    torch.testing.assert_close(observer.maximum, expected)
    observer.update(-2 * first)
    torch.testing.assert_close(observer.maximum, expected * 1.01)


# each of these was once taken silently


def test_values_that_no_integer_stands_for():
    nan = torch.tensor([[1.0, float("nan")]])
    for kind in (W8A8Linear, W4A8Linear, W4A16Linear):
        with pytest.raises(ValueError, match="NaN or infinite"):
            kind.from_float(nan)
        with pytest.raises(ValueError, match="bias is NaN or infinite"):
            kind.from_float(torch.ones(1, 2), nan[0, 1:])
    with pytest.raises(ValueError, match="NaN"):
        SymmetricQuantizer(torch.tensor(1.0)).quantize(nan)
    for bad in (-3.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be finite and >= 0"):
            SymmetricQuantizer.from_max(torch.tensor(bad))
    with pytest.raises(ValueError, match="weight is NaN"):
        gptq_quantize(nan, torch.eye(2))


@pytest.mark.parametrize("kind", [W8A8Linear, W4A8Linear])
def test_integer_layers_take_integers_of_their_width(kind):
    layer = kind.from_float(torch.randn(3, 4))
    with pytest.raises(TypeError):
        layer(torch.rand(2, 4), torch.tensor(1.0))
    for wrong in (torch.ones(4, 2, dtype=torch.int8), torch.ones(2, 8, dtype=torch.int8)):
        with pytest.raises(ValueError, match=r"expected \(\.\.\., 4\)"):
            layer(wrong, torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"expected \(\.\.\., 4\)"):
        W4A16Linear.from_float(torch.randn(3, 4))(torch.rand(2, 5))


def test_settings_of_layers_are_checked():
    weight = torch.randn(3, 4)
    with pytest.raises(ValueError, match="granularity must be 'channel' or 'tensor', got 'chanel'"):
        W8A8Linear.from_float(weight, granularity="chanel")
    with pytest.raises(ValueError, match=r"bits must be in 2\.\.16, got 20"):
        W8A8Linear.from_float(weight, bits=20)
    with pytest.raises(ValueError, match="group_size must be at least 1, got 0"):
        W4A8Linear.from_float(weight, group_size=0)
    for values in (torch.ones(2, 4, dtype=torch.long), torch.ones(4, dtype=torch.complex64)):
        with pytest.raises(TypeError):
            hadamard_transform(values)
    with pytest.raises(TypeError):
        pack_int4(torch.tensor([1.5, 2.0]))


def test_gptq_feeds_errors_across_groups():
    """Two groups of one column each: the second is rounded after the first one's error moved it."""
    H = torch.tensor([[2.0, 1.6], [1.6, 3.0]])
    weight = torch.tensor([[0.73, 0.9], [7.5, -3.3]])
    q, scale = gptq_quantize(weight, H, 4, 1, 1e-12)
    moved = weight[:, 1] + (weight[:, 0] - q[:, 0] * scale[:, 0]) * H[0, 1] / H[1, 1]
    torch.testing.assert_close(scale[:, 1], moved.abs() * 2 / 15)
    assert (moved - weight[:, 1]).abs().min() > 1e-3


def test_damping_is_a_share_of_the_mean_diagonal():
    x = torch.randn(60, 12) @ torch.randn(12, 12)
    weight = torch.randn(5, 12)
    for factor in (1e-4, 1e4):
        for one, other in zip(gptq_quantize(weight, x.T @ x), gptq_quantize(weight, factor * x.T @ x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", [W4A8Linear, W4A16Linear])
def test_weights_are_unpacked_by_small_blocks(kind):
    layer = kind.from_float(torch.randn(3000, 512))
    sizes = [weight.numel() for _, weight in layer._blocks()]
    assert sum(sizes) == 3000 * 512 and max(sizes) * 4 <= 2**20
