"""Rotation, reordering, calibration and whole quantized models against the float ones."""

import copy
import json
import math
import os

import pytest
import torch
from conftest import logits, make_mamba1, make_mamba2
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.mamba2.modeling_mamba2 import Mamba2RMSNorm, MambaRMSNormGated

from icml25.quamba2 import (
    QuambaConfig,
    QuambaForCausalLM,
    QuantizedStateCache,
    calibrate,
    fast_scan,
    fuse_hadamard_,
    quantize,
    reorder_,
    sort_and_cluster,
)
from icml25.quamba2 import config as config_module
from icml25.quamba2 import model as model_module
from icml25.quamba2.hadamard import RotatedLinear
from icml25.quamba2.observers import channel_statistics

MODES = ["w8a8", "w4a8", "w4a16"]
MAKERS = {"mamba2": make_mamba2, "mamba1": make_mamba1}


def quantized(model, ids, mode="w8a8", **settings):
    if not hasattr(model.backbone.layers[0].mixer, "num_heads"):
        settings.setdefault("reorder", False)
    return quantize(model, [ids], QuambaConfig(mode, **settings))


def relative(a, b):
    return float((a - b).norm() / b.norm())


def specs_of(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixers = [block.mixer for block in model.backbone.layers]
    return [
        sort_and_cluster(torch.rand(m.num_heads, m.head_dim, generator=generator), m.n_groups, 2, 2) for m in mixers
    ]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", MAKERS)
def test_rotation_keeps_the_logits(arch, tied, ids):
    model = MAKERS[arch](tie_word_embeddings=tied, use_bias=True)
    expected = logits(model, ids)
    assert fuse_hadamard_(model) is model
    torch.testing.assert_close(logits(model, ids), expected, atol=1e-4, rtol=1e-4)
    assert all(isinstance(block.mixer.out_proj, RotatedLinear) for block in model.backbone.layers)
    with pytest.raises(ValueError, match="rotated already"):
        fuse_hadamard_(model)


def test_rotation_in_float64(ids, monkeypatch):
    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def gated(self, x, gate):
        x = (x * torch.nn.functional.silu(gate)).unflatten(-1, (-1, self.group_size))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.flatten(-2)

    monkeypatch.setattr(Mamba2RMSNorm, "forward", norm)  # those of transformers compute in float32
    monkeypatch.setattr(MambaRMSNormGated, "forward", gated)
    model = make_mamba2(residual_in_fp32=False).double()
    with fast_scan(model):
        expected = model.backbone(ids, use_cache=False).last_hidden_state @ model.lm_head.weight.T
    fuse_hadamard_(model)
    with fast_scan(model):
        found = model.backbone(ids, use_cache=False).last_hidden_state @ model.lm_head.weight.T
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("rotated", [False, True])
def test_reordering_keeps_the_logits(rotated, ids):
    model = make_mamba2(use_bias=True)
    expected = logits(model, ids)
    before = model.backbone.layers[0].mixer.in_proj.weight.clone()
    reorder_(model, specs_of(model))
    assert not torch.equal(model.backbone.layers[0].mixer.in_proj.weight, before)
    torch.testing.assert_close(logits(model, ids), expected, atol=1e-5, rtol=1e-5)
    if rotated:
        fuse_hadamard_(model)
        torch.testing.assert_close(logits(model, ids), expected, atol=1e-4, rtol=1e-4)


def test_reordering_refuses_what_would_change_the_model(mamba2, mamba1):
    specs = specs_of(mamba2)
    with pytest.raises(ValueError, match="2 layers"):
        reorder_(mamba2, specs[:1])
    crossing = copy.copy(specs[0])
    object.__setattr__(crossing, "head_order", specs[0].head_order.flip(0))
    object.__setattr__(crossing, "channel_order", specs[0].channel_order.flip(0))
    with pytest.raises(ValueError, match=r"specs\[0\].head_order moves a head out of its SSD group"):
        reorder_(mamba2, [crossing, specs[1]])
    twice = copy.copy(specs[0])
    object.__setattr__(twice, "channel_order", torch.zeros(96, dtype=torch.long))
    with pytest.raises(ValueError, match="no permutation"):
        reorder_(mamba2, [twice, specs[1]])
    with pytest.raises(ValueError, match="Mamba1"):
        reorder_(mamba1, specs)
    fuse_hadamard_(mamba2)
    with pytest.raises(ValueError, match="before fuse_hadamard_"):
        reorder_(mamba2, specs)


@pytest.mark.parametrize("arch", MAKERS)
def test_many_bits_give_the_float_model(arch, ids, monkeypatch):
    monkeypatch.setitem(config_module.MODES, "w16a16", (16, 16))
    model = MAKERS[arch]()
    config = QuambaConfig(
        "w16a16", percentile=None if arch == "mamba2" else 1.0, state_bits=16, reorder=arch == "mamba2"
    )
    wide = quantize(model, [ids, ids[:1, 9:]], config)
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    for kwargs in ({}, {"attention_mask": mask}):
        expected = logits(model, ids, **kwargs)
        assert (logits(wide, ids, **kwargs) - expected).abs().max() < 1e-3 * expected.std()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("arch", MAKERS)
def test_quantize_generate_save_load(arch, mode, ids, tmp_path):
    model = MAKERS[arch]()
    reference = copy.deepcopy(model.state_dict())
    small = quantized(model, ids, mode)
    found = logits(small, ids)
    assert relative(found, logits(model, ids)) < (0.06 if mode == "w8a8" else 0.6)
    assert all(torch.equal(v, reference[k]) for k, v in model.state_dict().items())
    text = small.generate(ids[:, :5], max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert text.shape == (2, 11)
    small.save_pretrained(tmp_path)
    again = QuambaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(again, ids), found) and again.config.quamba == QuambaConfig(
        mode, reorder=arch == "mamba2"
    )
    assert torch.equal(again.generate(ids[:, :5], max_new_tokens=6, min_new_tokens=6, do_sample=False), text)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert sum(t.nbytes for t in stored.values()) == pytest.approx(small.footprint()["total"], rel=0.01)
    wide = [
        n for n, t in stored.items() if t.is_floating_point() and t.ndim == 2 and "scale" not in n and "A_log" not in n
    ]
    assert not wide, "float matrices are left"
    assert not list(small.parameters())


def test_conv_and_scales_survive(ids, tmp_path, mamba2):
    first = quantized(mamba2, ids, "w4a8")
    second = quantized(mamba2, ids, "w4a8")
    for (name, one), (_, other) in zip(first.state_dict().items(), second.state_dict().items(), strict=True):
        assert torch.equal(one, other), name
    first.save_pretrained(tmp_path)
    again = QuambaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for name, tensor in first.state_dict().items():
        loaded = again.state_dict()[name]
        if name != "activation":
            assert loaded.dtype == tensor.dtype and torch.equal(loaded, tensor), name
    assert again.dtype == torch.bfloat16


@pytest.mark.parametrize("arch", MAKERS)
def test_float_states_decode_as_the_full_pass(arch, ids):
    small = quantized(MAKERS[arch](), ids, "w8a8", state_bits=None)
    full = logits(small, ids)
    with torch.no_grad():
        out = small(ids[:, :9])
        pieces, cache = [out.logits], out.cache
        out = small(ids[:, 9:20], cache_params=cache)  # several tokens after a state
        pieces.append(out.logits)
        for t in range(20, ids.shape[1]):
            pieces.append(small(ids[:, t : t + 1], cache=cache).logits)
    torch.testing.assert_close(torch.cat(pieces, 1), full, atol=2e-3, rtol=1e-3)
    assert cache.get_seq_length() == 40


@pytest.mark.parametrize("arch", MAKERS)
def test_int8_states(arch, ids):
    small = quantized(MAKERS[arch](), ids)
    full = logits(small, ids)
    with torch.no_grad():
        out = small(ids[:, :9])
        cache = out.cache
        steps = [small(ids[:, t : t + 1], cache=cache).logits for t in range(9, 40)]
    error = relative(torch.cat(steps, 1), full[:, 9:])
    assert 0 < error < 0.08
    assert {t.dtype for t in (*cache.conv, *cache.state)} == {torch.int8}
    assert small.footprint_states(2)["total"] == cache.nbytes
    long = small(torch.cat([ids] * 3, 1)).cache
    assert long.nbytes == cache.nbytes


def test_each_row_of_a_batch_is_for_itself(mamba2, ids):
    small = quantized(mamba2, ids)
    torch.testing.assert_close(logits(small, ids)[1:], logits(small, ids[1:]), atol=1e-5, rtol=1e-5)
    text = small.generate(ids[:, :4], num_beams=3, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    alone = small.generate(ids[1:, :4], num_beams=3, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert torch.equal(text[1:], alone)


def test_padding_does_not_matter(mamba2, ids):
    small = quantized(mamba2, ids)
    plain = logits(small, ids)
    padded = torch.cat([torch.full((2, 6), 2), ids], 1)
    mask = torch.cat([torch.zeros(2, 6, dtype=torch.long), torch.ones_like(ids)], 1)
    torch.testing.assert_close(logits(small, padded, attention_mask=mask)[:, 6:], plain, atol=1e-5, rtol=1e-5)
    right = torch.cat([ids, torch.full((2, 6), 2)], 1)
    torch.testing.assert_close(logits(small, right, attention_mask=mask.flip(1))[:, :-6], plain, atol=1e-5, rtol=1e-5)


def test_finer_scales_help(ids):
    """Channels and state groups of very uneven size: the paper's groups against one scale."""
    model = make_mamba2(n_groups=4, num_heads=12)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for block in model.backbone.layers:
            conv = block.mixer.conv1d
            gain = torch.randn(len(conv.bias), generator=generator).mul(1.2).exp()
            conv.weight.mul_(gain[:, None, None])
            conv.bias.mul_(gain)
    reference = logits(model, ids)
    plain = relative(logits(quantized(model, ids, reorder=False, per_state_group=False), ids), reference)
    ours = relative(logits(quantized(model, ids), ids), reference)
    assert ours < 0.8 * plain


def test_scales_of_groups_are_bounded_by_the_tensors(mamba2, ids):
    config = QuambaConfig()
    single = calibrate(mamba2, [ids], QuambaConfig(per_state_group=False))
    reorder_(mamba2, specs_of(mamba2))
    grouped = calibrate(mamba2, [ids], config)
    for one, many in zip(single.layers, grouped.layers, strict=True):
        for name in ("conv_x", "conv_B", "conv_C"):
            assert one[name].shape == (1,)
            torch.testing.assert_close(many[name].max(), one[name][0])
        assert many["conv_x"].shape == (8,) and many["conv_B"].shape == (2,) and many["state"].shape == (8, 8)
    alone = make_mamba2(n_groups=1)
    a, b = (calibrate(alone, [ids], QuambaConfig(per_state_group=flag)).layers[0]["conv_B"] for flag in (True, False))
    assert torch.equal(a, b)


def test_calibration_sees_the_rotated_input_of_out_proj(mamba2, ids):
    plain = calibrate(mamba2, [ids], QuambaConfig()).layers[0]
    fuse_hadamard_(mamba2)
    rotated = calibrate(mamba2, [ids], QuambaConfig()).layers[0]
    seen = []
    mamba2.backbone.layers[0].mixer.out_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits(mamba2, ids)
    from icml25.quamba2 import hadamard_transform

    torch.testing.assert_close(rotated["out"], hadamard_transform(seen[0]).abs().max() / 127, rtol=1e-4, atol=0)
    assert not torch.isclose(rotated["out"], plain["out"], rtol=1e-3)
    torch.testing.assert_close(rotated["conv_x"], plain["conv_x"], rtol=1e-3, atol=0)


def test_gptq_beats_rounding_to_nearest(mamba2, ids):
    reference = logits(mamba2, ids)
    errors = [relative(logits(quantized(mamba2, ids, "w4a16", gptq=g), ids), reference) for g in (True, False)]
    assert errors[0] < 0.9 * errors[1]


def test_kept_embedding_and_head(mamba2, ids):
    small = quantized(mamba2, ids, "w4a8", quantize_embedding=False, quantize_lm_head=False)
    names = dict(small.named_parameters())
    assert set(names) == {"embeddings.weight", "lm_head.weight"}
    rows = quantized(mamba2, ids, hadamard=False).get_input_embeddings()(ids)
    torch.testing.assert_close(rows, mamba2.backbone.embeddings(ids), atol=0.02, rtol=0)
    assert relative(logits(small, ids), logits(mamba2, ids)) < 0.6
    assert small.footprint()["embedding"] == 97 * 48 * 4


def test_dtype_of_activations(mamba2, ids):
    small = quantized(mamba2, ids, "w4a16")
    expected = logits(small, ids)
    buffers = {k: v.clone() for k, v in small.state_dict().items() if k != "activation"}
    small.to(torch.bfloat16)
    assert small.dtype == torch.bfloat16
    assert all(
        torch.equal(v, small.state_dict()[k]) and v.dtype == small.state_dict()[k].dtype for k, v in buffers.items()
    )
    found = logits(small, ids)
    assert found.dtype == torch.float32 and 0 < relative(found, expected) < 0.05
    half = quantized(make_mamba2().to(torch.bfloat16), ids)
    assert half.dtype == torch.bfloat16 and torch.isfinite(logits(half, ids)).all()


def test_forward_like_transformers(mamba2, ids):
    small = quantized(mamba2, ids)
    out = small(ids, labels=ids, output_hidden_states=True)
    flat = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(out.loss, flat)
    assert len(out.hidden_states) == 3 and isinstance(out.cache, QuantizedStateCache)
    assert small(ids, use_cache=False, return_dict=False)[0].shape == (2, 40, 97)
    assert torch.equal(small(ids, logits_to_keep=1).logits, out.logits[:, -1:])
    embedded = small(inputs_embeds=small.get_input_embeddings()(ids)).logits
    torch.testing.assert_close(embedded, out.logits)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        small()
    with pytest.raises(ValueError, match="length 0"):
        small(ids[:, :0])
    with pytest.raises(ValueError, match=r"token id 97, outside 0\.\.96"):
        small(torch.tensor([[97]]))


def test_inplace_frees_the_float_blocks(mamba2, ids):
    expected = logits(quantized(mamba2, ids), ids)
    small = quantize(mamba2, [ids], inplace=True)
    assert torch.equal(logits(small, ids), expected)
    assert not hasattr(mamba2.backbone.layers[0], "mixer")


def test_calibration_data_comes_in_any_shape(mamba2, ids):
    expected = quantize(mamba2, [ids]).state_dict()
    for calib in ([ids[0], ids[1]], ({"input_ids": row[None]} for row in ids), [ids.int()]):
        found = quantize(mamba2, calib).state_dict()
        assert all(torch.allclose(found[k].double(), v.double(), rtol=1e-4, atol=1) for k, v in expected.items())
    padded = torch.cat([ids, torch.full((2, 5), 96)], 1)
    mask = torch.cat([torch.ones_like(ids), torch.zeros(2, 5, dtype=torch.long)], 1)
    found = quantize(mamba2, [{"input_ids": padded, "attention_mask": mask}]).state_dict()
    torch.testing.assert_close(found["layers.0.mixer.scale_conv_x"], expected["layers.0.mixer.scale_conv_x"])


def test_device_map(mamba2, ids, tmp_path):
    small = quantized(mamba2, ids)
    small.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = QuambaForCausalLM.from_pretrained(tmp_path, device_map="cpu")
    assert torch.equal(logits(again, ids), logits(small, ids))


# bad input


def test_other_models_are_refused(ids, mamba2):
    settings = {"vocab_size": 97, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    llama = LlamaForCausalLM(LlamaConfig(num_attention_heads=1, **settings))
    with pytest.raises(TypeError, match="LlamaForCausalLM"):
        quantize(llama, [ids])
    with pytest.raises(TypeError, match="quantized already"):
        quantize(quantized(mamba2, ids), [ids])


@pytest.mark.parametrize(
    ("calib", "error", "match"),
    [
        ([], ValueError, "calibration data is empty"),
        ([torch.zeros(1, 0, dtype=torch.long)], ValueError, "calibration item 0 has shape"),
        ([torch.zeros(2, 2, 2, dtype=torch.long)], ValueError, "calibration item 0 has shape"),
        ([torch.tensor([3, 97])], ValueError, "token id 97"),
        ([torch.tensor([3, -1])], ValueError, "token id -1"),
        ([torch.rand(4)], TypeError, "dtype torch.float32"),
        ([{"ids": torch.tensor([1])}], ValueError, "no input_ids"),
        ("text", TypeError, "iterable of LongTensors"),
        ({"input_ids": torch.tensor([1])}, TypeError, "iterable of LongTensors, got dict"),
        (["abc"], TypeError, "item 0 must be a LongTensor or a dict, got str"),
        ([None], TypeError, "item 0 must be a LongTensor or a dict, got NoneType"),
        (
            [{"input_ids": torch.tensor([[1, 2]]), "attention_mask": torch.tensor([[1, 1, 0]])}],
            ValueError,
            r"attention_mask of shape \(1, 3\)",
        ),
    ],
    ids=[
        "empty",
        "length 0",
        "3-D",
        "id too large",
        "negative id",
        "float",
        "no input_ids",
        "text",
        "dict",
        "words",
        "none",
        "mask",
    ],
)
def test_bad_calibration(calib, error, match, mamba2):
    with pytest.raises(error, match=match):
        quantize(mamba2, calib)


@pytest.mark.parametrize("mode", MODES)
def test_nan_activations_are_named(mode, mamba2, ids):
    mamba2.backbone.layers[1].mixer.in_proj.weight.data[0] = float("nan")
    with pytest.raises(ValueError, match="layer 1"):
        quantized(mamba2, ids, mode)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"mode": "w8a16"}, "mode must be one of w8a8, w4a8, w4a16, got 'w8a16'"),
        ({"gptq": True}, r"4-bit weights \(modes w4a8, w4a16\)"),
        ({"state_bits": 4}, "state_bits must be 8 or None"),
        ({"stat": "median"}, "stat must be one of max, mean"),
        ({"channel_cluster": "x"}, "channel_cluster must be one of"),
        ({"w8_granularity": "row"}, "w8_granularity must be one of channel, tensor"),
        ({"head_groups": 0}, "head_groups must be at least 1"),
        ({"group_size": -1}, "group_size must be at least 1"),
        ({"conv_granularity": "row"}, "conv_granularity must be one of channel, tensor"),
        ({"percentile": 0.0}, "percentile must be in"),
        ({"percdamp": float("nan")}, "percdamp must be positive"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "message",
)
def test_bad_configuration(settings, match):
    with pytest.raises(ValueError, match=match):
        QuambaConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"head_groups": 2.5},
        {"head_groups": True},
        {"group_size": float("nan")},
        {"hadamard": "no"},
        {"gptq": 1, "mode": "w4a8"},
        {"state_bits": 16},
        {"state_bits": "4"},
        {"percentile": True},
    ],
    ids=str,
)
def test_configuration_of_wrong_types(settings):
    with pytest.raises((ValueError, TypeError), match=next(iter(settings))):
        QuambaConfig(**settings)


