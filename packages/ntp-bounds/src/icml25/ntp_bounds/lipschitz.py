"""How far the logits move when a matrix moves: rho_k with ``|logits - logits'| <= sum_k rho_k |W_k - W_k'|_F``.

Facts used. Rows of an attention matrix are convex weights, so rows of A X have norm at most B_x, and |A|_2 <= sqrt(c), c
being the largest number of ones in a column of the mask (not 1: all rows may attend to the first token). For the softmax of
masked scores, ``|A - A'|_F <= 1/2 |(S - S') o M|_F`` (route "l2") and, row by row, ``|p - p'|_1 <= 2 |s - s'|_inf`` ("l1").
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np

from icml25.ntp_bounds.checks import check_choice
from icml25.ntp_bounds.spec import DecoderSpec

SOFTMAX = ("best", "l2", "l1")
METRICS = ("frobenius", "token")
SILU = 1.1  # Lipschitz constant of silu (1.0998...)


@dataclass(frozen=True)
class LipschitzReport:
    """Lipschitz constants: ``att`` and ``ffn`` in the input, by layer; ``rho`` of the logits in each matrix, by name.

    ``log_rho`` holds the logarithms, where ``rho`` overflows to infinity.
    """

    att: list[float]
    ffn: list[float]
    rho: dict[str, float]
    log_rho: dict[str, float]


def lipschitz(spec: DecoderSpec, softmax: str = "best", metric: str = "frobenius") -> LipschitzReport:
    """Lipschitz constants of a class of decoders.

    Parameters
    ----------
    spec : the class.
    softmax : route through the softmax, "l2", in which the mask enters by its number of ones, "l1", or the "best" of both for
        each constant.
    metric : "frobenius": Frobenius norm of the (m, v) logits; "token": the largest norm of a row, for which neither m nor
        the mask matters (by the route "l1" only).

    Raises
    ------
    ValueError: an unknown route or metric, or norms beyond all reason.
    """
    check_choice(softmax, "softmax", SOFTMAX)
    check_choice(metric, "metric", METRICS)
    if spec.norm == "rmsnorm":
        warnings.warn(
            f"RMSNorm has the Lipschitz constant {spec.norm_lipschitz:.3g}, once per sub-block: valid and hugely loose",
            stacklevel=2,
        )
    m, (nnz, r, c), B = spec.seq_len, spec.mask_stats, spec.row_bound
    if metric == "token":
        if softmax == "l2":
            raise ValueError("softmax='l2' has no version for metric='token'; use 'best' or 'l1'")
        sig_x, sig_p, mix, rows = 4.0, 2.0, 1.0, 1.0
    else:
        routes = {
            "l2": (0.5 * math.sqrt(m) * (math.sqrt(r) + math.sqrt(c)), 0.5 * math.sqrt(nnz * m)),
            "l1": (2 * (1 + math.sqrt(c)), 2 * math.sqrt(m)),
        }
        sig_x, sig_p = routes[softmax] if softmax != "best" else map(min, *routes.values())
        mix, rows = math.sqrt(c), math.sqrt(m)
    op = {name: norms.op for name, norms in spec.norms.items()}
    # the normalisation stands behind each sum, or before each sub-block and the output
    after, before = (1.0, spec.norm_lipschitz) if spec.pre_norm else (spec.norm_lipschitz, 1.0)
    share = math.sqrt(spec.heads / spec.group_heads)  # heads that share a K and a V
    temperature = math.sqrt(spec.dim // spec.heads)

    att, ffn = [], []
    log_rho = {"W_out": _log(rows * B)}
    tail = _log(before) + _log(op["W_out"])  # Lipschitz constant of all that follows
    for layer in reversed(range(spec.n_layers)):
        Q, K, V, out, W1, W2 = (op[f"{layer}.{name}"] for name in ("Q", "K", "V", "O", "W1", "W2"))
        V_fro = share * spec.norms[f"{layer}.V"].fro
        if spec.gated:
            W3 = op[f"{layer}.W3"]
            inner = (1 + SILU) * B * W1 * W3 * W2
            moved = {"W1": SILU * B * B * W3 * W2, "W3": B * B * W1 * W2, "W2": B * B * W1 * W3}
        else:
            inner = W1 * W2
            moved = {"W1": B * W2, "W2": B * W1}
        log_rho |= {f"{layer}.{name}": _log(rows * after * value) + tail for name, value in moved.items()}
        ffn.insert(0, after * (1 + before * inner))
        tail += _log(ffn[0])

        inner = out * V_fro * (mix + sig_x * B * B * Q * K / temperature)
        scores = sig_p * B * B * B * V * out / temperature
        moved = {"Q": scores * K, "K": scores * share * Q, "V": rows * B * share * out}
        moved["O"] = rows * B * min(V_fro, math.sqrt(spec.heads) * V)
        log_rho |= {f"{layer}.{name}": _log(after * value) + tail for name, value in moved.items()}
        att.insert(0, after * (1 + before * inner))
        tail += _log(att[0])
    log_rho |= {"embedding": _log(rows * after) + tail, "positions": _log(after) + tail}
    if spec.tied:
        log_rho["W_out"] = float(np.logaddexp(log_rho["W_out"], log_rho["embedding"]))
    log_rho = {name: log_rho[name] for name in spec.shapes}
    rho = {name: math.exp(value) if value < 709 else math.inf for name, value in log_rho.items()}
    return LipschitzReport(att, ffn, rho, log_rho)


def _log(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("norms (or b_x) are so large that a constant of a single layer overflows")
    return math.log(value) if value > 0 else -math.inf
