"""What would otherwise give wrong numbers without a word is refused."""

from inspect import unwrap

import numpy as np
import pytest
import torch
from conftest import make_mamba1, make_mamba2

from icml25.quamba2 import (
    QuambaConfig,
    QuambaForCausalLM,
    SymmetricQuantizer,
    W4A16Linear,
    fuse_hadamard_,
    gptq_quantize,
    pack_int4,
    quantize,
    search_mixed,
    selective_scan,
    sort_and_cluster,
    ssd_chunk_scan,
    unpack_int4,
)


@pytest.mark.parametrize("hadamard", [True, False])
def test_rotated_model(hadamard, mamba2, ids):
    """Without ``hadamard`` the input of out_proj would not be rotated, but its weight is."""
    config = QuambaConfig(hadamard=hadamard, reorder=False)
    with pytest.raises(ValueError, match="rotated already"):
        quantize(fuse_hadamard_(mamba2), [ids], config)


@pytest.mark.parametrize("make", [make_mamba1, make_mamba2])
def test_cache_of_another_mode(make, ids):
    model, reorder = make(), make is make_mamba2
    settings = (QuambaConfig("w8a8", reorder=reorder), QuambaConfig("w4a16"))
    settings = (*settings, QuambaConfig("w8a8", reorder=reorder, state_bits=None))
    models = [quantize(model, [ids], config) for config in settings]
    for one in models:
        for other in models:
            cache = other(ids[:, :4]).cache
            if one is other:
                one(ids[:, 4:5], cache=cache)
                continue
            with pytest.raises(ValueError, match="another width or mode"):
                one(ids[:, 4:5], cache=cache)


@pytest.mark.parametrize("changes", [{"state_size": 16}, {"num_heads": 6, "head_dim": 16}])
def test_cache_of_another_size(changes, mamba2, ids):
    cache = quantize(make_mamba2(**changes), [ids])(ids[:, :4]).cache
    with pytest.raises(ValueError, match="another width or mode"):
        quantize(mamba2, [ids])(ids[:, 4:5], cache=cache)


def test_cache_from_before_a_switch(mamba2, ids):
    small = quantize(mamba2, [ids], QuambaConfig("w4a8", gptq=False))
    cache = small(ids[:, :4]).cache
    small.set_a16_blocks([True, False])
    with pytest.raises(ValueError, match="another width or mode"):
        small(ids[:, 4:5], cache=cache)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"attention_mask": torch.full((2, 40), float("nan"))}, ValueError, "zeros and ones"),
        ({"attention_mask": torch.full((2, 40), 0.5)}, ValueError, "zeros and ones"),
        ({"attention_mask": [[1] * 40] * 2}, TypeError, "attention_mask must be a tensor, got list"),
        ({"input_ids": [[1, 2]]}, TypeError, "input_ids must be a tensor, got list"),
        ({"input_ids": None, "inputs_embeds": np.zeros((1, 2, 48))}, TypeError, "inputs_embeds must be a tensor"),
        ({"logits_to_keep": -3}, ValueError, "logits_to_keep must be at least 0, got -3"),
    ],
)
def test_inputs_of_forward(changes, error, match, mamba2, ids):
    small = quantize(mamba2, [ids])
    with pytest.raises(error, match=match):
        unwrap(QuambaForCausalLM.forward)(small, **{"input_ids": ids} | changes)


@pytest.mark.parametrize("mask", ["01", [0.5, 1], [2, 0]])
def test_mask_of_blocks(mask, mamba2, ids):
    small = quantize(mamba2, [ids], QuambaConfig("w4a8", gptq=False))
    with pytest.raises(ValueError, match="truth values"):
        unwrap(QuambaForCausalLM.set_a16_blocks)(small, mask)
    small.set_a16_blocks(np.array([True, False]).tolist())


@pytest.mark.parametrize("changes", [{"n_a16": True}, {"population": 4.5}, {"generations": 1.0}])
def test_settings_of_the_search(changes, mamba2, ids):
    small = quantize(mamba2, [ids], QuambaConfig("w4a8", gptq=False))
    with pytest.raises(ValueError, match=f"{next(iter(changes))} must be an integer"):
        unwrap(search_mixed)(small, lambda _: 0.0, **{"n_a16": 1} | changes)


def test_folder_of_a_float_model(mamba2, tmp_path):
    mamba2.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="folder of a quantized model"):
        QuambaForCausalLM.from_pretrained(tmp_path)


def test_calibration_mask_of_another_layout(mamba2):
    ids, mask = torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 1], [1, 1], [0, 0]])
    with pytest.raises(ValueError, match=r"attention_mask of shape \(3, 2\)"):
        quantize(mamba2, [{"input_ids": ids, "attention_mask": mask}])
    quantize(mamba2, [{"input_ids": ids[0], "attention_mask": torch.tensor([1, 1, 0])}])


def test_parts():
    with pytest.raises(TypeError, match="packed must be uint8"):
        unwrap(unpack_int4)(torch.zeros(2, dtype=torch.int64), 4)
    for q, error in ((torch.tensor([True]), TypeError), (torch.tensor(3), ValueError)):
        with pytest.raises(error, match="q must"):
            unwrap(pack_int4)(q)
    with pytest.raises(TypeError, match="x must be floating"):
        unwrap(W4A16Linear.floating)(W4A16Linear.from_float(torch.randn(3, 4)), torch.ones(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"2\.\.16, got 7.5"):
        unwrap(SymmetricQuantizer.__init__)(object.__new__(SymmetricQuantizer), torch.tensor(1.0), 7.5)
    for weight in (torch.rand(4), torch.rand(3, 0)):
        with pytest.raises(ValueError, match="W must be"):
            unwrap(gptq_quantize)(weight, torch.eye(4))
    dead = torch.diag(torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="weight is NaN"):
        gptq_quantize(torch.tensor([[1.0, float("inf")]]), dead)


def test_dead_heads_are_clustered_without_a_warning():
    spec = sort_and_cluster(torch.zeros(4, 4), 1, head_groups=2)
    assert spec.head_sizes.tolist() == [[2, 2]] and spec.channel_order.tolist() == list(range(16))


SSD = {
    "x": torch.ones(2, 5, 4, 3),
    "dt": torch.ones(2, 5, 4),
    "A": -torch.ones(4),
    "B": torch.ones(2, 5, 2, 6),
    "C": torch.ones(2, 5, 2, 6),
    "D": torch.ones(4),
    "initial_state": torch.zeros(2, 4, 3, 6),
}
SELECTIVE = {
    "x": torch.ones(2, 5, 4),
    "dt": torch.ones(2, 5, 4),
    "A": -torch.ones(4, 6),
    "B": torch.ones(2, 5, 6),
    "C": torch.ones(2, 5, 6),
    "D": torch.ones(4),
    "initial_state": torch.zeros(2, 4, 6),
}


@pytest.mark.parametrize("scan", [ssd_chunk_scan, selective_scan])
def test_shapes_of_scans(scan):
    inputs = SSD if scan is ssd_chunk_scan else SELECTIVE
    scan(**inputs)
    for name in set(inputs) - {"x"}:
        wrong = inputs | {name: inputs[name][:1]}  # would be broadcast or fail without a name
        with pytest.raises(ValueError, match=f"{name} has shape"):
            unwrap(scan)(**wrong)


def test_growing_states():
    """The masked decays of a chunk are clamped at 1, so that growth would be lost."""
    for change in ({"A": -SSD["A"]}, {"dt": -SSD["dt"]}):
        with pytest.raises(ValueError, match="A must be negative"):
            ssd_chunk_scan(**SSD | change)
