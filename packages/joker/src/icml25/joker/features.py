"""Random Fourier features: psi(x) = sqrt(2/M) cos(W^T x + b), with E psi(x)^T psi(z) = k(x, z)."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class RandomFeatures:
    """The feature map of a shift-invariant kernel: frequencies ``W`` (d, M) and phases ``b`` (M,)."""

    W: Float[Tensor, "d M"]
    b: Float[Tensor, " M"]

    @classmethod
    def draw(
        cls, kernel: str, gamma: float | int, d: int, n_features: int, generator: torch.Generator
    ) -> RandomFeatures:
        """Draw the frequencies of a kernel in float64.

        Args:
            kernel: "rbf", "laplace" or "student".
            gamma: width of the kernel.
            d: number of input columns.
            n_features: number of features M.
            generator: source of randomness, on the CPU.
        """
        W = torch.empty(d, n_features, dtype=torch.float64)
        if kernel == "laplace":
            W.cauchy_(0, gamma, generator=generator)
        else:
            W.normal_(0, sqrt(2 * gamma), generator=generator)
        if kernel == "student":  # a Gaussian kernel of random width, s ~ Exp(1)
            W *= torch.empty(n_features, dtype=torch.float64).exponential_(generator=generator).sqrt()
        b = torch.empty(n_features, dtype=torch.float64).uniform_(0, 2 * pi, generator=generator)
        return cls(W, b)

    def to(self, device: torch.device, dtype: torch.dtype) -> RandomFeatures:
        """Return the map on another device and dtype."""
        return RandomFeatures(self.W.to(device, dtype), self.b.to(device, dtype))

    @property
    def n_features(self) -> int:
        """Number of features M."""
        return len(self.b)

    def __call__(self, x: Tensor, columns: slice = slice(None), out: Tensor | None = None) -> Tensor:
        """Return psi(x)[:, columns] for dense or sparse rows x (rows, d), written into ``out`` when given."""
        W, b = self.W[:, columns], self.b[columns]
        psi = torch.sparse.mm(x, W).add_(b) if x.is_sparse else torch.addmm(b, x, W, out=out)
        return psi.cos_().mul_(sqrt(2 / self.n_features))
