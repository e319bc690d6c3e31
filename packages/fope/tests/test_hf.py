"""FoPE inside transformers' models: equal to them without FoPE, decoding, padding, state, hooks."""

import copy
import inspect
import json
import pickle
import subprocess
import sys

import pytest
import torch
import transformers

import icml25.fope.hf
from icml25.fope import FopeConfig, FourierPositionEmbedding, ablation, convert_model, extend_model, load_fope

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Olmo", "Olmo2")
CONFIG = FopeConfig(64, sigma=1.0)
CACHE = "cache" if "cache" in inspect.signature(transformers.LlamaModel.forward).parameters else "past_key_values"


def logits(model, ids, **kwargs):
    with torch.no_grad():
        return model(ids, **kwargs).logits


def theta(model):
    return model.config.rope_parameters["rope_theta"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_without_fope_all_is_as_before(tiny, ids, family, attention):
    settings = {"Olmo": {"clip_qkv": 0.5}, "Mistral": {"sliding_window": 7}}.get(family, {})
    model = tiny(family, attn_implementation=attention, **settings)
    before = logits(model, ids)
    assert convert_model(model, ablation("rope", 64, theta=theta(model))) is model
    torch.testing.assert_close(logits(model, ids), before, atol=2e-5, rtol=0)
    other = convert_model(tiny(family, **settings), FopeConfig(64, theta=theta(model)))
    assert (logits(other, ids) - before).abs().max() > 1e-2


def test_sliding_windows_of_qwen(tiny, ids):
    settings = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    model = tiny("Qwen2", **settings)
    before = logits(model, ids)
    convert_model(model, ablation("rope", 64, theta=theta(model)))
    torch.testing.assert_close(logits(model, ids), before, atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_decoding_equals_one_pass(tiny, ids, family):
    model = tiny(family)
    convert_model(model, FopeConfig(64, sigma=1.0, theta=theta(model)))
    full, steps, memory = logits(model, ids), [], None
    with torch.no_grad():
        for t in range(0, ids.shape[1], 8):
            out = model(ids[:, t : t + 8], **({CACHE: memory} if memory else {}), use_cache=True)
            memory = getattr(out, CACHE)
            steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), full, atol=1e-5, rtol=1e-5)


def test_the_older_name_of_the_cache(tiny, ids):
    from transformers import DynamicCache

    model = convert_model(tiny(), CONFIG)
    attention, x = model.model.layers[0].self_attn, torch.randn(1, 3, 64)
    tables = model.model.rotary_emb(x, torch.arange(3)[None])
    caches = DynamicCache(), DynamicCache()
    attention(x, tables, cache=caches[0])
    attention(x, tables, past_key_values=caches[1])
    assert caches[0].get_seq_length() == caches[1].get_seq_length() == 3


def test_left_padding_and_position_offset(tiny, ids):
    model = convert_model(tiny(), CONFIG)
    padded = torch.cat((torch.zeros(2, 6, dtype=torch.long), ids), 1)
    mask = (torch.arange(46) >= 6).long().expand(2, -1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    shifted = logits(model, padded, attention_mask=mask, position_ids=positions)[:, 6:]
    torch.testing.assert_close(shifted, logits(model, ids), atol=1e-5, rtol=1e-5)
    away = logits(model, ids, position_ids=torch.arange(40)[None] + 500)
    assert (away - logits(model, ids)).abs().max() > 1e-3  # one draw is not shift invariant ...
    plain = convert_model(tiny(), FopeConfig(64, sigma=0.0))
    away = logits(plain, ids, position_ids=torch.arange(40)[None] + 500)
    torch.testing.assert_close(away, logits(plain, ids), atol=2e-3, rtol=0)  # ... without noise it is


def test_generate_with_and_without_cache_and_padding(tiny, ids):
    model = convert_model(tiny(), CONFIG)
    settings = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    out = model.generate(ids[:1, :10], **settings)
    assert torch.equal(out, model.generate(ids[:1, :10], use_cache=False, **settings))
    assert torch.equal(out, model.generate(ids[:1, :10], cache_implementation="static", **settings))
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), ids[:1, :10]), 1)
    mask = (torch.arange(14) >= 4).long()[None]
    assert torch.equal(out[:, 10:], model.generate(padded, attention_mask=mask, **settings)[:, 14:])


