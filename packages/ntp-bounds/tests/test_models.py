"""The torch decoder against numpy's, gradients against the constants, norms read from models."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import forward

from icml25.ntp_bounds import DecoderSpec, bound, lipschitz
from icml25.ntp_bounds.adapters import matrix_norms
from icml25.ntp_bounds.models import Block, Decoder

SIZES = {"vocab": 7, "dim": 6, "heads": 2, "ffn_dim": 5, "n_layers": 2, "seq_len": 5}
hugely_loose = pytest.mark.filterwarnings("ignore:.*hugely loose")


def build(**options):
    return Decoder(**SIZES, seed=1, **options).double()


def weights_of(model):
    found = {}
    for name, path in model.paths.items():
        weight = model.get_parameter(f"{path}.weight").detach().numpy()
        found[name] = weight if name in ("embedding", "positions") else weight.T
    return found


@pytest.mark.parametrize("mask", ["causal", "full", ("window", 2), np.tri(5) + np.eye(5, k=1)])
@pytest.mark.parametrize("norm", ["project", "rmsnorm"])
def test_forward_is_the_formulas(mask, norm):
    model = build(mask=mask, norm=norm, b_x=1.3) if norm == "project" else build(mask=mask, norm=norm, rms_eps=0.01)
    tokens = torch.tensor([[3, 1, 6, 0, 2], [0, 0, 5, 5, 1]])
    expected = np.stack([forward(model.shell, weights_of(model), row.numpy()) for row in tokens])
    np.testing.assert_allclose(model(tokens).detach().numpy(), expected, atol=1e-10)
    np.testing.assert_allclose(
        model(tokens[:, :3]).detach().numpy()[0],
        forward(model.shell, weights_of(model), tokens[0, :3].numpy()),
        atol=1e-10,
    )


def test_block_before_which_the_norm_stands():
    model = build(norm="rmsnorm", pre_norm=True)
    tokens = torch.tensor([[3, 1, 6, 0, 2]])
    x = model.embedding(tokens) + model.positions.weight
    for block in model.blocks:
        x = x + block.attend(model.normalise(x), is_causal=True)
        x = x + block.feed(model.normalise(x))
    torch.testing.assert_close(model(tokens), model.normalise(x) @ model.W_out.weight.T)
    assert model.normalise(x).square().mean(-1).detach().numpy() == pytest.approx(1, abs=1e-4)


def test_causality_and_seeds():
    model, tokens = build(), torch.tensor([[3, 1, 6, 0, 2]])
    changed = tokens.clone()
    changed[0, 3] = 4
    difference = (model(tokens) - model(changed)).abs().sum(-1)[0]
    assert (difference[:3] == 0).all() and (difference[3:] > 0).all()
    state = torch.random.get_rng_state()
    one, two, other = (Decoder(**SIZES, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one(tokens), two(tokens)) and not torch.equal(one(tokens), other(tokens))
    assert one.bfloat16()(tokens).dtype == torch.bfloat16
    two.load_state_dict(other.state_dict())
    assert torch.equal(two(tokens), other(tokens))


@pytest.mark.parametrize(("layers", "window"), [(1, 1), (1, 3), (2, 2), (3, 3)])
def test_context_of_stacked_windows(layers, window):
    """A prediction sees c = L (w - 1) + 1 tokens, no more and no fewer."""
    model = Decoder(**SIZES | {"n_layers": layers, "seq_len": 9}, mask=("window", window), seed=1).double()
    tokens = torch.tensor([[3, 1, 6, 0, 2, 4, 5, 1, 2]])
    c = layers * (window - 1) + 1
    for position in range(9):
        changed = tokens.clone()
        changed[0, position] = (tokens[0, position] + 1) % 7
        moved = (model(tokens) - model(changed))[0].abs().sum(-1).detach().numpy() > 0
        assert moved.tolist() == [position <= t < position + c for t in range(9)]


def test_bad_tokens_and_options():
    with pytest.raises(ValueError, match=r"t from 1 to 5, got shape \(1, 6\)"):
        build()(torch.zeros(1, 6, dtype=torch.int64))
    ahead = np.tri(5)
    ahead[0] = [0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="the first 3 tokens has a row without a 1"):
        build(mask=ahead)(torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="no 1 in row 0"):
        DecoderSpec.from_torch(build(mask=ahead), seq_len=3)
    with pytest.raises(TypeError, match="no option 'dropout'"):
        Decoder(**SIZES, dropout=0.1)
    with pytest.raises(ValueError, match="heads must divide dim"):
        Decoder(**SIZES | {"heads": 4})


@hugely_loose
@pytest.mark.parametrize(
    "options", [{}, {"b_x": 1.4, "mask": ("window", 3)}, {"norm": "rmsnorm", "rms_eps": 0.5, "pre_norm": True}]
)
def test_jacobians_are_within_the_constants(options):
    model = build(**options)
    for parameter in model.parameters():
        parameter.data *= 0.7
    spec = DecoderSpec.from_torch(model)
    tokens = torch.tensor([[3, 1, 6, 0, 2]])
    frobenius, token = lipschitz(spec).rho, lipschitz(spec, metric="token").rho
    for name, path in model.paths.items():
        full, parameter = f"{path}.weight", model.get_parameter(f"{path}.weight")
        jacobian = torch.autograd.functional.jacobian(
            lambda w, full=full: torch.func.functional_call(model, {full: w}, (tokens,))[0], parameter
        ).reshape(5, 7, -1)
        assert 0 < np.linalg.norm(jacobian.reshape(35, -1), 2) <= frobenius[name] * (1 + 1e-9)
        assert max(np.linalg.norm(rows, 2) for rows in jacobian) <= token[name] * (1 + 1e-9)


def test_norms_are_those_of_numpy():
    model = build(mask=("window", 3), b_x=1.7)
    spec = DecoderSpec.from_torch(model)
    for name, weight in weights_of(model).items():
        assert spec.norms[name] == pytest.approx((np.linalg.norm(weight, 2), np.linalg.norm(weight)))
        assert spec.shapes[name] == weight.shape
    assert spec.mask == ("window", 3) and spec.b_x == 1.7 and spec.notes == () and spec.seq_len == 5
    short = DecoderSpec.from_torch(model, seq_len=2, mask=("window", 3))
    assert short.norms["positions"].fro == pytest.approx(np.linalg.norm(weights_of(model)["positions"][:2]))
    assert DecoderSpec.from_torch(model.float()).norms["0.Q"] == pytest.approx(spec.norms["0.Q"], rel=1e-6)
    assert bound(spec, 10**6).gap > 0


def test_matrix_norms_beyond_exact_sizes(monkeypatch):
    W = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    exact, known = matrix_norms(W)
    assert known and exact == pytest.approx((np.linalg.norm(W, 2), np.linalg.norm(W)), rel=1e-6)
    monkeypatch.setattr("icml25.ntp_bounds.adapters.EXACT", 10)
    estimate, known = matrix_norms(W)
    assert not known and exact.op <= estimate.op <= 1.011 * exact.op and estimate.fro == exact.fro
    assert matrix_norms(torch.ones(20, 20))[0] == pytest.approx((20, 20))  # never above fro
    spec = DecoderSpec.from_torch(Decoder(**SIZES | {"dim": 12}))
    assert "op of 0.Q is 1.01 times a power iteration's" in spec.notes
    with pytest.raises(ValueError, match="NaN or infinity"):
        matrix_norms(torch.full((2, 2), math.nan))


def test_from_torch_refuses_what_it_does_not_understand():
    with pytest.raises(NotImplementedError, match="got Linear"):
        DecoderSpec.from_torch(torch.nn.Linear(2, 2))
    model = build()
    model.blocks[1].V = torch.nn.Sequential(model.blocks[1].V)
    with pytest.raises(NotImplementedError, match=r"blocks\.1\.V is a Sequential"):
        DecoderSpec.from_torch(model)
    model = build()
    model.blocks[0].Q.bias = torch.nn.Parameter(torch.zeros(6))
    with pytest.raises(NotImplementedError, match=r"blocks\.0\.Q\.bias is no part"):
        DecoderSpec.from_torch(model)
    model = build()
    model.blocks[0].register_forward_hook(lambda module, inputs, output: output)
    with pytest.raises(NotImplementedError, match=r"blocks\.0 has a forward hook"):
        DecoderSpec.from_torch(model)
    model = build()
    model.blocks[1].__class__ = type("Louder", (Block,), {"feed": lambda self, x: 9 * self.W2(self.W1(x))})
    with pytest.raises(NotImplementedError, match=r"blocks\.1 is a Louder"):
        DecoderSpec.from_torch(model)
    model = build()
    model.__class__ = type("Louder", (Decoder,), {"forward": lambda self, x: 9 * Decoder.forward(self, x)})
    with pytest.raises(NotImplementedError, match="the model is a Louder"):
        DecoderSpec.from_torch(model)
    model = build()
    model.embedding.max_norm = 1.0
    with pytest.raises(NotImplementedError, match="embedding is a Embedding"):
        DecoderSpec.from_torch(model)
    with pytest.raises(ValueError, match="mask 'full' is not the model's"):
        DecoderSpec.from_torch(build(), mask="full")
    with pytest.raises(ValueError, match="seq_len must be at most the model's 5"):
        DecoderSpec.from_torch(build(), seq_len=6)


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")

    def make(family="Llama", kind="ForCausalLM", **changes):
        settings = {
            "vocab_size": 11,
            "hidden_size": 8,
            "intermediate_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 0.2,
            "max_position_embeddings": 32,
        }
        config = getattr(transformers, f"{family}Config")(**settings | changes)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = getattr(transformers, family + kind)(config).double().eval()
            for parameter in model.parameters():
                parameter.data = torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1)
        return model

    return make


@hugely_loose
@pytest.mark.parametrize("tied", [False, True])
def test_llama_moves_by_at_most_the_sum(llama, tied):
    """Gains stay as they are; every matrix moves, and its change is read behind the gain before it."""
    one = llama(tie_word_embeddings=tied)
    if tied:
        one.model.norm.weight.data.fill_(1.0)
    two = copy.deepcopy(one)
    generator = torch.Generator().manual_seed(1)
    for parameter in two.parameters():
        if parameter.ndim == 2:
            parameter.data += 1e-3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    first, second = DecoderSpec.from_hf(one, 6), DecoderSpec.from_hf(two, 6)
    norms = {name: np.maximum(first.norms[name], second.norms[name]).tolist() for name in first.norms}
    spec = replace(first, norms=norms)
    gains = {name: p.detach() for name, p in one.named_parameters() if p.ndim == 1}
    moved = {"embedding": one.model.embed_tokens.weight - two.model.embed_tokens.weight}
    if tied:
        moved = {"W_out": moved["embedding"]}
    else:
        moved["W_out"] = (one.lm_head.weight - two.lm_head.weight) * gains["model.norm.weight"]
    names = {
        "q_proj": "Q",
        "k_proj": "K",
        "v_proj": "V",
        "o_proj": "O",
        "gate_proj": "W1",
        "up_proj": "W3",
        "down_proj": "W2",
    }
    for k, (a, b) in enumerate(zip(one.model.layers, two.model.layers, strict=True)):
        for part in ("self_attn", "mlp"):
            gain = gains[f"model.layers.{k}.{'input' if part == 'self_attn' else 'post_attention'}_layernorm.weight"]
            for path, module in getattr(a, part).named_children():
                if path in names:
                    change = module.weight - getattr(getattr(b, part), path).weight
                    moved[f"{k}.{names[path]}"] = change if path in ("o_proj", "down_proj") else change * gain
    assert set(moved) == set(spec.shapes)
    tokens = torch.tensor([[3, 1, 6, 0, 2, 10]])
    with torch.no_grad():
        change = (one(tokens).logits - two(tokens).logits)[0].numpy()
    for metric, found in (("frobenius", np.linalg.norm(change)), ("token", np.linalg.norm(change, axis=1).max())):
        rho = lipschitz(spec, metric=metric).rho
        assert 0 < found <= sum(rho[name] * float(d.detach().norm()) for name, d in moved.items())


@hugely_loose
def test_llama_sizes_and_norms(llama):
    model = llama()
    spec = DecoderSpec.from_hf(model, 16)
    assert (spec.vocab, spec.dim, spec.heads, spec.kv_heads, spec.ffn_dim, spec.n_layers, spec.seq_len) == (
        11,
        8,
        4,
        2,
        12,
        2,
        16,
    )
    assert spec.gated and spec.pre_norm and not spec.positions and not spec.tied and spec.mask == "causal"
    assert spec.n_params == sum(p.numel() for p in model.parameters() if p.ndim == 2)
    attention, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
    before, between = (getattr(model.model.layers[1], f"{k}_layernorm").weight for k in ("input", "post_attention"))
    folded = {
        "embedding": model.model.embed_tokens.weight,
        "1.Q": attention.q_proj.weight * before,
        "1.K": attention.k_proj.weight * before,
        "1.V": attention.v_proj.weight * before,
        "1.O": attention.o_proj.weight,
        "1.W1": mlp.gate_proj.weight * between,
        "1.W3": mlp.up_proj.weight * between,
        "1.W2": mlp.down_proj.weight,
        "W_out": model.lm_head.weight * model.model.norm.weight,
    }
    for name, weight in folded.items():
        W = weight.detach().numpy()
        assert spec.norms[name] == pytest.approx((np.linalg.norm(W, 2), np.linalg.norm(W))), name
    assert spec.row_bound == pytest.approx(math.sqrt(8)) and spec.norm_lipschitz == pytest.approx(0.2**-0.5)
    tied = DecoderSpec.from_hf(llama(tie_word_embeddings=True), 16)
    assert not tied.tied and "tied to the embedding but for a gain" in tied.notes[0]
    assert DecoderSpec.from_hf(llama("Mistral", sliding_window=4), 16).mask == ("window", 4)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Llama", {"attention_bias": True}, "bias is no part"),
        ("Llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("Llama", {"head_dim": 4}, "head_dim 4"),
        ("Llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}, "rope_type 'yarn'"),
        ("Mixtral", {}, "got mixtral"),
        ("Qwen2", {}, "got qwen2"),
    ],
)
def test_from_hf_refuses_what_it_does_not_understand(llama, family, changes, message):
    with pytest.raises(NotImplementedError, match=message):
        DecoderSpec.from_hf(llama(family, **changes), 8)


def test_from_hf_refuses_alibi_and_fused_weights():
    transformers = pytest.importorskip("transformers")
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2))
    with pytest.raises(NotImplementedError, match="got bloom"):
        DecoderSpec.from_hf(bloom, 8)
    with pytest.raises(NotImplementedError, match="got Linear"):
        DecoderSpec.from_hf(torch.nn.Linear(2, 2), 8)


def test_from_hf_refuses_a_module_put_in(llama):
    model = llama()
    model.model.layers[0].self_attn.qkv = torch.nn.Linear(8, 24, bias=False)
    with pytest.raises(NotImplementedError, match=r"layers\.0\.self_attn\.qkv\.weight is no part"):
        DecoderSpec.from_hf(model, 8)
    model = llama()
    del model.model.layers[0].mlp.up_proj
    with pytest.raises(NotImplementedError, match=r"layers\.0\.mlp\.up_proj has no weight of its own"):
        DecoderSpec.from_hf(model, 8)


def test_from_hf_refuses_modules_of_other_classes_and_hooks(llama):
    """What has no weights of its own, or weights of the right shapes, and does something else."""
    model = llama()
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()
    with pytest.raises(NotImplementedError, match=r"layers\.0\.mlp\.act_fn is a ReLU"):
        DecoderSpec.from_hf(model, 8)
    model = llama()
    model.model.norm = torch.nn.LayerNorm(8, bias=False).double()
    with pytest.raises(NotImplementedError, match=r"model\.norm is a LayerNorm"):
        DecoderSpec.from_hf(model, 8)
    model = llama()
    model.__class__ = type("Louder", (type(model),), {})
    with pytest.raises(NotImplementedError, match="the model is a Louder"):
        DecoderSpec.from_hf(model, 8)
    model = llama()
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: 9 * output)
    with pytest.raises(NotImplementedError, match=r"layers\.1\.mlp has a forward hook"):
        DecoderSpec.from_hf(model, 8)
    for model in (llama().model, llama(kind="ForSequenceClassification")):
        with pytest.raises(NotImplementedError, match=r"\.\.\.ForCausalLM, got llama"):
            DecoderSpec.from_hf(model, 8)


@hugely_loose
def test_models_that_recorded_their_hidden_states_are_read(llama):
    model = llama()
    model(torch.tensor([[3, 1]]), output_hidden_states=True)
    assert DecoderSpec.from_hf(model, 8).norms == DecoderSpec.from_hf(llama(), 8).norms


@pytest.mark.parametrize("window", [1, 2, 4])
def test_context_of_a_mistral(llama, window):
    """sliding_window counts the token itself: two layers see 2 (w - 1) + 1 tokens."""
    model = llama("Mistral", sliding_window=window)
    tokens = torch.tensor([[3, 1, 6, 0, 2, 10, 5, 1, 2]])
    c = 2 * (DecoderSpec.from_hf(model, 9).window - 1) + 1
    with torch.no_grad():
        for position in (0, 4):
            changed = tokens.clone()
            changed[0, position] = 7
            moved = (model(tokens).logits - model(changed).logits)[0].abs().sum(-1) > 0
            assert moved.tolist() == [position <= t < position + c for t in range(9)]


def test_from_hf_refuses_packed_weights(llama):
    model = llama()
    packed = torch.nn.Parameter(torch.zeros(32, 1, dtype=torch.uint8), requires_grad=False)
    model.model.layers[1].self_attn.o_proj.weight = packed
    with pytest.raises(NotImplementedError, match=r"1\.O is torch.uint8 of shape \(32, 1\)"):
        DecoderSpec.from_hf(model, 8)
