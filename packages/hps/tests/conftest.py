"""A tiny Llama with a tokenizer of words, and a copy task with scored answers."""

import random

import pytest
from hypothesis import settings

settings.register_profile("icml25", deadline=None)  # a first call may take long on a busy machine
settings.load_profile("icml25")

WORDS = [f"w{i}" for i in range(56)]


@pytest.fixture(scope="session")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<eos>", "<unk>", "<user>", "<assistant>", "!", "?", ":"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    fast.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <eos> {% endfor %}"
        "{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    return fast


@pytest.fixture(scope="session")
def make_llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(seed=0, dtype=torch.float32):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
            initializer_range=0.3,
            tie_word_embeddings=False,
        )
        return LlamaForCausalLM(config).to(dtype)

    return make


@pytest.fixture(scope="session")
def copy_task():
    """Rows whose answers repeat more or fewer words of the prompt, in lists of 2 to 5; the score counts them."""

    def rows(count, seed=0, sizes=(2, 3, 4, 5)):
        from datasets import Dataset

        rng = random.Random(seed)
        columns = {"prompt": [], "responses": [], "scores": []}
        for _ in range(count):
            prompt = rng.sample(WORDS, 4)
            right = rng.sample(range(5), rng.choice(sizes))
            answers = [prompt[:k] + rng.choices(WORDS, k=4 - k) for k in right]
            columns["prompt"].append(" ".join(prompt))
            columns["responses"].append(["".join(f" {word}" for word in answer) for answer in answers])
            columns["scores"].append([float(k) for k in right])
        return Dataset.from_dict(columns)

    return rows