def test_shared_key_heads_equal_repeated_ones(tiny, ids):
    grouped = convert_model(tiny(), CONFIG)
    full = convert_model(tiny(num_key_value_heads=4), CONFIG)
    state = grouped.state_dict()
    for name, value in list(state.items()):
        if "k_proj" in name or "v_proj" in name:
            state[name] = value.view(2, 16, 64).repeat_interleave(2, 0).reshape(64, 64)
        elif "coefficients" in name:
            state[name] = value.repeat_interleave(2, 0)
    full.load_state_dict(state)
    torch.testing.assert_close(logits(full, ids), logits(grouped, ids), atol=1e-5, rtol=0)


def test_one_table_for_all_layers(tiny):
    model = convert_model(tiny(), CONFIG)
    tables = [m for m in model.modules() if isinstance(m, FourierPositionEmbedding)]
    assert len(tables) == 1 and tables[0].n_heads == 2 and tables[0].head_dim == 16
    assert {name for name in model.state_dict() if "rotary_emb" in name} >= {
        "model.rotary_emb.cos_coefficients",
        "model.rotary_emb.sin_coefficients",
    }


@pytest.mark.parametrize(
    "settings", [{}, {"learnable": True}, {"separate_basis": False}, {"yarn": {"scale": 4, "original_length": 64}}]
)
def test_saved_and_loaded(tiny, ids, tmp_path, settings):
    model = convert_model(tiny(), FopeConfig(64, sigma=1.0, **settings))
    with torch.no_grad():
        model.model.rotary_emb.cos_coefficients.add_(0.25)  # no seed gives these: they must come from the file
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert json.loads((tmp_path / "config.json").read_text())["fope"]["max_train_length"] == 64
    loaded = load_fope(tmp_path)
    assert type(loaded) is type(model) and not loaded.training
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert loaded.config.fope == model.config.fope
    with pytest.raises(TypeError, match="has FoPE already"):
        convert_model(loaded, CONFIG)


def test_saved_extended(tiny, ids, tmp_path):
    model = convert_model(tiny(), CONFIG)
    before = model.model.rotary_emb.cos_coefficients.clone()
    assert extend_model(model, 256) is model
    assert torch.equal(model.model.rotary_emb.cos_coefficients[..., : before.shape[1], : before.shape[2]], before)
    assert model.config.fope["max_train_length"] == 256
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load_fope(tmp_path), ids), logits(model, ids))


def test_what_cannot_be_loaded(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="path must be a folder"):
        load_fope(tmp_path / "nowhere")
    tiny().save_pretrained(tmp_path / "rope")
    with pytest.raises(ValueError, match="holds no FoPE model"):
        load_fope(tmp_path / "rope")
    plain = tiny()
    plain.config.fope = CONFIG.to_dict()
    plain.save_pretrained(tmp_path / "lost")
    with pytest.raises(ValueError, match="lacks the coefficients"):
        load_fope(tmp_path / "lost")
    (tmp_path / "lost" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="safetensors is missing"):
        load_fope(tmp_path / "lost")


def test_bfloat16(tiny, ids, tmp_path):
    model = convert_model(tiny(), CONFIG)
    exact = logits(model, ids)
    table = model.model.rotary_emb.cos_coefficients.clone()
    model.to(torch.bfloat16)
    assert torch.equal(model.model.rotary_emb.cos_coefficients, table)
    half = logits(model, ids)
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().max() < 0.1 * exact.abs().max()
    model.save_pretrained(tmp_path)
    loaded = load_fope(tmp_path)
    assert loaded.dtype == torch.bfloat16 and loaded.model.rotary_emb.cos_coefficients.dtype == torch.float32
    assert torch.equal(logits(loaded, ids), half)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(tiny, ids, reentrant):
    # reentrant checkpoints lose the gradient of what a layer is given by keyword: nothing to learn there
    model = convert_model(tiny(), FopeConfig(64, learnable=not reentrant))
    gradients = []
    for checkpointing in (False, True):
        model.zero_grad()
        if checkpointing:
            model.train()
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4)
    assert ("model.rotary_emb.cos_coefficients" in gradients[1]) != reentrant


