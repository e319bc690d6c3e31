"""The search for blocks with 16-bit activations."""

import copy
import itertools

import pytest
import torch
from conftest import logits, make_mamba2

from icml25.quamba2 import QuambaConfig, QuambaForCausalLM, quantize, search_mixed


@pytest.fixture(scope="module")
def calib():
    return torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def small(calib):
    torch.manual_seed(0)
    return quantize(make_mamba2(num_hidden_layers=5), [calib], QuambaConfig("w4a8"))


def test_search_finds_the_best_mask(small):
    values = [0.3, 5.0, 0.2, 4.0, 1.0]
    scored = []

    def score(model):
        mask = [block.mixer.a16 for block in model.layers]
        scored.append(tuple(mask))
        return sum(v for v, a16 in zip(values, mask, strict=True) if a16)

    seen = []
    best = search_mixed(small, score, 2, population=8, generations=4, callback=lambda *args: seen.append(args))
    assert best == (False, True, False, True, False)
    assert len(scored) == len(set(scored)) <= len(list(itertools.combinations(range(5), 2)))
    assert all(sum(mask) == 2 for mask in scored)
    assert [s[0] for s in seen] == [0, 1, 2, 3, 4] and seen[-1][1:] == (best, 9.0)
    assert small.config.a16_blocks == [1, 3] and [block.mixer.a16 for block in small.layers] == list(best)
    assert best == search_mixed(small, score, 2, population=8, generations=4)


def test_wide_blocks_use_no_activation_scales(small, calib):
    outputs = {}
    spoilt = copy.deepcopy(small)
    for block in spoilt.layers:
        for name in ("scale_conv_x", "scale_out", "scale_in"):
            getattr(block.mixer, name).mul_(30)
    for wide in (False, True):
        for model in (small, spoilt):
            model.set_a16_blocks([wide] * 5)
        outputs[wide] = (logits(small, calib), logits(spoilt, calib))
    assert torch.equal(*outputs[True])
    assert (outputs[False][0] - outputs[False][1]).norm() > 0.2 * outputs[False][0].norm()
    assert 0 < (outputs[True][0] - outputs[False][0]).norm() < 0.1 * outputs[True][0].norm()


def test_mask_is_saved(small, calib, tmp_path):
    small.set_a16_blocks([0, 1, 0, 0, 1])
    small.save_pretrained(tmp_path)
    again = QuambaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(again, calib), logits(small, calib))
    assert [block.mixer.a16 for block in again.layers] == [False, True, False, False, True]
    text = again.generate(calib[:, :4], max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert text.shape == (2, 7)
    cache = again(calib).cache
    assert [s.dtype for s in cache.state] == [torch.int8, torch.float32, torch.int8, torch.int8, torch.float32]
    assert again.footprint_states(2)["total"] == cache.nbytes


def test_the_mask_is_part_of_the_fingerprint(small):
    small.set_a16_blocks([0, 1, 0, 0, 1])
    one = small.config.fingerprint()
    small.set_a16_blocks([1, 0, 0, 0, 1])
    assert small.config.fingerprint() != one
    assert bytes(small.fingerprint.tolist()) == small.config.fingerprint()


def test_crossover_mixes_two_parents():
    """A mutation is one swap away from a parent; only a child of two parents can be farther from every one."""

    class Model:
        layers = range(24)

        def set_a16_blocks(self, mask):
            self.mask = mask

    seen = []

    def score(model):
        seen.append({i for i, flag in enumerate(model.mask) if flag})
        return float(sum(model.mask[:12]))

    search_mixed(Model(), score, 12, population=16, generations=1, seed=1)
    start, children = seen[:16], seen[16:]
    assert max(min(len(child - parent) for parent in start) for child in children) > 1


def test_bad_input(small, calib):
    with pytest.raises(ValueError, match=r"n_a16 must be in 0\.\.5"):
        search_mixed(small, lambda model: 0.0, 6)
    with pytest.raises((ValueError, TypeError), match="n_a16"):
        search_mixed(small, lambda model: 0.0, 1.5)
    with pytest.raises(TypeError, match="Mamba2ForCausalLM"):
        search_mixed(make_mamba2(), lambda model: 0.0, 1)
    with pytest.raises(ValueError, match="population"):
        search_mixed(small, lambda model: 0.0, 2, population=3)
    with pytest.raises(ValueError, match="finite"):
        search_mixed(small, lambda model: float("nan"), 2)
    with pytest.raises(ValueError, match="one value per block"):
        small.set_a16_blocks([True])
    torch.manual_seed(0)
    other = quantize(make_mamba2(), [calib])
    with pytest.raises(ValueError, match="mode 'w4a8' only, this model is 'w8a8'"):
        other.set_a16_blocks([0, 1])


def test_only_the_better_half_has_children():
    class Model:
        layers = range(24)

        def set_a16_blocks(self, mask):
            self.mask = mask

    seen = []

    def score(model):
        chosen = {i for i, flag in enumerate(model.mask) if flag}
        seen.append((sum(model.mask[:12]) + min(chosen) / 100, chosen))
        return seen[-1][0]

    search_mixed(Model(), score, 12, population=16, generations=1, seed=1)
    best = [mask for _, mask in sorted(seen[:16], key=lambda item: -item[0])[:8]]
    for _, child in seen[16:]:
        swapped = any(len(child - parent) == 1 for parent in best)
        assert swapped or any(child <= one | other for one, other in itertools.combinations(best, 2))
