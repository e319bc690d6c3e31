"""One eigendecomposition of a kernel, from which every scalar equation costs O(P)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.linalg
from jaxtyping import Float

__all__ = ["Spectrum", "Values"]

Values: TypeAlias = Float[np.ndarray, "*G"] | float  # one or many scales Q, and as many values


@dataclass(frozen=True)
class Spectrum:
    """K = U diag(lam) U^T without its null space, and the targets in that basis: b = U^T y.

    The null space matters only through ``rest`` = y - U b, which no scale of the kernel fits.
    """

    lam: Float[np.ndarray, " r"]
    U: Float[np.ndarray, "P r"]
    b: Float[np.ndarray, " r"]
    rest: Float[np.ndarray, " P"]

    @classmethod
    def of_kernel(cls, K: Float[np.ndarray, "P P"], y: Float[np.ndarray, " P"]) -> Spectrum:
        """Decompose a kernel matrix."""
        lam, U = scipy.linalg.eigh(K)
        keep = lam > np.finfo(float).eps * len(K) * max(lam[-1], 0.0)
        return cls._of_basis(lam[keep], U[:, keep], y)

    @classmethod
    def of_inputs(cls, H: Float[np.ndarray, "P D"], y: Float[np.ndarray, " P"]) -> Spectrum:
        """Decompose K = H H^T through the smaller of H H^T and H^T H."""
        if len(H) <= H.shape[1]:
            return cls.of_kernel(H @ H.T, y)
        lam, W = scipy.linalg.eigh(H.T @ H)
        keep = lam > np.finfo(float).eps * len(H) * max(lam[-1], 0.0)
        return cls._of_basis(lam[keep], H @ W[:, keep] / np.sqrt(lam[keep]), y)

    @classmethod
    def _of_basis(
        cls, lam: Float[np.ndarray, " r"], U: Float[np.ndarray, "P r"], y: Float[np.ndarray, " P"]
    ) -> Spectrum:
        b = U.T @ y
        return cls(lam, U, b, y - U @ b)

    def trace(self, Q: Values, noise: float) -> Values:
        """tr[K (noise + Q K)^{-1}]."""
        return (self.lam / (noise + np.asarray(Q)[..., None] * self.lam)).sum(-1)

    def energy(self, Q: Values, noise: float) -> Values:
        """j^T K j for j = (noise + Q K)^{-1} y."""
        return ((self.b / (noise + np.asarray(Q)[..., None] * self.lam)) ** 2) @ self.lam

    def fit(self, Q: Values, noise: float) -> Values:
        """y^T (noise + Q K)^{-1} y."""
        return (self.b**2 / (noise + np.asarray(Q)[..., None] * self.lam)).sum(-1) + self.rest @ self.rest / noise

    def log_det(self, Q: Values, noise: float) -> Values:
        """Log determinant of noise + Q K."""
        null = len(self.rest) - len(self.lam)
        return np.log(noise + np.asarray(Q)[..., None] * self.lam).sum(-1) + null * np.log(noise)

    def dual(self, Q: float, noise: float) -> Float[np.ndarray, " P"]:
        """j = (noise + Q K)^{-1} y."""
        return self.U @ (self.b / (noise + Q * self.lam)) + self.rest / noise
