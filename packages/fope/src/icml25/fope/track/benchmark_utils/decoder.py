"""A small Llama-like decoder whose positions are a part of its own; training, and reading at any length."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, scaled_dot_product_attention, silu

SIZES = {  # width, heads, layers, hidden width of the MLP, learning rate
    "smoke": (32, 1, 1, 64, 3e-3),
    "quick": (128, 4, 2, 128, 4e-3),
    "narrow": (64, 2, 2, 128, 4e-3),
    "paper": (512, 8, 8, 2048, 6e-4),  # the paper's 60M model
}


class Linear(nn.Linear):
    """A linear layer of (b, t, c), written as a convolution of width 1: on many CPUs in half the time, with the same values."""

    def forward(self, x):
        return conv2d(x.mT.unsqueeze(2), self.weight[..., None, None]).squeeze(2).mT


class Block(nn.Module):
    """Attention and SwiGLU, each behind an RMSNorm."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.qkv, self.out = Linear(width, 3 * width, bias=False), Linear(width, width, bias=False)
        self.gate_up, self.down = Linear(width, 2 * hidden, bias=False), Linear(hidden, width, bias=False)

    def forward(self, x, rotate, bias):
        """``rotate`` acts on queries and keys (b, h, t, d), ``bias`` (h, t, t) on the scores; either may be None."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        y = scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(silu(gate) * up)


class Decoder(nn.Module):
    """``position(tokens)`` gives the rotation and the bias of a sequence of that many tokens.

    Input and output share their embedding (the paper's models don't): a small model learns to copy a key much sooner.
    """

    def __init__(self, vocabulary, position, size):
        super().__init__()
        width, heads, layers, hidden, _ = SIZES[size]
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)  # it serves as the output, too
        self.position = position

    def forward(self, tokens):
        """Logits (b, t, vocabulary) of tokens (b, t)."""
        x = self.embedding(tokens)
        rotate, bias = self.position(tokens.shape[1])
        for block in self.blocks:
            x = block(x, rotate, bias)
        return self.norm(x) @ self.embedding.weight.T


def train(position, arrays, params):
    """One pass over ``train`` (n, L) in its order: AdamW as in the paper, warm-up, cosine to a tenth."""
    size = params["size"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(params["seed"])
        model = Decoder(params["vocabulary"], position, size).to(device)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=SIZES[size][-1], betas=(0.9, 0.95), fused=True)
    batches = torch.from_numpy(arrays["train"].astype(np.int64)).split(params["batch_size"])
    warm_up = max(1, len(batches) // 20)

    def rate(step):
        return min((step + 1) / warm_up, 0.55 + 0.45 * math.cos(math.pi * step / len(batches)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for batch in batches:
        tokens = batch.to(device)
        logits = model(tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def read(model, arrays):
    """For each ``test_<length>`` (n, length): the loss of each next token, and the tokens found likeliest at the last two."""
    device, out = next(model.parameters()).device, {}
    for name, tokens in arrays.items():
        if not name.startswith("test_"):
            continue
        losses, answers = [], []
        rows = max(1, 2**13 // tokens.shape[1])
        for batch in torch.from_numpy(tokens.astype(np.int64)).split(rows):
            batch = batch.to(device)
            logits = model(batch[:, :-1])
            losses.append(cross_entropy(logits.mT, batch[:, 1:], reduction="none").cpu())
            answers.append(logits[:, -2:].argmax(-1).cpu())
        length = name.removeprefix("test_")
        out |= {f"loss_{length}": torch.cat(losses).numpy(), f"answer_{length}": torch.cat(answers).numpy()}
    return out


def train_and_read(position, arrays, params):
    """Train with these positions, then read."""
    return read(train(position, arrays, params), arrays)


def warm_up():
    """Load what the clock should not see."""
    arrays = {"train": np.zeros((2, 8), dtype=np.uint8), "test_8": np.zeros((1, 8), dtype=np.uint8)}
    params = {"size": "smoke", "seed": 0, "vocabulary": 2, "batch_size": 1}
    train_and_read(lambda tokens: (None, None), arrays, params)
