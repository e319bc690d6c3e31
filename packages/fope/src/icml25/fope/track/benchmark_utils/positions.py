"""Positions of the baselines. Each module returns, for a number of tokens, a rotation of (b, h, t, d) and a bias (h, t, t)."""

import math

import torch
from torch import nn


def distance(tokens, device):
    """Distance n - m of query n and key m, (t, t), infinite for keys to come."""
    n = torch.arange(tokens, device=device, dtype=torch.float32)
    return (n[:, None] - n).masked_fill(n[:, None] < n, math.inf)


class NoPE(nn.Module):
    """No position at all: causality alone tells order."""

    def forward(self, tokens):
        return None, None


class RoPE(nn.Module):
    """Rotary embedding; beyond the training length read as it is, by position interpolation or by YaRN."""

    def __init__(self, dim, length, reading="plain"):
        super().__init__()
        self.length, self.reading = length, reading  # the latter may be changed between readings
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, dim, 2) / dim))

    def forward(self, tokens):
        scale, magnitude, frequencies = max((tokens + 1) / self.length, 1.0), 1.0, self.frequencies
        if scale > 1 and self.reading == "interpolation":
            frequencies = frequencies / scale
        elif scale > 1 and self.reading == "yarn":
            from icml25.fope import yarn_frequencies

            frequencies = yarn_frequencies(frequencies, 10000.0, scale=scale, original_length=self.length)
            magnitude = 0.1 * math.log(scale) + 1
        phase = torch.arange(tokens, device=frequencies.device)[:, None] * frequencies
        c, s = phase.cos().float() * magnitude, phase.sin().float() * magnitude

        def rotate(x):
            first, second = x.chunk(2, -1)
            return torch.cat((first * c - second * s, second * c + first * s), -1)

        return rotate, None


class AlignedRoPE(RoPE):
    """RoPE-A of the paper's toy study: every frequency moved to the nearest that finishes its cycles in L."""

    def __init__(self, dim, length):
        super().__init__(dim, length)
        self.frequencies = 2 * math.pi / length * (self.frequencies * length / (2 * math.pi)).round().clamp(min=1)


class ALiBi(nn.Module):
    """A penalty linear in distance, with a slope per head (Press et al., 2022)."""

    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slopes", 2.0 ** (-8 * torch.arange(1, heads + 1) / heads))

    def forward(self, tokens):
        return None, -self.slopes[:, None, None] * distance(tokens, self.slopes.device)


class Kerple(nn.Module):
    """KERPLE's logarithmic kernel, -r1 log(1 + r2 distance), with r1, r2 > 0 learned per head (Chi et al., 2022)."""

    def __init__(self, heads):
        super().__init__()
        self.log_r = nn.Parameter(torch.zeros(2, heads))

    def forward(self, tokens):
        r1, r2 = self.log_r.exp()[..., None, None]
        away = distance(tokens, self.log_r.device)
        bias = -r1 * torch.log1p(r2 * away.nan_to_num(posinf=0.0))
        return None, bias.masked_fill(away.isinf(), -math.inf)


class Fire(nn.Module):
    """FIRE: an MLP of log(c distance + 1) / log(c max(n, threshold) + 1), c and threshold learned (Li et al., 2024)."""

    def __init__(self, heads, length):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, heads))
        self.c, self.threshold = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(length / 2.0))

    def forward(self, tokens):
        away = distance(tokens, self.c.device)
        n = torch.maximum(torch.arange(tokens, device=self.c.device)[:, None], self.threshold.abs())
        progress = torch.log1p(self.c.abs() * away.nan_to_num(posinf=0.0)) / torch.log1p(self.c.abs() * n).clamp(
            min=1e-6
        )
        return None, self.mlp(progress[..., None]).permute(2, 0, 1).masked_fill(away.isinf(), -math.inf)