def test_training_learns_and_the_table_stays(tiny, ids):
    model = convert_model(tiny(), CONFIG).train()
    before = copy.deepcopy(model.model.rotary_emb.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    for name, value in model.model.rotary_emb.state_dict().items():
        assert torch.equal(value, before[name])


def test_copies_are_independent(tiny, ids):
    model = convert_model(tiny(), CONFIG)
    twin = copy.deepcopy(model)
    before = logits(model, ids)
    with torch.no_grad():
        twin.model.layers[0].self_attn.q_proj.weight.zero_()
        twin.model.rotary_emb.cos_coefficients.zero_()
    assert torch.equal(logits(model, ids), before) and (logits(twin, ids) - before).abs().max() > 1e-3


def test_hooks_of_accelerate(tiny, ids):
    from accelerate import dispatch_model

    expected = logits(convert_model(tiny(), CONFIG), ids)
    before = convert_model(dispatch_model(tiny(), {"": "cpu"}, force_hooks=True), CONFIG)
    after = dispatch_model(convert_model(tiny(), CONFIG), {"": "cpu"}, force_hooks=True)
    for model in (before, after):
        assert hasattr(model.model.layers[0].self_attn, "_hf_hook")
        assert torch.equal(logits(model, ids), expected)
    assert hasattr(after.model.rotary_emb, "_hf_hook")
    extended = logits(extend_model(after, 256), ids)
    assert hasattr(after.model.rotary_emb, "_hf_hook")
    assert torch.equal(extended, logits(extend_model(convert_model(tiny(), CONFIG), 256), ids))


def test_device_maps_of_from_pretrained(tiny, ids, tmp_path):
    model = convert_model(tiny(), CONFIG)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load_fope(tmp_path, device_map="cpu"), ids), logits(model, ids))


def test_attentions_and_hidden_states_are_recorded(tiny, ids):
    model = convert_model(tiny(attn_implementation="eager"), CONFIG)
    with torch.no_grad():
        out = model(ids, output_attentions=True, output_hidden_states=True)
    assert len(out.attentions) == 2 and out.attentions[0].shape == (2, 4, 40, 40) and len(out.hidden_states) == 3


def test_no_square_beyond_attention(tiny):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    self.numel = max(self.numel, tensor.numel())
            return out

    t = 1500
    tokens = torch.ones(1, t, dtype=torch.long)
    seen = []
    for model in (tiny(), convert_model(tiny(), CONFIG)):
        with torch.no_grad(), Largest() as largest:
            model.model(tokens, use_cache=False)
        seen.append(largest.numel)
    assert seen[1] == seen[0] < t * t


def test_other_heads_of_a_model(ids):
    from transformers import LlamaConfig, LlamaForSequenceClassification, LlamaModel

    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        pad_token_id=0,
        num_labels=3,
    )
    body = convert_model(LlamaModel(copy.deepcopy(config)), CONFIG)
    assert body(ids).last_hidden_state.shape == (2, 40, 64)
    assert convert_model(LlamaForSequenceClassification(config), CONFIG)(ids).logits.shape == (2, 3)


def test_unsupported_models(tiny):
    from transformers import GPT2Config, GPT2LMHeadModel

    with pytest.raises(TypeError, match=r"GPT2LMHeadModel.* is not supported"):
        convert_model(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50)), CONFIG)
    with pytest.raises(TypeError, match="PreTrainedModel"):
        convert_model(torch.nn.Linear(2, 2), CONFIG)
    with pytest.raises(TypeError, match="has FoPE already"):
        convert_model(convert_model(tiny(), CONFIG), CONFIG)
    with pytest.raises(TypeError, match="has no FoPE"):
        extend_model(tiny(), 128)


def test_refused_rotary_settings(tiny):
    model = tiny()
    model.config.rope_parameters["partial_rotary_factor"] = 0.5
    with pytest.raises(NotImplementedError, match=r"partial_rotary_factor = 0\.5"):
        convert_model(model, CONFIG)
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(NotImplementedError, match="rope_type = 'linear'"):
        convert_model(tiny(rope_parameters=rope), CONFIG)
    for head_dim in (6, 10):
        with pytest.raises(ValueError, match="head_dim must be a positive multiple of 4"):
            convert_model(tiny(head_dim=head_dim), CONFIG)


