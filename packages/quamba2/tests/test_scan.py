"""The scans against plain recurrences, closed forms and transformers."""

import math

import pytest
import torch
from conftest import logits, make_mamba1, make_mamba2
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.quamba2 import fast_scan, selective_scan, selective_step, ssd_chunk_scan, ssd_step
from icml25.quamba2.scan import causal_conv


def ssd_inputs(b=2, length=23, H=6, P=4, G=3, N=5, dtype=torch.float64):
    def r(*shape):
        return torch.randn(*shape, dtype=dtype)

    maps = r(2, b, length, G, N)
    return r(b, length, H, P), r(b, length, H).abs(), -r(H).abs(), maps[0], maps[1], r(H), r(b, H, P, N)


def plain_ssd(x, dt, A, B, C, D, state):
    per = x.shape[2] // B.shape[2]
    ys = []
    for t in range(x.shape[1]):
        b, c = B[:, t].repeat_interleave(per, 1), C[:, t].repeat_interleave(per, 1)
        state = (dt[:, t] * A).exp()[..., None, None] * state
        state = state + torch.einsum("bh,bhp,bhn->bhpn", dt[:, t], x[:, t], b)
        ys.append(torch.einsum("bhpn,bhn->bhp", state, c) + D[:, None] * x[:, t])
    return torch.stack(ys, 1), state


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_ssd_is_the_recurrence(chunk):
    *inputs, state = ssd_inputs()
    y, final = ssd_chunk_scan(*inputs, chunk, state)
    expected = plain_ssd(*inputs, state)
    torch.testing.assert_close(y, expected[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(final, expected[1], rtol=1e-10, atol=1e-10)


def test_ssd_in_blocks_is_the_same(monkeypatch):
    *inputs, state = ssd_inputs()
    whole = ssd_chunk_scan(*inputs, 4, state)
    monkeypatch.setattr("icml25.quamba2.scan._BLOCK", 1)
    for one, other in zip(whole, ssd_chunk_scan(*inputs, 4, state), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 4, 16])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_no_state_is_lost_between_chunks(chunk, initial):
    """h <- h/2 + 1 has the fixed point 2 (huggingface/transformers #34817, #47246)."""
    one = torch.ones(1, 11, 1, 1)
    state = None if initial is None else torch.full((1, 1, 1, 1), initial)
    y, final = ssd_chunk_scan(one, one[..., 0], torch.tensor([-math.log(2)]), one, one, torch.zeros(1), chunk, state)
    expected = torch.full((11,), 2.0) if initial else 2 - 2.0 ** -torch.arange(11)
    torch.testing.assert_close(y.flatten(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(final.flatten(), expected[-1:], atol=1e-5, rtol=0)


def test_ssd_step_by_step_and_split():
    *inputs, state = ssd_inputs()
    x, dt, A, B, C, D = inputs
    y, final = ssd_chunk_scan(*inputs, 8, state)
    half, between = ssd_chunk_scan(x[:, :10], dt[:, :10], A, B[:, :10], C[:, :10], D, 8, state)
    ys = [half]
    for t in range(10, x.shape[1]):
        step, between = ssd_step(between, x[:, t], dt[:, t], A, B[:, t], C[:, t], D)
        ys.append(step[:, None])
    torch.testing.assert_close(torch.cat(ys, 1), y, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(between, final, rtol=1e-10, atol=1e-10)


def test_strong_decay_does_not_overflow():
    *inputs, state = ssd_inputs(dtype=torch.float32, length=64)
    inputs[2] = torch.full((6,), -300.0)
    y, final = ssd_chunk_scan(*inputs, 64, state)
    assert torch.isfinite(y).all() and torch.isfinite(final).all()


def test_ssd_gradients():
    *inputs, state = ssd_inputs(b=1, length=5, H=2, P=2, G=1, N=2)
    tensors = [t.requires_grad_() for t in (*inputs, state)]
    assert torch.autograd.gradcheck(lambda *t: ssd_chunk_scan(*t[:6], 2, t[6]), tensors)


@pytest.mark.parametrize("chunk", [None, 1, 4, 50])
def test_selective_scan_is_the_recurrence(chunk):
    b, length, d, N = 2, 19, 5, 3
    x, dt, A = torch.randn(b, length, d).double(), torch.rand(b, length, d).double(), -torch.rand(d, N).double()
    B, C, D, state = (torch.randn(*s).double() for s in ((b, length, N), (b, length, N), (d,), (b, d, N)))
    y, final = selective_scan(x, dt, A, B, C, D, chunk, state)
    stepped, h = [], state
    for t in range(length):
        h = (dt[:, t, :, None] * A).exp() * h + (dt[:, t] * x[:, t])[..., None] * B[:, t, None]
        stepped.append((h * C[:, t, None]).sum(-1) + D * x[:, t])
    torch.testing.assert_close(y, torch.stack(stepped, 1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(final, h, rtol=1e-10, atol=1e-10)
    one, after = selective_step(state, x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0], D)
    torch.testing.assert_close(one, stepped[0])
    assert after.shape == final.shape


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 40), st.integers(1, 45), st.integers(1, 3))
def test_any_length_and_chunk(length, chunk, groups):
    torch.manual_seed(length)
    *inputs, state = ssd_inputs(b=1, length=length, H=2 * groups, P=2, G=groups, N=2)
    y, final = ssd_chunk_scan(*inputs, chunk, state)
    expected = plain_ssd(*inputs, state)
    torch.testing.assert_close(y, expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(final, expected[1], rtol=1e-9, atol=1e-9)


def test_states_seen_are_those_at_the_ends_of_chunks():
    *inputs, state = ssd_inputs(length=20)
    seen = []
    ssd_chunk_scan(*inputs, 8, state, on_states=seen.append)
    [states] = seen
    for k, stop in enumerate((8, 16, 20)):
        _, expected = plain_ssd(*(t[:, :stop] if t.ndim > 1 else t for t in inputs), state)
        torch.testing.assert_close(states[:, k], expected, rtol=1e-10, atol=1e-10)


def test_causal_conv_is_torchs():
    x, weight = torch.randn(2, 9, 4), torch.randn(4, 3)
    expected = torch.nn.functional.conv1d(x.mT, weight[:, None], groups=4).mT
    torch.testing.assert_close(causal_conv(x, weight), expected)


@pytest.mark.parametrize("make", [make_mamba2, make_mamba1], ids=["mamba2", "mamba1"])
@pytest.mark.parametrize("padded", [False, True])
def test_fast_scan_is_transformers(make, padded, ids):
    model = make()
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :7] = 0
    expected = logits(model, ids, attention_mask=mask)
    with fast_scan(model) as fast:
        torch.testing.assert_close(logits(fast, ids, attention_mask=mask), expected, rtol=1e-4, atol=1e-5)
        assert fast.generate(ids[:1, :4], max_new_tokens=2, min_new_tokens=2).shape == (1, 6)
    assert "forward" not in vars(model.backbone.layers[0].mixer)


def test_fast_scan_trains(mamba2, ids):
    reference = mamba2(ids, labels=ids, use_cache=False).loss
    reference.backward()
    expected = mamba2.backbone.layers[0].mixer.in_proj.weight.grad.clone()
    mamba2.zero_grad()
    with fast_scan(mamba2):
        mamba2(ids, labels=ids, use_cache=False).loss.backward()
    torch.testing.assert_close(mamba2.backbone.layers[0].mixer.in_proj.weight.grad, expected, rtol=1e-3, atol=1e-6)


def test_bad_scan_input():
    *inputs, _ = ssd_inputs(b=1, length=4, H=2, P=2, G=1, N=2)
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        ssd_chunk_scan(*inputs, 0)
    with pytest.raises(ValueError, match="length 0"):
        ssd_chunk_scan(*(t[:, :0] if t.ndim > 1 else t for t in inputs))
    with pytest.raises(ValueError, match="3 heads, not a multiple of the 2 groups"):
        ssd_chunk_scan(*ssd_inputs(H=3, G=2)[:6])
    x, A, B, D = torch.randn(1, 3, 2), -torch.ones(2, 2), torch.randn(1, 3, 2), torch.ones(2)
    with pytest.raises(ValueError, match="length 0"):
        selective_scan(x[:, :0], x[:, :0], A, B[:, :0], B[:, :0], D)
    with pytest.raises(ValueError, match="chunk_size"):
        selective_scan(x, x.abs(), A, B, B, D, 0)
