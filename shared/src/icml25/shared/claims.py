"""Claims of the papers as data, and what the results say of them.

``claims.toml`` of a package states each claim as a test on a column of a track's result table. The test is put to the
95% confidence interval over seeds, paired by seed where there is a baseline: a claim *holds* when the whole interval
passes, *fails* when none of it does, and is *not shown* otherwise.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

__all__ = [
    "Claim",
    "ClaimError",
    "Comparison",
    "Paper",
    "Verdict",
    "evaluate",
    "from_record",
    "interval",
    "read_claims",
    "render_table",
]

KINDS = ("quality", "speed", "memory", "identity")
_REQUIRED = ("id", "statement", "source", "track", "dataset", "metric", "method", "test", "kind", "budget")
_OPTIONAL = ("baseline", "needs")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_TEST = re.compile(r"(ratio|difference|value) (<=|>=|<|>) (-?\d+(?:\.\d+)?(?:e-?\d+)?)")
_SELECTOR = re.compile(r"([^\[\]]+)(?:\[(.*)\])?")


class ClaimError(ValueError):
    """claims.toml is malformed; the message names file, claim and key."""


@dataclass(frozen=True)
class Paper:
    """The table ``[paper]`` of claims.toml."""

    title: str
    authors: str
    venue: str
    url: str
    code: str = ""


@dataclass(frozen=True)
class Bound:
    """``ratio <= 0.25``: a quantity, a comparison, a bound."""

    quantity: str
    operator: str
    bound: float

    def __str__(self) -> str:
        return f"{self.quantity} {self.operator} {self.bound:g}"

    def passes(self, value: float) -> bool:
        """Whether a value is on the right side of the bound."""
        return _OPERATORS[self.operator](value, self.bound)


@dataclass(frozen=True)
class Claim:
    """One claim; it must hold for every data set, method and test that it names."""

    id: str
    statement: str
    source: str
    track: str
    datasets: tuple[str, ...]
    metric: str
    methods: tuple[str, ...]
    baselines: tuple[str, ...]
    tests: tuple[Bound, ...]
    kind: str
    budget: str
    needs: str = ""


@dataclass(frozen=True)
class Comparison:
    """One test on one data set: the quantity's mean and interval over seeds."""

    dataset: str
    method: str
    baseline: str
    test: str
    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        spread = "" if self.low == self.high else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.mean:.4g}{spread}"