def test_mamba1_warns_once_about_reordering(mamba1, ids, monkeypatch):
    monkeypatch.setattr(model_module, "_warned_about_mamba1", False)
    with pytest.warns(UserWarning, match="Mamba1 has no heads"):
        quantize(mamba1, [ids])
    quantize(mamba1, [ids])  # a second warning would be an error


def test_wide_activations_have_no_scales(mamba2, ids):
    with pytest.raises(ValueError, match="nothing to calibrate"):
        calibrate(mamba2, [ids], QuambaConfig("w4a16"))


def test_edited_configuration_is_refused(mamba2, ids, tmp_path):
    quantized(mamba2, ids).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    table = json.loads(file.read_text())
    table["quantization"]["hadamard"] = False
    file.write_text(json.dumps(table))
    with pytest.raises(ValueError, match="config_hash"):
        QuambaForCausalLM.from_pretrained(tmp_path)
    del table["config_hash"]
    file.write_text(json.dumps(table))
    with pytest.raises(ValueError, match="the weights belong to"):
        QuambaForCausalLM.from_pretrained(tmp_path)


def test_cache_of_another_kind(mamba2, ids):
    from transformers import DynamicCache

    small = quantized(mamba2, ids)
    with pytest.raises(ValueError, match="QuantizedStateCache, got DynamicCache"):
        small(ids, cache=DynamicCache())
    with pytest.raises(ValueError, match="batch must be at least 1"):
        small.footprint_states(0)
    with pytest.raises(ValueError, match="n_layers"):
        QuantizedStateCache(0)


