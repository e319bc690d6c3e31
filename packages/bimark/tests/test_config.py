"""The configuration: forms of key and message, bad values, and where the secret may not go."""

import copy
import json
import stat

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from icml25.bimark import BiMarkConfig, BiMarkDetector, BiMarkLogitsProcessor

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("message", "bits", "text"),
    [
        ("1011", None, "1011"),
        ([1, 0, 1], None, "101"),
        ((True, False), None, "10"),
        (np.array([0, 1, 1]), None, "011"),
        (5, 8, "00000101"),
        (np.int64(3), 2, "11"),
        ("01", 2, "01"),
        ("0" * 1024, None, "0" * 1024),
    ],
    ids=["text", "list", "bools", "array", "int", "numpy-int", "length", "longest"],
)
def test_forms_of_a_message(message, bits, text):
    config = BiMarkConfig(SECRET, message, message_bits=bits)
    assert (config.message, config.message_bits) == (text, len(text))


@pytest.mark.parametrize(
    ("key", "same"), [("abc", b"abc"), (0x6162, b"ab"), ("é", "é".encode())], ids=["text", "integer", "utf8"]
)
def test_forms_of_a_key(key, same):
    assert BiMarkConfig(key) == BiMarkConfig(same)
    assert BiMarkConfig(key).key_bytes == same


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"message": "10a1"}, ValueError, r"message must be 1 to 1024 bits.*'10a1'"),
        ({"message": ""}, ValueError, "message must be 1 to 1024 bits"),
        ({"message": []}, ValueError, "message must be 1 to 1024 bits"),
        ({"message": "1" * 1025}, ValueError, "of 1025 characters"),
        ({"message": [0, 2]}, ValueError, "message must be"),
        ({"message": 5}, ValueError, "message_bits is needed"),
        ({"message": 5, "message_bits": 2}, ValueError, "at most message_bits=2 bits"),
        ({"message": -1, "message_bits": 2}, ValueError, "message is -1"),
        ({"message": "101", "message_bits": 4}, ValueError, "message has 3 bits and message_bits is 4"),
        ({"message": None}, ValueError, "message_bits is needed"),
        ({"message": 1.5}, TypeError, "message"),
        ({"message": True}, TypeError, "message"),
        ({"n_layers": 0}, ValueError, r"n_layers must be in 1\.\.448, got 0"),
        ({"n_layers": 449}, ValueError, r"n_layers must be in 1\.\.448, got 449"),
        ({"n_layers": 2.0}, TypeError, "n_layers"),
        ({"base_scale": 0}, ValueError, r"base_scale must be in \(0, 1\], got 0"),
        ({"base_scale": 1.1}, ValueError, r"base_scale must be in \(0, 1\]"),
        ({"base_scale": float("nan")}, ValueError, r"base_scale must be in \(0, 1\]"),
        ({"base_scale": "1"}, TypeError, "base_scale"),
        ({"window": 0}, ValueError, "window must be at least 1, got 0"),
        ({"key": ""}, ValueError, "key is empty"),
        ({"key": b""}, ValueError, "key is empty"),
        ({"key": -1}, ValueError, "key must not be negative"),
        ({"key": 1.0}, TypeError, "key"),
    ],
    ids=str,
)
def test_bad_values(change, error, match):
    with pytest.raises(error, match=match):
        BiMarkConfig(**{"key": SECRET} | change)


def test_the_key_is_not_shown_or_saved_unless_asked_for(tmp_path):
    config = BiMarkConfig(SECRET, "1011")
    digits = SECRET.encode().hex()
    shown = [repr(config), str(config), config.to_json_string(), json.dumps(config.to_dict()), str(dict(config))]
    generation = GenerationConfig(do_sample=True, watermarking_config=config)
    generation.save_pretrained(tmp_path)
    shown += [(tmp_path / "generation_config.json").read_text(), repr(generation)]
    assert all(digits not in text and SECRET not in text for text in shown)
    assert digits in json.dumps(config.to_dict(include_key=True))


def test_attached_to_a_model_that_is_saved(llama, tmp_path):
    """It works, and is left out of what is saved but for its settings; transformers can't read those, and says why."""
    from transformers import LlamaForCausalLM

    model = copy.deepcopy(llama)
    model.generation_config.do_sample = True
    model.generation_config.watermarking_config = BiMarkConfig(SECRET, "1011")
    out = model.generate(torch.tensor([[1, 5, 7]]), max_new_tokens=80, top_k=50, pad_token_id=0)
    assert BiMarkDetector(BiMarkConfig(SECRET, "1011"), 300).detect(out[0, 3:])
    model.save_pretrained(tmp_path)
    why = "BiMarkConfig: transformers cannot load it; delete watermarking_config from generation_config.json"
    with pytest.raises(TypeError, match=why):
        GenerationConfig.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match=why):
        LlamaForCausalLM.from_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path, watermarking_config=None).do_sample
    LlamaForCausalLM.from_pretrained(tmp_path, generation_config=GenerationConfig())
    fields = json.loads((tmp_path / "generation_config.json").read_text())["watermarking_config"]
    assert BiMarkConfig.from_dict(fields, key=SECRET) == BiMarkConfig(SECRET, "1011")


