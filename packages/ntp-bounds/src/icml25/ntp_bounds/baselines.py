"""Other bounds to read next to ours."""

import math
from typing import Any

import numpy as np

from icml25.ntp_bounds.checks import check_integer, check_number
from icml25.ntp_bounds.lipschitz import lipschitz
from icml25.ntp_bounds.rademacher import dudley
from icml25.ntp_bounds.spec import DecoderSpec


def parameter_counting(spec: DecoderSpec, n_sequences: Any, delta: float | int = 0.05) -> float:
    """Gap with log N(eps) = Theta log(1 + 1/eps): parameters counted, norms ignored. A trend, not a bound.

    Parameters
    ----------
    spec : the class.
    n_sequences : N.
    delta : probability of failure.
    """
    return _gap(spec, lambda eps: spec.n_params * np.log1p(1 / eps), n_sequences, delta)


def norm_based(spec: DecoderSpec, n_sequences: Any, delta: float | int = 0.05) -> float:
    """Gap with the leading term of a norm-based cover in the manner of Edelman et al. (2022), unit constants.

    ``log N(eps) = (sum_k (sqrt(2) b_k rho_k)^(2/3))^3 log(N m Theta) / eps^2``: Maurey's sparsification of each matrix with
    |W_k|_{2,1} <= b_k = sqrt(columns) |W_k|_F, rho_k of the token metric, sqrt(2) from logits to losses. The length m enters by its logarithm, the sizes
    of matrices by norms. A trend, not a bound.

    Parameters
    ----------
    spec : the class.
    n_sequences : N.
    delta : probability of failure.
    """
    n = check_integer(n_sequences, "n_sequences")
    rho = lipschitz(spec, metric="token").rho
    reach = [math.sqrt(2 * spec.shapes[name][1]) * fro * rho[name] for name, (_, fro) in spec.norms.items() if fro > 0]
    size = float((np.array(reach) ** (2 / 3)).sum()) ** 3 * math.log(n * spec.seq_len * spec.n_params)
    return _gap(spec, lambda eps: size / eps**2, n, delta)


def hoeffding(n_test: Any, loss_range: float | int, delta: float | int = 0.05) -> float:
    """Risk - mean loss on held-out sequences, with probability 1 - delta: the practical certificate of one model.

    Parameters
    ----------
    n_test : independent sequences that took no part in training.
    loss_range : largest loss, such as ``DecoderSpec.loss_range``.
    delta : probability of failure.
    """
    n, delta = check_integer(n_test, "n_test"), check_number(delta, "delta", 0, 1)
    return check_number(loss_range, "loss_range", 0) * math.sqrt(math.log(1 / delta) / (2 * n))


def _gap(spec: DecoderSpec, log_cover: Any, n_sequences: Any, delta: Any) -> float:
    n, delta, B = check_integer(n_sequences, "n_sequences"), check_number(delta, "delta", 0, 1), spec.loss_range
    return min(2 * dudley(log_cover, B / 2, n).value + hoeffding(n, B, delta), B)
