"""Sizes, masks, norms, bad input, save and load."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icml25.ntp_bounds import DecoderSpec, MatrixNorms
from icml25.ntp_bounds.checks import check_flag, check_integer, check_number

SIZES = {"vocab": 11, "dim": 8, "heads": 2, "ffn_dim": 12, "n_layers": 2, "seq_len": 6}


def spec(**changes):
    return DecoderSpec(**(SIZES | {"norms": (1.0, 2.0)} | changes))


def test_names_shapes_and_parameters():
    s = spec()
    layer = ["Q", "K", "V", "O", "W1", "W2"]
    names = ["embedding", "positions", *(f"{k}.{name}" for k in (0, 1) for name in layer), "W_out"]
    assert list(s.shapes) == names and list(s.norms) == names
    assert s.n_params == 11 * 8 + 6 * 8 + 2 * (4 * 64 + 2 * 96) + 88
    assert s.shapes["1.W2"] == (12, 8) and s.norms["1.W2"] == MatrixNorms(1, 2)
    other = spec(tied=True, positions=False, gated=True, kv_heads=1)
    assert other.n_params == 2 * (2 * 64 + 2 * 32 + 3 * 96) + 88
    assert "embedding" not in other.norms and "0.W3" in other.norms and other.shapes["0.K"] == (8, 4)


def test_norms_by_name():
    s = spec(
        norms=dict.fromkeys(["embedding", "positions", "K", "V", "O", "W1", "W2", "W_out"], (1, 2))
        | {"Q": (3, 4), "1.Q": (5, 6)}
    )
    assert s.norms["0.Q"] == (3, 4) and s.norms["1.Q"] == (5, 6) and s.norms["1.V"].fro == 2


@pytest.mark.parametrize("m", [1, 2, 7, 16])
def test_mask_statistics(m):
    causal, full = spec(seq_len=m, norms=(1, 1)), spec(seq_len=m, norms=(1, 1), mask="full")
    assert causal.mask_stats == (m * (m + 1) // 2, m, m) and full.mask_stats == (m * m, m, m)
    for s in (causal, full, *(spec(seq_len=m, norms=(1, 1), mask=("window", w)) for w in (1, 2, 3, 40))):
        M = s.mask_matrix
        assert s.mask_stats == (M.sum(), M.sum(1).max(), M.sum(0).max())
        again = spec(seq_len=m, norms=(1, 1), mask=M)
        assert again.mask_stats == s.mask_stats and again.window == s.window
    assert spec(seq_len=16, mask=("window", 3)).mask_stats == (45, 3, 3)
    assert (spec(seq_len=5).mask_matrix == np.tri(5, dtype=bool)).all()


def test_block_diagonal_mask():
    block = np.kron(np.eye(3), np.ones((2, 2)))
    assert spec(mask=block).mask_stats == (12, 2, 2) and spec(mask=block).window == 6
    assert spec(mask=np.tril(block)).window == 2


def test_ranges():
    assert spec().loss_range == pytest.approx(math.log(11) + 2)
    assert spec(b_x=3).loss_range == pytest.approx(math.log(11) + 6)
    s = spec(norm="rmsnorm", gain=2.0, rms_eps=1e-4, norms=dict.fromkeys(spec().norms, (1, 1)))
    assert s.row_bound == pytest.approx(2 * math.sqrt(8)) and s.norm_lipschitz == pytest.approx(200)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 5))
def test_random_norms_are_possible(seed, scale):
    s = DecoderSpec.random(vocab=5, dim=4, heads=2, ffn_dim=3, n_layers=1, seq_len=3, seed=seed, scale=scale)
    for name, (op, fro) in s.norms.items():
        assert 0 < op <= fro <= math.sqrt(min(s.shapes[name])) * op * (1 + 1e-9)
    assert (
        s.norms
        == DecoderSpec.random(vocab=5, dim=4, heads=2, ffn_dim=3, n_layers=1, seq_len=3, seed=seed, scale=scale).norms
    )


def test_resized():
    s = DecoderSpec.random(dim=16, heads=2, seq_len=8)
    wide = s.resized(dim=64, seq_len=32)
    assert wide.dim == 64 and wide.ffn_dim == 4 * s.ffn_dim and wide.seq_len == 32
    assert wide.norms["0.Q"].op == s.norms["0.Q"].op
    assert wide.norms["0.Q"].fro == pytest.approx(2 * s.norms["0.Q"].fro)
    assert wide.norms["positions"].fro == pytest.approx(2 * s.norms["positions"].fro)  # rank 8 -> 32
    assert s.resized().norms == s.norms
    for name in ("dim", "seq_len"):
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
            s.resized(**{name: 0})
    with pytest.raises(ValueError, match="fixes seq_len=6"):
        spec(mask=np.tri(6)).resized(seq_len=8)


@pytest.mark.parametrize(
    "changes",
    [{}, {"mask": ("window", 3)}, {"mask": np.tri(6)}, {"mask": "full", "gated": True, "kv_heads": 1, "notes": ("a",)}],
)
def test_save_and_load(tmp_path, changes):
    s = spec(**changes)
    s.save(tmp_path / "spec.json")
    json.loads((tmp_path / "spec.json").read_text())
    again = DecoderSpec.load(tmp_path / "spec.json")
    assert again.norms == s.norms and (again.mask_matrix == s.mask_matrix).all()
    for name in ("shapes", "notes", "window", "loss_range", "kv_heads"):
        assert getattr(again, name) == getattr(s, name)


@pytest.mark.parametrize("name", list(SIZES))
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_refused(name, value):
    least = 2 if name == "vocab" else 1  # of one symbol nothing is to be predicted
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least {least}, got {value}"):
        spec(**{name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads must divide dim"),
        ({"kv_heads": 3}, "kv_heads heads"),
        ({"norms": (3.0, 2.0)}, "norms of embedding: op=3 must be at most fro=2"),
        (
            {"norms": {**dict.fromkeys(spec().norms, (1, 2)), "1.W1": (1, 3)}},
            r"norms of 1.W1: fro=3 must be at most sqrt\(8\)",
        ),
        ({"norms": {**dict.fromkeys(spec().norms, (1, 2)), "0.K": (-1, 2)}}, "norms of 0.K"),
        ({"norms": {**dict.fromkeys(spec().norms, (1, 2)), "0.K": (1, math.nan)}}, "norms of 0.K"),
        ({"norms": {**dict.fromkeys(spec().norms, (1, 2)), "0.K": 1.0}}, "norms of 0.K"),
        ({"norms": {"Q": (1, 2)}}, "no entry for embedding"),
        ({"norms": {"R": (1, 2)}}, "'R', which is no matrix"),
        ({"mask": "triangle"}, "mask must be one of"),
        ({"mask": np.ones((6, 5))}, "mask must be"),
        ({"mask": np.full((6, 6), 2)}, "mask must be"),
        ({"mask": np.full((6, 6), math.nan)}, "mask must be"),
        ({"mask": np.diag([1, 1, 1, 0, 1, 1])}, "no 1 in row 3"),
        ({"mask": ("window", 0)}, "window must be an integer of at least 1"),
        ({"b_x": 0.0}, "b_x"),
        *(({name: "no"}, name) for name in ("pre_norm", "gated", "tied", "positions")),
        ({"norm": "layernorm"}, "norm must be one of"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        spec(**changes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace('"causal"', "[]"),
        lambda text: text.replace('"dim"', '"depth"'),
        lambda text: text.replace("[1.0, 2.0]", "[3.0, 2.0]"),
    ],
)
def test_half_written_files_are_named(tmp_path, damage):
    file = tmp_path / "spec.json"
    spec().save(file)
    file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=r"spec\.json is no DecoderSpec that save wrote"):
        DecoderSpec.load(file)


def test_random_norms_need_a_scale_and_a_seed():
    with pytest.raises(ValueError, match=r"scale must be in \[0, inf\), got -1"):
        DecoderSpec.random(scale=-1)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        DecoderSpec.random(seed=-1)


def test_checks_name_argument_and_value():
    assert check_integer(1e9, "n") == 10**9 and check_integer(np.int64(3), "n") == 3
    for value in (2.5, math.nan, math.inf, 0):
        with pytest.raises(ValueError, match=f"dim must be an integer of at least 1, got {value}"):
            check_integer(value, "dim")
    for value in ("8", True, None):
        with pytest.raises(TypeError, match="dim must be an integer"):
            check_integer(value, "dim")
    with pytest.raises(TypeError, match="tied must be True or False, got 'no'"):
        check_flag("no", "tied")
    for value in (10**400, -(10**5000)):  # more than a float, or than Python prints
        with pytest.raises(ValueError, match="dim must be an integer of at most 1e150, got one of"):
            check_integer(value, "dim")
    for value in (math.nan, 0, 1, -1.0):
        with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got"):
            check_number(value, "delta", 0, 1)
    with pytest.raises(TypeError, match="delta must be a number"):
        check_number("0.1", "delta", 0, 1)


def test_specs_are_frozen():
    s = spec(mask=np.tri(6))
    with pytest.raises(ValueError, match="read-only"):
        s.mask[0, 0] = False
    assert replace(s, mask="full").mask == "full"


def test_core_imports_no_torch():
    code = (
        "import sys, icml25.ntp_bounds as n; s = n.DecoderSpec.random(); n.bound(s, 10); n.MarkovChain([[.5, .5], [.1, .9]]);"
        "n.rademacher_finite([[0., 1.]]); assert not {'torch', 'transformers', 'pandas', 'benchopt'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_torch_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import icml25.ntp_bounds as n; n.measure_gap"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "measure_gap needs torch: pip install 'icml25-ntp-bounds[torch]'" in done.stderr