def test_json_round_trip(tmp_path):
    config = BiMarkConfig(SECRET, "1011", n_layers=3, base_scale=0.5, window=4, pad_token_id=7)
    path = tmp_path / "watermark.json"
    config.to_json_file(path, include_key=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert BiMarkConfig.from_json_file(path) == config
    config.to_json_file(path)
    assert BiMarkConfig.from_json_file(path, key=SECRET) == config
    with pytest.raises(ValueError, match="key is not among the fields"):
        BiMarkConfig.from_json_file(path)
    with pytest.raises(TypeError, match="unknown"):
        BiMarkConfig.from_dict({"key": SECRET, "unknown": 1})


def test_public_leaves_the_message_out():
    config = BiMarkConfig(SECRET, "1011", n_layers=3)
    public = config.public()
    assert public.message is None and public.message_bits == 4 and public.n_layers == 3
    assert public.key == config.key
    with pytest.raises(ValueError, match="no message to embed"):
        public.construct_processor(100, "cpu")
    assert BiMarkDetector(public, 100).detect([]).message == "xxxx"


def test_equality_copies_and_hash():
    config = BiMarkConfig(SECRET, "1011")
    assert config == copy.deepcopy(config) and hash(config) == hash(copy.deepcopy(config))
    assert config != BiMarkConfig(SECRET, "1010") and config != BiMarkConfig("other", "1011")
    assert config != "1011"


def test_a_field_changed_later_is_validated():
    config = BiMarkConfig(SECRET, "1011")
    config.update(n_layers=0)
    with pytest.raises(ValueError, match="n_layers"):
        GenerationConfig(do_sample=True, watermarking_config=config)


@pytest.mark.parametrize(
    "change",
    [{"message": "2222"}, {"base_scale": 3}, {"n_layers": 1000}, {"window": 0}, {"key": "xyz"}, {"pad_token_id": -5}],
    ids=str,
)
def test_both_constructors_validate(change):
    config = BiMarkConfig(SECRET, "1011")
    config.update(**change)
    for build in (BiMarkDetector, BiMarkLogitsProcessor):
        with pytest.raises(ValueError, match=next(iter(change))):
            build(config, 300)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"message": 1, "message_bits": "3"}, TypeError),
        ({"message": 1, "message_bits": 3.0}, TypeError),
        ({"message": 1, "message_bits": True}, TypeError),
        ({"message": {"0": "1"}}, TypeError),
        ({"pad_token_id": "x"}, TypeError),
        ({"pad_token_id": [1, 2]}, TypeError),
        ({"key": "\ud800"}, ValueError),
    ],
    ids=str,
)
def test_worse_values(change, error):
    with pytest.raises(error, match="|".join(change)):
        BiMarkConfig(**{"key": SECRET} | change)


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ('{"key_hex": "61", "mess', ValueError, "wm.json is damaged"),
        ("", ValueError, "wm.json is damaged"),
        ("\xff", ValueError, "wm.json is damaged"),
        ("[1, 2]", ValueError, "wm.json holds list"),
        ("null", ValueError, "wm.json holds NoneType"),
        ('{"key_hex": 5}', ValueError, "key_hex must be hexadecimal"),
        ('{"key_hex": "zz"}', ValueError, "key_hex must be hexadecimal"),
        ('{"key": "a", "layers": 3}', TypeError, "unknown field 'layers'"),
    ],
    ids=str,
)
def test_damaged_files(tmp_path, text, error, match):
    path = tmp_path / "wm.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(error, match=match):
        BiMarkConfig.from_json_file(path)
    with pytest.raises(Exception, match=r"config_dict is list|Type-check"):
        BiMarkConfig.from_dict([("key", "a")])


def test_numpy_numbers_become_plain(tmp_path):
    numbers = {
        "n_layers": np.int64(3),
        "base_scale": np.float32(0.5),
        "message_bits": np.int32(4),
        "window": np.int8(2),
    }
    config = BiMarkConfig(np.int64(7), 5, **numbers)
    assert config == BiMarkConfig(7, "0101", 3, 0.5) and BiMarkConfig(bytearray(b"a")) == BiMarkConfig("a")
    path = tmp_path / "open.json"
    path.write_text("{}")
    path.chmod(0o644)
    config.to_json_file(path, include_key=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert BiMarkConfig.from_json_file(path) == config