def test_cache_rows():
    cache = QuantizedStateCache(1)
    cache.conv[0], cache.state[0] = torch.arange(3)[:, None], torch.arange(3.0)[:, None]
    cache.reorder_cache(torch.tensor([2, 0]))
    assert cache.conv[0].flatten().tolist() == [2, 0]
    cache.batch_repeat_interleave(2)
    assert cache.state[0].flatten().tolist() == [2, 2, 0, 0]
    cache.reset()
    assert cache.state == [None] and cache.nbytes == 0 and math.isclose(cache.get_seq_length(), 0)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda ids: {"input_ids": ids[0]}, ValueError, "input_ids has shape"),
        (lambda ids: {"input_ids": ids[:0]}, ValueError, "input_ids has shape"),
        (lambda ids: {"input_ids": ids > 3}, TypeError, "dtype torch.bool"),
        (lambda ids: {"input_ids": ids.float()}, TypeError, "dtype torch.float32"),
        (lambda ids: {"input_ids": -ids}, ValueError, "token id -"),
        (lambda ids: {"inputs_embeds": torch.zeros(2, 3, 47)}, ValueError, r"inputs_embeds must be \(b, l, 48\)"),
        (lambda ids: {"inputs_embeds": torch.full((1, 3, 48), math.nan)}, ValueError, "inputs_embeds is NaN"),
        (
            lambda ids: {"input_ids": ids, "attention_mask": torch.ones(2, 3)},
            ValueError,
            r"must be \(2, 40\) or longer",
        ),
        (lambda ids: {"input_ids": ids, "attention_mask": torch.ones(3, 40)}, ValueError, "attention_mask must be"),
        (lambda ids: {"input_ids": ids, "cache": QuantizedStateCache(3)}, ValueError, "3 layers, this one has 2"),
    ],
    ids=["1-D", "no row", "bool", "float", "negative", "width", "NaN", "short mask", "rows of mask", "depth"],
)
def test_bad_inputs_of_forward(make, error, match, mamba2, ids):
    small = quantized(mamba2, ids[:, :8])
    with pytest.raises(error, match=match):
        small(**make(ids))


