"""The generalisation bound: from covering numbers through Dudley's integral to the gap between risk and empirical risk."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from icml25.ntp_bounds.checks import check_integer, check_number
from icml25.ntp_bounds.covering import cover_terms, matrix_entropies
from icml25.ntp_bounds.lipschitz import lipschitz
from icml25.ntp_bounds.rademacher import GRID, chain
from icml25.ntp_bounds.spec import DecoderSpec


@dataclass(frozen=True)
class Graph:
    """What comes more than ``k`` tokens later is independent of all of the past (of pairs of tokens alone isn't enough).

    Parameters
    ----------
    k : distance up to which tokens may depend.
    window : tokens that a layer sees back to; None takes the mask's, and less than the mask's is refused.
    """

    k: int
    window: int | None = None


@dataclass(frozen=True)
class Mixing:
    """Tokens are beta-mixing.

    Parameters
    ----------
    beta : a -> beta(a), not increasing: the total variation between the law of what comes a tokens after the past and its
        marginal, averaged over pasts. Coefficients of phi-mixing are never smaller and may be passed as they are.
    window : as for ``Graph``.
    """

    beta: Callable[[int], Any]
    window: int | None = None


@dataclass(frozen=True)
class BoundReport:
    """With probability 1 - delta, for all decoders of the class: risk <= empirical risk + ``gap``.

    Attributes
    ----------
    gap : 2 rademacher + confidence, and at most loss_range; nats per token, like all that follow.
    rademacher : Dudley's bound for the whole class.
    predictor, representation : the same for W_out alone and for all before it; their sum is at least ``rademacher``.
    confidence : the deviation term.
    alpha : radius (in the loss) where Dudley's integral starts.
    n_eff : effective sample size.
    block : length of the blocks that ``Mixing`` chose, else None.
    loss_range : B_l, the largest loss.
    vacuous : whether gap >= log(vocab), which a uniform guess attains.
    table : a row per matrix: matrix, params, op, fro, rho, log_rho, and share of the log-covering number,
        averaged over Dudley's integral from alpha on.
    """

    gap: float
    rademacher: float
    predictor: float
    representation: float
    confidence: float
    alpha: float
    n_eff: float
    block: int | None
    loss_range: float
    vacuous: bool
    table: list[dict[str, Any]]


def bound(
    spec: DecoderSpec,
    n_sequences: Any,
    delta: float | int = 0.05,
    dependence: str | Graph | Mixing = "sequence",
    *,
    softmax: str = "best",
    metric: str = "frobenius",
) -> BoundReport:
    """Bound on risk - empirical risk of next-token prediction, for all decoders of a class at once.

    ``gap = 2 Rad + B_l sqrt(log(1/delta) / (2 n_eff))``. The N sequences are independent; the loss is the mean over the m
    tokens of each.

    Parameters
    ----------
    spec : the class, fixed before the data are seen.
    n_sequences : N.
    delta : probability that the bound fails.
    dependence : "sequence": nothing is assumed of the tokens of a sequence, n_eff = N. ``Graph``: colour t mod chi,
        n_eff = N m / chi, with chi = min(m, c + k + 1) and c = L (w - 1) + 1 tokens of context. ``Mixing``: blocks of a > c
        tokens, n_eff = N m / (2 a), log(2/delta') in place of log(1/delta), delta' = delta - N (ceil(m/a) - 2) beta(a - c);
        the best a is taken. An assumption never hurts: where colours or blocks gain nothing, the plain bound is returned.
    softmax, metric : as for ``lipschitz``.

    Raises
    ------
    ValueError: an impossible number, a beta that increases, or "mixing too slow": no block length leaves delta' > 0 and n_eff > N.
    """
    n, delta = check_integer(n_sequences, "n_sequences"), check_number(delta, "delta", 0, 1)
    n_eff, log_term, colours, blocks = _effective(spec, n, delta, dependence)
    report = lipschitz(spec, softmax, metric)
    B, eps = spec.loss_range, spec.loss_range / 2 * GRID
    entropies = matrix_entropies(*cover_terms(spec, report), eps * _loss_to_logits(spec, metric, colours))
    rademacher, alpha = chain(entropies.sum(0), eps, n_eff)
    confidence = B * np.sqrt(log_term / (2 * n_eff))
    best = int((2 * rademacher + confidence).argmin())
    gap = min(float((2 * rademacher + confidence)[best]), B)
    predictor, representation = (
        float(chain(part.sum(0), eps, n_eff[[best]]).value[0]) for part in (entropies[-1:], entropies[:-1])
    )
    start = np.searchsorted(eps, alpha[best])
    total = entropies[:, start:].sum(0)
    weight = np.gradient(eps)[start:] / np.sqrt(np.where(total > 0, total, 1.0))  # sqrt(log N) d eps / log N
    share = entropies[:, start:] @ weight / max(total @ weight, 1e-300)
    table = [
        {
            "matrix": name,
            "params": rows * columns,
            "op": spec.norms[name].op,
            "fro": spec.norms[name].fro,
            "rho": report.rho[name],
            "log_rho": report.log_rho[name],
            "share": float(share[k]),
        }
        for k, (name, (rows, columns)) in enumerate(spec.shapes.items())
    ]
    result = BoundReport(
        gap=gap,
        rademacher=float(rademacher[best]),
        predictor=predictor,
        representation=representation,
        confidence=float(confidence[best]),
        alpha=float(alpha[best]),
        n_eff=float(n_eff[best]),
        block=blocks[best],
        loss_range=B,
        vacuous=gap >= math.log(spec.vocab),
        table=table,
    )
    if dependence == "sequence":
        return result
    plain = bound(spec, n, delta, softmax=softmax, metric=metric)
    return plain if plain.gap < gap else result


def sweep(
    spec: DecoderSpec,
    n: Any,
    m: Any = None,
    dims: Any = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The bound over a grid of N, m and d.

    Parameters
    ----------
    spec : the class; its other lengths and widths are those of ``DecoderSpec.resized``.
    n, m, dims : lists of N, m and d; None takes the class's own.
    options : as for ``bound``.

    Returns
    -------
    Rows with dim, seq_len, n_params, n_sequences, gap, rademacher, n_eff, vacuous; N changes fastest.
    """
    rows = []
    sizes, lengths, widths = (
        _grid(values, name)
        for values, name in (
            (n, "n"),
            ((spec.seq_len,) if m is None else m, "m"),
            ((spec.dim,) if dims is None else dims, "dims"),
        )
    )
    for dim in widths:
        for seq_len in lengths:
            other = spec.resized(dim, seq_len)
            for size in sizes:
                report = bound(other, size, **options)
                rows.append(
                    {
                        "dim": dim,
                        "seq_len": seq_len,
                        "n_params": other.n_params,
                        "n_sequences": size,
                        "gap": report.gap,
                        "rademacher": report.rademacher,
                        "n_eff": report.n_eff,
                        "vacuous": report.vacuous,
                    }
                )
    return rows


def _grid(values: Any, name: str) -> list[Any]:
    """Values of a sweep."""
    if not isinstance(values, Iterable) or isinstance(values, str) or not (values := list(values)):
        raise ValueError(f"{name} must hold at least one number, got {values!r}")
    return values


def _effective(
    spec: DecoderSpec, n: int, delta: float, dependence: Any
) -> tuple[np.ndarray, np.ndarray, int, list[int | None]]:
    """Candidates of n_eff and of the logarithm in the deviation, colours of the tokens, candidates of the block length."""
    m, log_term = spec.seq_len, math.log(1 / delta)
    if isinstance(dependence, Graph):
        k = check_integer(dependence.k, "k", 0)
        chi = min(m, _context(spec, dependence.window) + k + 1)
        return np.array([n * m / chi]), np.array([log_term]), chi if chi < m else 1, [None]
    if isinstance(dependence, Mixing):
        c = _context(spec, dependence.window)
        lengths = range(c + 1, (m + 1) // 2)  # three blocks at least: else n_eff <= N
        if not callable(dependence.beta):
            raise TypeError(f"beta must be a function a -> beta(a), got {dependence.beta!r}")
        beta = np.array([check_number(dependence.beta(a - c), f"beta({a - c})", 0, closed=True) for a in lengths])
        if (np.diff(beta) > 1e-12).any():
            raise ValueError(f"beta must not increase, got {beta} for distances from 1 on")
        a = np.array(lengths, dtype=float)
        left = delta - n * (np.ceil(m / a) - 2) * beta
        if not (left > 0).any():
            raise ValueError(
                f"mixing too slow: with N={n}, m={m} and {c} token(s) of context no block length leaves delta' > 0 and "
                "n_eff > N; use dependence='sequence'"
            )
        a, left = a[left > 0], left[left > 0]
        return n * m / (2 * a), np.log(2 / left), 2, a.astype(int).tolist()
    if dependence != "sequence":
        raise ValueError(f"dependence must be 'sequence', Graph(k) or Mixing(beta), got {dependence!r}")
    return np.array([float(n)]), np.array([log_term]), 1, [None]


def _context(spec: DecoderSpec, window: int | None) -> int:
    """c = L (w - 1) + 1: tokens that a prediction of L stacked layers sees; at most m."""
    w = spec.window if window is None else check_integer(window, "window")
    if w < spec.window:
        raise ValueError(f"window={w} is less than the {spec.window} token(s) that the mask lets a layer see back to")
    return min(spec.seq_len, spec.n_layers * (w - 1) + 1)


def _loss_to_logits(spec: DecoderSpec, metric: str, colours: int) -> float:
    """Radius in the logits per radius in the loss, cross entropy being sqrt(2)-Lipschitz in the logits of a token.

    In the Frobenius metric a token's share of the distance is not known, only the sum of squares over all m. A class of
    tokens of one colour may hold all of it, and has only m / colours tokens to spread it on.
    """
    return math.sqrt(0.5) if metric == "token" else math.sqrt(spec.seq_len / (2 * colours))
