"""Perplexity and passkeys against models whose answers are known."""

import math
from types import SimpleNamespace

import pytest
import torch

from icml25.fope import FopeConfig, convert_model, passkey_accuracy, passkey_prompts, perplexity_by_length


class Words:
    """A tokenizer of characters."""

    pad_token_id = 0

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": ([1] if add_special_tokens else []) + [ord(c) for c in text]}

    def decode(self, ids):
        return "".join(chr(i) for i in ids if i)


class Fixed(torch.nn.Module):
    """Logits that do not depend on the input, and a model that writes what ``answer`` says."""

    def __init__(self, logits=None, answer=None):
        super().__init__()
        self.anchor, self.logits, self.answer = torch.nn.Parameter(torch.zeros(1)), logits, answer
        self.generation_config = SimpleNamespace(pad_token_id=None)
        self.modes = []

    def forward(self, ids):
        self.modes.append(self.training)
        return self.logits.expand(*ids.shape, -1)

    def generate(self, ids, **settings):
        assert settings["do_sample"] is False and settings["attention_mask"].shape == ids.shape
        rows = [torch.tensor([ord(c) for c in self.answer(row).ljust(6, "\0")]) for row in ids]
        return torch.cat((ids, torch.stack(rows)), 1)


def hidden(row):
    text = Words().decode(row)
    at = text.index("The secret number is ") + len("The secret number is ")
    return text[at : at + 5]


def test_prompts():
    ids, keys = passkey_prompts(Words(), 500, 40, seed=3)
    assert ids.shape == (40, 500) and ids.dtype == torch.int64 and (ids[:, 0] == 1).all()
    depths = []
    for row, key in zip(ids, keys, strict=True):
        text = Words().decode(row)
        assert text.count(f"The secret number is {key}. Remember it: {key}") == 1 and len(key) == 5
        assert text.endswith("The secret number is")
        depths.append(text.index(key))
    assert max(depths) - min(depths) > 100 and len(set(keys)) > 30
    again, same = passkey_prompts(Words(), 500, 40, seed=3)
    assert torch.equal(again, ids) and same == keys
    assert not torch.equal(passkey_prompts(Words(), 500, 40, seed=4)[0], ids)


def test_shortest_prompt():
    with pytest.raises(
        ValueError, match=r"length must be at least (\d+) tokens to hold the passkey task, got 50"
    ) as info:
        passkey_prompts(Words(), 50, 1)
    least = int(str(info.value).split("at least ")[1].split()[0])
    assert passkey_prompts(Words(), least, 2)[0].shape == (2, least)
    with pytest.raises(ValueError, match="n must be at least 1"):
        passkey_prompts(Words(), 500, 0)


def test_accuracy_of_known_answers():
    right = passkey_accuracy(Fixed(answer=lambda row: " " + hidden(row)), Words(), [400, 500], 6, batch_size=4)
    assert right == {400: 1.0, 500: 1.0}
    assert passkey_accuracy(Fixed(answer=lambda row: " 1"), Words(), [400], 5) == {400: 0.0}
    numbers = iter(range(100))
    half = Fixed(answer=lambda row: hidden(row) if next(numbers) % 2 else "no")
    assert passkey_accuracy(half, Words(), [400], 6, batch_size=4) == {400: 0.5}


def test_accuracy_with_a_transformers_model(tiny):
    model = convert_model(tiny(vocab_size=128), FopeConfig(64)).train()
    found = passkey_accuracy(model, Words(), [330], 2)
    assert found[330] == 0.0 and model.training


def test_perplexity_of_known_logits():
    p = torch.tensor([0.5, 0.25, 0.25])
    model = Fixed(p.log()).train()
    ids = torch.tensor([0, 1, 0, 2, 0, 0, 1, 2, 2, 2])
    found = perplexity_by_length(model, ids, [2, 5, 10], batch_size=1)
    assert found[10] == pytest.approx(math.exp(-p[ids[1:]].log().mean()))
    assert found[2] == pytest.approx(math.exp(-p[ids[1::2]].log().mean()))
    assert found[5] == pytest.approx(math.exp(-p[ids[[1, 2, 3, 4, 6, 7, 8, 9]]].log().mean()))
    assert perplexity_by_length(model, ids, [5], last=1)[5] == pytest.approx(math.exp(-p[ids[[4, 9]]].log().mean()))
    assert not any(model.modes) and model.training


def test_perplexity_of_a_transformers_model(tiny):
    model = convert_model(tiny(), FopeConfig(64))
    ids = torch.randint(3, 97, (200,), generator=torch.Generator().manual_seed(0))
    found = perplexity_by_length(model, ids, [50, 200])
    with torch.no_grad():
        assert found[200] == pytest.approx(model(ids[None], labels=ids[None]).loss.exp().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("ids", "lengths", "settings", "error", "words"),
    [
        (torch.zeros(9, dtype=torch.long), [10], {}, ValueError, "ids holds 9 tokens, fewer than the length 10"),
        (torch.zeros(9, dtype=torch.long), [1], {}, ValueError, "lengths must be at least 2, got 1"),
        (torch.zeros(9), [2], {}, TypeError, "ids must be a 1-D tensor of whole numbers"),
        (torch.zeros(1, 9, dtype=torch.long), [2], {}, TypeError, "1-D"),
        (torch.zeros(9, dtype=torch.long), [2], {"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        (torch.zeros(9, dtype=torch.long), [2], {"last": 0}, ValueError, "last must be at least 1"),
    ],
)
def test_bad_input_of_perplexity(ids, lengths, settings, error, words):
    with pytest.raises(error, match=words):
        perplexity_by_length(Fixed(torch.zeros(3)), ids, lengths, **settings)


def test_bad_input_of_passkeys():
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        passkey_accuracy(Fixed(), Words(), [400], 2, batch_size=0)
    with pytest.raises(ValueError, match="n must be at least 1"):
        passkey_accuracy(Fixed(), Words(), [400], 0)


@pytest.mark.parametrize("lengths", [64, 64.0, [64.0], "64"])
def test_lengths_must_be_several_whole_numbers(lengths):
    with pytest.raises(TypeError, match="lengths must be several whole numbers"):
        perplexity_by_length(Fixed(torch.zeros(5)), torch.zeros(100, dtype=torch.long), lengths)


def test_a_hopeless_model_has_infinite_perplexity():
    logits = torch.tensor([0.0, 1e6])
    assert perplexity_by_length(Fixed(logits), torch.zeros(20, dtype=torch.long), [10]) == {10: math.inf}


def test_ids_outside_the_vocabulary(tiny):
    for bad in (-1, 97):
        with pytest.raises(ValueError, match="ids must be at least 0 and below the vocabulary's 97"):
            perplexity_by_length(tiny(), torch.full((20,), bad), [10])