@dataclass(frozen=True)
class Verdict:
    """What the results say of a claim: "holds", "fails" or "not shown", and why."""

    claim: Claim
    verdict: str
    why: str
    comparisons: tuple[Comparison, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The entry of ``results/quick.json``."""
        return {
            "id": self.claim.id,
            "statement": self.claim.statement,
            "source": self.claim.source,
            "budget": self.claim.budget,
            "threshold": [str(test) for test in self.claim.tests],
            "metric": self.claim.metric,
            "measured": [
                {
                    "dataset": c.dataset,
                    "method": c.method,
                    "baseline": c.baseline or None,
                    "test": c.test,
                    "value": c.mean,
                    "interval": [c.low, c.high],
                    "seeds": list(c.seeds),
                }
                for c in self.comparisons
            ],
            "verdict": self.verdict,
            "why": self.why,
        }


def read_claims(file: Path) -> tuple[Paper, list[Claim]]:
    """Read claims.toml.

    Raises
    ------
    ClaimError: naming the file, the claim and the key that is wrong.
    """
    try:
        table = tomllib.loads(file.read_text())
    except OSError as error:
        raise ClaimError(f"{file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ClaimError(f"{file}: not TOML: {error}") from error
    try:
        paper = Paper(**table["paper"])
    except (KeyError, TypeError) as error:
        raise ClaimError(f"{file}: [paper]: {error}") from error
    entries = table.get("claim", [])
    if not isinstance(entries, list) or not entries:
        raise ClaimError(f"{file}: there must be at least one [[claim]]")
    claims = [_parse(entry, f"{file}: claim {entry.get('id', f'number {i}')!r}") for i, entry in enumerate(entries, 1)]
    ids = [claim.id for claim in claims]
    if doubled := {id_ for id_ in ids if ids.count(id_) > 1}:
        raise ClaimError(f"{file}: claim {doubled.pop()!r}: key 'id' is used twice")
    return paper, claims


def _parse(entry: Mapping[str, Any], where: str) -> Claim:
    for key in entry:
        if key not in _REQUIRED + _OPTIONAL:
            close = difflib.get_close_matches(key, _REQUIRED + _OPTIONAL, n=1)
            raise ClaimError(f"{where}: unknown key {key!r}" + (f", did you mean {close[0]!r}?" if close else ""))
    for key in _REQUIRED:
        if key not in entry:
            raise ClaimError(f"{where}: key {key!r} is missing")

    def texts(key: str) -> tuple[str, ...]:
        value = entry.get(key, [])
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) and item for item in items):
            raise ClaimError(f"{where}: key {key!r} must be text or a list of texts, got {value!r}")
        return tuple(items)

    def text(key: str) -> str:
        value = entry.get(key, "")
        if not isinstance(value, str) or (key in _REQUIRED and not value):
            raise ClaimError(f"{where}: key {key!r} must be text, got {value!r}")
        return value

    tests = []
    for test in texts("test"):
        match = _TEST.fullmatch(test)
        if match is None:
            raise ClaimError(
                f"{where}: key 'test' must be like 'ratio <= 0.25' (ratio, difference or value), got {test!r}"
            )
        if match[1] != "value" and "baseline" not in entry:
            raise ClaimError(f"{where}: key 'test' is a {match[1]}, so key 'baseline' is needed")
        tests.append(Bound(match[1], match[2], float(match[3])))
    for key in ("dataset", "method", "test"):
        if not texts(key):
            raise ClaimError(f"{where}: key {key!r} is empty")
    if text("kind") not in KINDS:
        raise ClaimError(f"{where}: key 'kind' must be one of {', '.join(KINDS)}, got {entry['kind']!r}")
    return Claim(
        id=text("id"),
        statement=text("statement"),
        source=text("source"),
        track=text("track"),
        datasets=texts("dataset"),
        metric=text("metric"),
        methods=texts("method"),
        baselines=texts("baseline"),
        tests=tuple(tests),
        kind=text("kind"),
        budget=text("budget"),
        needs=text("needs"),
    )


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean and Student-t confidence interval of independent values.

    Parameters
    ----------
    values : at least one finite number.
    confidence : level of the interval.

    Returns
    -------
    mean, low, high : low = high = mean for one value or equal values.
    """
    from scipy import stats

    x = np.asarray(values, dtype=np.float64)
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError(f"values must be finite numbers, at least one; got {list(values)}")
    mean = float(x.mean())
    if x.size == 1 or np.ptp(x) == 0:
        return mean, mean, mean
    half = float(stats.t.ppf((1 + confidence) / 2, x.size - 1) * x.std(ddof=1) / math.sqrt(x.size))
    return mean, mean - half, mean + half


def evaluate(claim: Claim, table: pd.DataFrame | None, higher_is_better: bool) -> Verdict:
    """Put a claim to the results of its track and budget.

    Parameters
    ----------
    claim : the claim.
    table : benchopt's result rows, or None when its budget was not run.
    higher_is_better : direction of the metric, to pick the best of several baselines.
    """
    if table is None or table.empty:
        return Verdict(claim, "not shown", claim.needs or f"budget {claim.budget} was not run here")
    if claim.metric not in table:
        return Verdict(claim, "not shown", f"the results have no column {claim.metric}")
    comparisons = []
    for dataset in claim.datasets:
        rows = table.loc[_matches(table, "dataset", dataset)]
        for method in claim.methods:
            candidates = _by_solver(rows, method, claim.metric)
            if len(candidates) != 1:
                why = "no result" if not candidates else f"{len(candidates)} variants match"
                return Verdict(claim, "not shown", f"{why} for {method} on {dataset}", tuple(comparisons))
            [(solver, values)] = candidates.items()
            baseline, peer = "", None
            if claim.baselines:
                peers = {k: v for b in claim.baselines for k, v in _by_solver(rows, b, claim.metric).items()}
                peers = {k: v for k, v in peers.items() if values.index.isin(v.index).all()}
                if not peers:
                    why = f"no result for {', '.join(claim.baselines)} on {dataset}"
                    return Verdict(claim, "not shown", why, tuple(comparisons))
                best = max if higher_is_better else min
                baseline = best(peers, key=lambda name: peers[name].loc[values.index].mean())
                peer = peers[baseline].loc[values.index]
            comparisons += [_compare(test, dataset, solver, values, baseline, peer) for test in claim.tests]
    return _judge(claim, comparisons)


def _matches(table: pd.DataFrame, kind: str, selector: str) -> pd.Series:
    """Rows whose data set or solver has this name and at least these parameters."""
    match = _SELECTOR.fullmatch(selector)
    if match is None:
        raise ClaimError(f"{selector!r} is not a name with optional [parameter=value, ...]")
    names = table[f"{kind}_name"].str.split("[").str[0].str.casefold()
    keep = names == match[1].casefold()
    for pair in filter(None, (match[2] or "").split(",")):
        key, _, value = (part.strip() for part in pair.partition("="))
        column = f"p_{kind}_{key}"
        keep &= (table[column].map(_plain) == _plain(value)) if column in table else False
    return keep


def _plain(value: Any) -> str:
    """Parameter values as text: 60000, 60000.0 and "60000" are one (tables turn integers into floats)."""
    try:
        return str(value) if isinstance(value, bool) else repr(float(value))
    except (TypeError, ValueError):
        return str(value)


def _by_solver(rows: pd.DataFrame, selector: str, metric: str) -> dict[str, pd.Series]:
    """Values by seed of each matching solver variant."""
    rows = rows.loc[_matches(rows, "solver", selector) & rows[metric].notna()]
    return {
        str(solver): pd.Series(group[metric].to_numpy(float), index=group["p_obj_seed"].to_numpy()).sort_index()
        for solver, group in rows.groupby("solver_name")
    }


def _compare(
    test: Bound, dataset: str, method: str, values: pd.Series, baseline: str, peer: pd.Series | None
) -> Comparison:
    seeds = tuple(int(seed) for seed in values.index)
    if test.quantity == "value" or peer is None:
        mean, low, high = interval(values.tolist())
    elif test.quantity == "difference":
        mean, low, high = interval((values - peer).tolist())
    elif (values > 0).all() and (peer > 0).all():  # the geometric mean: a ratio and its inverse are treated alike
        mean, low, high = map(math.exp, interval(np.log(values / peer).tolist()))
    else:
        mean = low = high = math.nan
    return Comparison(dataset, method, baseline if test.quantity != "value" else "", str(test), mean, low, high, seeds)


def _judge(claim: Claim, comparisons: Iterable[Comparison]) -> Verdict:
    comparisons = tuple(comparisons)
    tests = {str(test): test for test in claim.tests}

    def said(comparison: Comparison) -> str:
        subject = f"{comparison.method} on {comparison.dataset}: {comparison.test.split()[0]} {comparison}"
        return f"{subject} against {comparison.test}" + (f" ({comparison.baseline})" if comparison.baseline else "")

    if undefined := [c for c in comparisons if math.isnan(c.mean)]:
        why = f"a ratio of values that are not all positive: {undefined[0].method} on {undefined[0].dataset}"
        return Verdict(claim, "not shown", why, comparisons)
    failing = [c for c in comparisons if not (tests[c.test].passes(c.low) or tests[c.test].passes(c.high))]
    unclear = [c for c in comparisons if not (tests[c.test].passes(c.low) and tests[c.test].passes(c.high))]
    if failing:
        return Verdict(claim, "fails", said(failing[0]), comparisons)
    if unclear:
        return Verdict(claim, "not shown", "the interval reaches across the bound: " + said(unclear[0]), comparisons)
    few = min(len(c.seeds) for c in comparisons)
    if few < 3 and claim.kind != "identity":
        return Verdict(claim, "not shown", f"passes, but on {few} seed(s); 3 are needed", comparisons)
    return Verdict(claim, "holds", "", comparisons)


def from_record(claim: Claim, results: Mapping[str, Any]) -> Verdict | None:
    """The verdict on a claim that ``results/quick.json`` holds, or None when it holds none on this very claim."""
    for entry in results["claims"]:
        if entry["id"] == claim.id and entry["threshold"] == [str(test) for test in claim.tests]:
            measured = []
            for m in entry["measured"]:
                low, high = m["interval"]
                of = (m["dataset"], m["method"], m["baseline"] or "", m["test"])
                measured.append(Comparison(*of, mean=m["value"], low=low, high=high, seeds=tuple(m["seeds"])))
            when = f"recorded on {results['date']} at {results['commit']}"
            return Verdict(claim, entry["verdict"], "; ".join(filter(None, (entry["why"], when))), tuple(measured))
    return None


def render_table(results: Mapping[str, Any]) -> str:
    """The README's claims table of ``results/quick.json``."""
    lines = ["| claim | paper | here | budget | verdict |", "| --- | --- | --- | --- | --- |"]
    for claim in results["claims"]:
        cells = [f"`{claim['id']}`", f"{claim['statement']} ({claim['source']})", _measured(claim), claim["budget"]]
        verdict = f"**{claim['verdict']}**" + (f": {claim['why']}" if claim["why"] else "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in [*cells, verdict]) + " |")
    machine = results["machine"]
    lines += [
        "",
        f"Measured on {results['date']} at commit `{results['commit']}`: {machine['processor']}, {machine['cores']} cores, "
        f"seeds {', '.join(map(str, results['seeds']))}, {results['seconds']:.0f} s in all. Intervals are 95% over seeds.",
    ]
    return "\n".join(lines)


def _measured(claim: Mapping[str, Any]) -> str:
    """``accuracy: value 99.1 [98.9, 99.3] (>= 98.5)``, the data set named where there are several."""
    several = len({m["dataset"] for m in claim["measured"]}) > 1 or len({m["method"] for m in claim["measured"]}) > 1
    cells = []
    for m in claim["measured"]:
        low, high = m["interval"]
        spread = "" if low == high else f" [{low:.3g}, {high:.3g}]"
        quantity, bound = m["test"].split(" ", 1)
        peer = f" to {m['baseline']}" if m["baseline"] else ""
        where = f"{m['method']}, {m['dataset']}: " if several else ""
        cells.append(f"{where}{quantity}{peer} {m['value']:.4g}{spread} ({bound})")
    return "; ".join(cells) or "-"
