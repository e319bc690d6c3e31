"""Shift-invariant kernels, their matrices and the width rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

Kernel = Callable[[Tensor, Tensor], Tensor]


def squared_distances(x: Float[Tensor, "n d"], z: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """Return ||x_i - z_j||^2 by one matrix product; subtract a common mean from x and z first to keep the digits."""
    d2 = torch.addmm(z.square().sum(1)[None], x, z.T, alpha=-2)
    return d2.add_(x.square().sum(1, keepdim=True)).clamp_min_(0)


def rbf(x: Float[Tensor, "n d"], z: Float[Tensor, "m d"], gamma: float | int) -> Float[Tensor, "n m"]:
    """Return exp(-gamma ||x - z||^2)."""
    return squared_distances(x, z).mul_(-gamma).exp_()


def laplace(x: Float[Tensor, "n d"], z: Float[Tensor, "m d"], gamma: float | int) -> Float[Tensor, "n m"]:
    """Return exp(-gamma ||x - z||_1)."""
    return torch.cdist(x, z, p=1.0).mul_(-gamma).exp_()


def student(x: Float[Tensor, "n d"], z: Float[Tensor, "m d"], gamma: float | int) -> Float[Tensor, "n m"]:
    """Return 1 / (1 + gamma ||x - z||^2)."""
    return squared_distances(x, z).mul_(gamma).add_(1).reciprocal_()


KERNELS: dict[str, Callable[..., Tensor]] = {"rbf": rbf, "laplace": laplace, "student": student}


def kernel_function(kernel: str | Kernel, gamma: float | int) -> Kernel:
    """Return ``kernel(x, z)`` of a named kernel at width ``gamma``, or the callable itself."""
    return partial(KERNELS[kernel], gamma=gamma) if isinstance(kernel, str) else kernel


def mean_sqdist_gamma(x: Float[Tensor, "n d"]) -> float:
    """Return 1 / mean ||x_i - x_j||^2 over the distinct pairs of rows, which is 1 / (2 trace of the covariance).

    Raises:
        ValueError: all rows are identical.
    """
    x = x.double()
    spread = 2 * float((x - x.mean(0)).square().sum()) / max(len(x) - 1, 1)
    if not spread > 0:
        raise ValueError(
            f'gamma="mean_sqdist" needs rows that differ, got zero spread over n_samples = {len(x)} rows of X; '
            "pass gamma as a number"
        )
    return 1 / spread