def test_a_refused_conversion_changes_nothing(tiny, ids):
    model = tiny()
    before = logits(model, ids)
    with pytest.raises(ValueError, match="no frequency survives"):
        convert_model(model, FopeConfig(5))
    assert torch.equal(logits(model, ids), before) and getattr(model.config, "fope", None) is None


def test_another_theta_warns(tiny):
    with pytest.warns(UserWarning, match="theta = 10000, but the model was built with rope_theta = 500000"):
        convert_model(tiny(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}), CONFIG)


def test_without_transformers_the_core_works_and_the_extra_is_named():
    code = """
import sys
sys.modules["transformers"] = None
import icml25.fope as f, torch
f.FourierPositionEmbedding(16, 2, f.FopeConfig(64)).tables(torch.arange(3))
try:
    f.convert_model
except ImportError as error:
    assert "pip install 'icml25-fope[hf]'" in str(error), error
else:
    raise SystemExit("no error")
try:
    f.nothing
except AttributeError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_yarn_on_a_trained_model(tiny, ids, tmp_path):
    yarn = {"scale": 4, "original_length": 64}
    model = convert_model(tiny(), CONFIG)
    with torch.no_grad():
        model.model.rotary_emb.cos_coefficients.add_(0.25)
    before = logits(model, ids)
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["fope"]["yarn"] = yarn
    (tmp_path / "config.json").write_text(json.dumps(settings))
    edited = logits(load_fope(tmp_path), ids)
    other = convert_model(tiny(), FopeConfig(64, sigma=1.0, yarn=yarn))
    other.load_state_dict(model.state_dict())
    extended = logits(extend_model(model, 64, yarn=yarn), ids)
    assert (edited - before).abs().max() > 1e-2
    assert torch.equal(logits(other, ids), edited) and torch.equal(extended, edited)
    assert model.config.fope["yarn"]["scale"] == 4


def test_pickles(tiny, ids):
    model = convert_model(tiny(), CONFIG)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(logits(again, ids), logits(model, ids))
    with pytest.raises(AttributeError):
        icml25.fope.hf.FopeNothing  # noqa: B018


def test_the_module_tells_whether_a_model_was_converted(tiny, ids):
    model = convert_model(tiny(), CONFIG)
    plain = type(model)(copy.deepcopy(model.config))  # knows the settings, has plain RoPE
    assert convert_model(plain, CONFIG) is plain
    del model.config.fope
    with pytest.raises(TypeError, match="has FoPE already"):
        convert_model(model, CONFIG)


def test_dropout_and_dtype_of_the_table(tiny, ids):
    model = convert_model(tiny(attn_implementation="eager", attention_dropout=0.5), CONFIG)
    before = logits(model, ids)
    assert (logits(model.train(), ids) - before).abs().max() > 1e-2
    cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=torch.bfloat16), torch.arange(3)[None])
    assert cos.dtype == sin.dtype == torch.bfloat16


def spoilt(folder, **changes):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | changes))


def test_spoilt_folders(tiny, tmp_path):
    model = convert_model(tiny(), CONFIG)
    model.save_pretrained(tmp_path)
    good = (tmp_path / "config.json").read_text()
    for changes, words in (
        ({"architectures": ["MyLlama"]}, "is MyLlama, which transformers does not have"),
        ({"architectures": None}, "is none, which transformers"),
        ({"fope": CONFIG.to_dict() | {"wavelets": True}}, "no valid 'fope' settings.*wavelets"),
        ({"fope": CONFIG.to_dict() | {"max_train_length": 16}}, "do not fit the settings"),
    ):
        spoilt(tmp_path, **changes)
        with pytest.raises(ValueError, match=words):
            load_fope(tmp_path)
        (tmp_path / "config.json").write_text(good)
    with pytest.raises(TypeError, match="output_loading_info is not supported"):
        load_fope(tmp_path, output_loading_info=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot be read"):
        load_fope(tmp_path)


@pytest.mark.parametrize("config", [None, {"max_train_length": 64}, 64])
def test_convert_wants_settings(tiny, config):
    with pytest.raises(TypeError, match="config"):
        convert_model(tiny(), config)


@pytest.mark.parametrize("model", [None, torch.nn.Linear(2, 2)], ids=["none", "linear"])
def test_extend_wants_a_model(model):
    with pytest.raises(TypeError, match="model"):
        extend_model(model, 128)
