"""A forward pass unpacks no weight as a whole, and its temporaries do not grow with the square of the length."""

import itertools

import pytest
import torch
from conftest import make_mamba1, make_mamba2

from icml25.quamba2 import QuambaConfig, quantize, selective_scan, ssd_chunk_scan

MIB = 2**20


def peak_bytes(function):
    """Most bytes that tensors made in the call held at a time, as torch's allocator counts them."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.inference_mode(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


def test_the_count_is_right():
    assert peak_bytes(lambda: torch.zeros(MIB) + 1) == pytest.approx(8 * MIB, abs=1000)


def test_ssd_works_in_small_blocks():
    x, maps = torch.randn(1, 4096, 16, 64), torch.randn(1, 4096, 1, 128)
    dt, A, D = torch.rand(1, 4096, 16), -torch.ones(16), torch.ones(16)
    assert peak_bytes(lambda: ssd_chunk_scan(x, dt, A, maps, maps, D)) <= 2 * x.nbytes + 8 * MIB


def test_selective_scan_keeps_no_state_per_token():
    x, maps, A = torch.randn(1, 4096, 512), torch.randn(1, 4096, 16), -torch.ones(512, 16)
    dt, D = torch.rand(1, 4096, 512), torch.ones(512)
    assert peak_bytes(lambda: selective_scan(x, dt, A, maps, maps, D)) <= 6 * x.nbytes + 32 * MIB


@pytest.mark.parametrize("mode", ["w8a8", "w4a8", "w4a16"])
def test_no_weight_becomes_float(mode):
    """36 MiB of float32 for the head alone."""
    model = make_mamba2(vocab_size=50_000, hidden_size=192, head_dim=32, num_hidden_layers=1)
    config = QuambaConfig(mode, gptq=False if mode.startswith("w4") else None, hadamard=False)
    small = quantize(model, [torch.randint(0, 97, (1, 16))], config, inplace=True)
    ids = torch.randint(0, 97, (1, 8))
    assert peak_bytes(lambda: small(ids)) <= 8 * MIB


@pytest.mark.parametrize("mode", ["w8a8", "w4a8", "w4a16"])
@pytest.mark.parametrize("make", [make_mamba2, make_mamba1], ids=["mamba2", "mamba1"])
def test_long_inputs_take_their_activations(make, mode):
    """32 MiB and four times the outputs of in_proj, the widest activations."""
    changes = {"num_heads": 12, "head_dim": 32, "state_size": 64, "n_groups": 1} if make is make_mamba2 else {}
    model = make(hidden_size=192, num_hidden_layers=1, **changes)
    config = QuambaConfig(mode, gptq=False if mode.startswith("w4") else None, reorder=make is make_mamba2)
    small = quantize(model, [torch.randint(0, 97, (1, 16))], config)
    ids = torch.randint(0, 97, (1, 4096))
    activations = 4 * 4096 * small.layers[0].mixer.in_proj.out_features
    assert peak_bytes(lambda: small(ids, logits_to_keep=1)) <= 4 * activations + 32 * MIB
