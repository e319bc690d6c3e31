"""A language model as a table, a tiny Llama, and Algorithm 1 as it is written."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile(
    "icml25", deadline=None
)  # the first call of a tensor function may take long on a busy machine
settings.load_profile("icml25")


@dataclass
class LiteralBiMark:
    """Algorithms 1 and 2 with loops, sets and a separate reading of the randomness, for one sequence."""

    key: bytes
    message: str
    members: np.ndarray
    window: int = 2
    base_scale: float = 1.0
    used: set = field(default_factory=set)

    def randomness(self, context):
        secret = hashlib.blake2b(self.key, person=b"bimark-key").digest()
        packed = b"".join(int(token).to_bytes(8, "little") for token in context)
        digest = hashlib.blake2b(packed, key=secret, person=b"bimark-ctx").digest()
        pads = [digest[8 + i // 8] >> (i % 8) & 1 for i in range(len(self.members))]
        return int.from_bytes(digest[:8], "little") % len(self.message), pads

    def step(self, ids, p):
        """The distribution to sample from after the given ids."""
        if len(ids) < self.window:
            return p
        context = tuple(ids[-self.window :])
        if context in self.used:
            return p
        self.used.add(context)
        position, pads = self.randomness(context)
        for v1, pad in zip(self.members, pads, strict=True):
            e = int(self.message[position]) ^ pad
            p1 = p[v1].sum()
            if p1 <= 1e-12 or p1 >= 1 - 1e-12:
                continue
            d1 = min(self.base_scale, (1 - p1) / p1)
            d0 = min(d1 * p1 / (1 - p1), 1)
            p = np.where(v1, p * (1 + d1 if e else 1 - d1), p * (1 - d0 if e else 1 + d0))
        return p / p.sum()

    def votes(self, ids):
        votes, seen = np.zeros((len(self.message), 2), dtype=int), set()
        for t in range(self.window, len(ids)):
            context = tuple(ids[t - self.window : t])
            if context in seen:
                continue
            seen.add(context)
            position, pads = self.randomness(context)
            for v1, pad in zip(self.members, pads, strict=True):
                votes[position, int(v1[ids[t]]) ^ pad] += 1
        return votes


class TableLM:
    """Logits are rows of a table, picked by the last token and the one before."""

    def __init__(self, vocab=200, rows=64, scale=2.0, seed=0):
        rng = np.random.default_rng(seed)
        self.table = torch.from_numpy((rng.standard_normal((rows, vocab)) * scale).astype(np.float32))

    def logits(self, ids):
        return self.table[(ids[:, -1] * 31 + ids[:, -2] * 17) % len(self.table)]

    def sample(self, processor, prompts, tokens, seed=0):
        generator = torch.Generator().manual_seed(seed)
        ids = prompts
        for _ in range(tokens):
            scores = self.logits(ids)
            scores = scores if processor is None else processor(ids, scores)
            new = torch.multinomial(scores.softmax(-1), 1, generator=generator)
            ids = torch.cat([ids, new], 1)
        return ids[:, prompts.shape[1] :]


@pytest.fixture(scope="session")
def table_lm():
    return TableLM()


@pytest.fixture(scope="session")
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()