def test_caches_that_do_not_fit(mamba2, ids):
    small = quantized(mamba2, ids[:, :8])
    one, other = small(ids[:, :4]).cache, small(ids[:, :4]).cache
    with pytest.raises(ValueError, match="two caches"):
        small(ids[:, 4:5], cache=one, cache_params=other)
    with pytest.raises(ValueError, match="2 sequences, but 1 came"):
        small(ids[:1, 4:5], cache=one)
    with pytest.raises(TypeError, match="config must be a QuambaConfig, got str"):
        quantize(mamba2, [ids], "w8a8")


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_checkpoint_with_other_tensors(change, mamba2, ids, tmp_path):
    from safetensors.torch import load_file, save_file

    quantized(mamba2, ids).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    table = load_file(file)
    if change == "missing":
        del table["layers.1.mixer.scale_out"]
    else:
        table["layers.1.mixer.scale_of_nothing"] = torch.zeros(2)
    save_file(table, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.mixer\.scale_o"):
        QuambaForCausalLM.from_pretrained(tmp_path)
    quantized(mamba2, ids).save_pretrained(tmp_path)
    model, info = QuambaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(model, QuambaForCausalLM) and not info["missing_keys"]


@pytest.mark.parametrize("mode", MODES)
def test_activations_that_overflow_are_named(mode, mamba2, ids):
    mamba2.backbone.layers[1].mixer.in_proj.weight.data[:] = 1e20
    with pytest.raises(ValueError, match="layer 1"):
        quantized(mamba2, ids, mode)


def test_nan_in_the_head_is_named(mamba2, ids):
    mamba2.lm_head.weight = torch.nn.Parameter(mamba2.lm_head.weight.detach().clone())
    mamba2.lm_head.weight.data[3, 3] = float("nan")
    with pytest.raises(ValueError, match=r"lm_head\.weight is NaN"):
        quantized(mamba2, ids)


def test_fast_scan_nests_and_copies(mamba2, ids):
    expected = logits(mamba2, ids)
    with fast_scan(mamba2):
        with fast_scan(mamba2):
            torch.testing.assert_close(logits(mamba2, ids), expected, atol=1e-4, rtol=1e-4)
        calibrate(mamba2, [ids], QuambaConfig())
        twin = copy.deepcopy(mamba2)
        for block in twin.backbone.layers:
            block.mixer.out_proj.weight.data.zero_()
        assert "forward" in vars(mamba2.backbone.layers[0].mixer)
        assert (logits(twin, ids) - expected).abs().max() > 1e-3
    assert "forward" not in vars(mamba2.backbone.layers[0].mixer)
    assert torch.equal(logits(mamba2, ids), expected)


def test_auto_classes(mamba2, ids, tmp_path):
    from transformers import AutoModelForCausalLM

    small = quantized(mamba2, ids)
    small.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, QuambaForCausalLM) and torch.equal(logits(again, ids), logits(small, ids))


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize("name", ["tinyshakespeare", "wikitext2"])
def test_perplexity_of_real_text(name):
    """A byte model trained for a moment on a text keeps its perplexity on other parts of it."""
    datasets = pytest.importorskip("icml25.shared.datasets")
    if not os.environ.get("ICML25_DATA"):
        pytest.skip("ICML25_DATA is not set")
    text = torch.frombuffer(bytearray(datasets.load(name).text.encode()), dtype=torch.uint8).long()
    cut, generator = int(0.9 * len(text)), torch.Generator().manual_seed(0)

    def rows(part, count):
        starts = torch.randint(0, len(part) - 128, (count,), generator=generator)
        return torch.stack([part[s : s + 128] for s in starts])

    model = make_mamba2(vocab_size=256, hidden_size=64, num_heads=16).train()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    with fast_scan(model):
        for _ in range(60):
            batch = rows(text[:cut], 8)
            loss = model(batch, labels=batch, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    held_out = rows(text[cut:], 16)

    def loss_of(m):
        with torch.no_grad():
            return float(m.eval()(held_out, labels=held_out, use_cache=False).loss)

    reference = loss_of(model)
    assert 2 < math.exp(reference) < 30
    calib = rows(text[:cut], 16)
    for mode, limit in (("w8a8", 0.01), ("w4a16", 0.05), ("w4a8", 0.05)):
        assert abs(loss_of(quantized(model, calib, mode)) - reference) < limit


def test_generate_goes_on_from_a_cache(mamba2, ids):
    small = quantized(mamba2, ids, state_bits=None)
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    whole = small.generate(ids[:, :10], **settings)
    rest = small.generate(ids[:, 8:10], cache=small(ids[:, :8]).cache, **settings)
    assert torch.equal(rest[:, 2:], whole[:, 10:])


def test_bfloat16_keeps_the_residual_of_integer_models(mamba2, ids):
    small = quantized(mamba2, ids)
    expected = logits(small, ids)
    small.to(torch.bfloat16)
    torch.testing.assert_close(logits(small, ids), expected, atol=1e-5, rtol=1e-5)


def test_convolution_scales(mamba2, ids):
    whole = quantized(mamba2, ids).layers[0].mixer
    each = quantized(mamba2, ids, conv_granularity="channel").layers[0].mixer
    weight = mamba2.backbone.layers[0].mixer.conv1d.weight[:, 0]
    assert whole.conv_weight_scale.shape == (1,) and each.conv_weight_scale.shape == (len(weight),)
    torch.testing.assert_close(whole.conv_weight_scale[0], weight.abs().max() / 127)
    assert (each.conv_weight.abs().amax(1) == 127).all()


# each of these was once a mutation that no test saw


def test_time_steps_are_clamped(ids):
    model = make_mamba2(time_step_limit=(0.3, 0.35))
    expected = logits(model, ids)
    assert (expected - logits(unclamped(model), ids)).abs().max() > 1e-2
    with fast_scan(model):
        torch.testing.assert_close(logits(model, ids), expected, atol=1e-4, rtol=1e-4)
    assert relative(logits(quantized(model, ids), ids), expected) < 0.06
    with torch.no_grad():
        step = quantized(model, ids, state_bits=None)
        cache = step(ids[:, :20]).cache
        torch.testing.assert_close(
            step(ids[:, 20:21], cache=cache).logits[:, 0], logits(step, ids)[:, 20], atol=2e-3, rtol=1e-3
        )


def unclamped(model):
    free = copy.deepcopy(model)
    for block in free.backbone.layers:
        block.mixer.time_step_limit = (0.0, math.inf)
    return free


def test_statistics_of_channels(mamba2, ids):
    seen = []

    def observe(layer, name, value):
        if layer == 0 and name == "conv_x":
            seen.append(value.abs())

    with fast_scan(mamba2, observe):
        mamba2(ids, use_cache=False)
    by_max, by_mean = (channel_statistics(mamba2, [ids], stat)[0].flatten() for stat in ("max", "mean"))
    torch.testing.assert_close(by_max, seen[0].amax((0, 1)))
    torch.testing.assert_close(by_mean, seen[0].mean(1).amax(0))


def test_percentile_of_mamba1_depends_on_its_size(mamba1, ids, monkeypatch):
    many = ids.repeat(1, 20)

    def scale(**settings):
        return calibrate(mamba1, [many], QuambaConfig(reorder=False, **settings)).layers[0]["conv_x"]

    assert torch.equal(scale(), scale(percentile=0.99999)) and not torch.equal(scale(), scale(percentile=0.9995))
    monkeypatch.setattr("icml25.quamba2.observers._SMALL", 10)
    assert torch.equal(scale(), scale(percentile=0.9995))


@pytest.mark.parametrize("arch", MAKERS)
def test_states_are_seen_along_the_sequence(arch, ids):
    """A state that is large only in the middle must count."""
    model, seen = MAKERS[arch](), []

    def observe(layer, name, value):
        if layer == 0 and name == "state":
            seen.append(value.shape[1])

    with fast_scan(model, observe):
        model(ids, use_cache=False)
    assert sum(seen) == 3  # after 16, 32 and 40 tokens


def test_residual_keeps_its_dtype(ids):
    """Half of the float16 stream is lost in the sum unless the residual is float32."""
    found = []
    for wide in (True, False):
        torch.manual_seed(0)
        model = make_mamba2(residual_in_fp32=wide)
        small = quantized(model, ids, "w4a16").to(torch.bfloat16)
        small(ids)
        with torch.no_grad():
            hidden = small(ids, output_hidden_states=True).hidden_states
        found.append(hidden[1].dtype)
    assert found == [torch.float32, torch.bfloat16]


def test_gptq_of_out_proj_sees_the_quantized_in_proj(mamba2, ids, monkeypatch):
    hessians, seen = [], []
    original = model_module.gptq_quantize

    def spy(W, hessian, *args):
        hessians.append(hessian.clone())
        return original(W, hessian, *args)

    monkeypatch.setattr(model_module, "gptq_quantize", spy)
    small = quantized(mamba2, ids, "w4a16")
    out_proj = small.layers[0].mixer.out_proj
    floating = out_proj.floating
    monkeypatch.setattr(out_proj, "floating", lambda x: seen.append(x.flatten(0, 1)) or floating(x))
    logits(small, ids)
    [x] = seen
    torch.testing.assert_close(hessians[1], 2 / len(x) * x.T @ x, rtol=1e-3, atol=1e-5 * float(hessians[1].max()))


@pytest.mark.parametrize("arch", MAKERS)
def test_cached_states_are_read_with_the_scales_they_were_kept_with(arch, ids):
    small = quantized(MAKERS[arch](), ids)
    mixer = small.layers[0].mixer
    with torch.no_grad():
        cache = small(ids[:, :16]).cache
        read = mixer._past_state(cache)
        mixer.state_bits = None
        exact = small(ids[:, :16]).cache.state[0]
    scale = mixer._of_channels(mixer.scale_state).view(read.shape[1:])
    error = (read - exact.clamp(-128 * scale, 127 * scale)).abs() / scale
    assert 0.3 < error.max() <= 0.501
