"""Settings: what is refused, and the ablations."""

import copy
import json
import pickle

import numpy as np
import pytest

from icml25.fope import FopeConfig, FourierPositionEmbedding, ablation

YARN = {"scale": 16, "original_length": 512}


# Wrong types are named by the annotation, too, where annotations are checked: only the name is compared.
@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"max_train_length": 0}, ValueError, "max_train_length must be at least 1, got 0"),
        ({"max_train_length": 512.0}, TypeError, "max_train_length"),
        ({"max_train_length": True}, TypeError, "max_train_length"),
        ({"sigma": -0.1}, ValueError, "sigma must be finite and at least 0, got -0.1"),
        ({"sigma": float("nan")}, ValueError, "sigma"),
        ({"sigma": "0.3"}, TypeError, "sigma"),
        ({"floor_ratio": -1.0}, ValueError, "floor_ratio"),
        ({"theta": 1.0}, ValueError, "theta must be finite and above 1"),
        ({"theta": float("inf")}, ValueError, "theta"),
        ({"zero_sin": float("nan")}, ValueError, "zero_sin"),
        ({"n_freq_dim": 33}, ValueError, "n_freq_dim must be even"),
        ({"n_freq_dim": 64.0}, TypeError, "n_freq_dim"),
        ({"clip_floor": 1}, TypeError, "clip_floor"),
        ({"main_frequency": "first"}, ValueError, "main_frequency must be one of"),
        ({"init_scale": "xavier"}, ValueError, "init_scale must be one of"),
        ({"max_series_pairs": "d/2"}, ValueError, "max_series_pairs must be 'd/4'"),
        ({"max_series_pairs": 0}, ValueError, "max_series_pairs"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 2**70}, ValueError, "seed must be below 2\\^63"),
        ({"seed": "1"}, TypeError, "seed"),
        ({"sigma": float("inf")}, ValueError, "sigma"),
        ({"yarn": 16}, TypeError, "yarn"),
        ({"yarn": {"scale": 16}}, ValueError, "yarn needs original_length"),
        ({"yarn": {**YARN, "beta": 1}}, ValueError, "yarn has unknown keys"),
        ({"yarn": {**YARN, "scale": 0.5}}, ValueError, "scale"),
        ({"yarn": {**YARN, "beta_fast": 1.0}}, ValueError, "beta_fast must exceed beta_slow"),
    ],
)
def test_bad_settings(settings, error, words):
    with pytest.raises(error, match=words):
        FopeConfig(**({"max_train_length": 512} | settings))


def test_settings_survive_json():
    config = FopeConfig(512, sigma=0.4, yarn=YARN, max_series_pairs=None, seed=3)
    assert FopeConfig(**json.loads(json.dumps(config.to_dict()))) == config
    assert FopeConfig(**json.loads(json.dumps(config.to_dict()))) != FopeConfig(512, sigma=0.4)


@pytest.mark.parametrize(
    ("name", "frequencies", "pairs"), [("rope", 32, 32), ("clip", 16, 16), ("series", 32, 32), ("fope", 16, 16)]
)
def test_ablations(name, frequencies, pairs):
    embedding = FourierPositionEmbedding(64, 2, ablation(name, 512))
    assert embedding.cos_coefficients.shape == (2, frequencies, pairs)
    noisy = (embedding.cos_coefficients != embedding.cos_coefficients.round()).any()
    assert noisy == (name in ("series", "fope"))


def test_ablation_overrides_and_refusal():
    assert ablation("fope", 512, sigma=0.6).sigma == 0.6
    assert ablation("rope", 512, clip_floor=True).clip_floor
    with pytest.raises(ValueError, match="name must be one of rope, clip, series, fope, got 'FoPE'"):
        ablation("FoPE", 512)


def test_settings_cannot_be_changed_and_can_be_hashed_copied_and_pickled():
    yarn = dict(YARN)
    config = FopeConfig(512, yarn=yarn)
    yarn["scale"] = 2
    assert config.yarn["scale"] == 16
    with pytest.raises(TypeError):
        config.yarn["scale"] = 2
    assert hash(config) == hash(FopeConfig(512, yarn=YARN)) and len({config, FopeConfig(512)}) == 2
    assert copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config))


def test_whole_numbers_of_numpy():
    config = FopeConfig(np.int64(512), seed=np.int32(3))
    assert config == FopeConfig(512, seed=3) and type(config.max_train_length) is int
