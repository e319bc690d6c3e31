"""CATSelector: score pairs of candidates, select the valid set, estimate the effect, and say what was rejected and why."""

from __future__ import annotations

import warnings
from itertools import permutations
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from icml25.cat_iv.auxiliary import (
    WeakInstrumentWarning,
    adjust,
    basis,
    control_function_auxiliary,
    first_stage_f,
    linear_auxiliary,
    require_first_stage,
    single_instrument_slopes,
)
from icml25.cat_iv.checks import (
    Columns,
    as_generator,
    as_matrix,
    as_vector,
    is_whole,
    label_columns,
    positions,
    refuse_constant,
    refuse_nonfinite,
    same_length,
)
from icml25.cat_iv.effects import projected_ratio
from icml25.cat_iv.independence import chi2_p_value, cross_correlations, holm, permutation_p_value
from icml25.cat_iv.search import best_subsets, set_score

__all__ = ["CATSelector", "NoValidSetError"]

MIN_ROWS = 30
WEAK_F = 10.0
DISAGREEMENT = 10.0  # ratio of single-instrument effects within a selected set that is worth a warning
DUPLICATE = 1e-10  # 1 - |correlation| of two candidates that are one


class NoValidSetError(ValueError):
    """No set of two or more candidates passes the cross tests."""


class CATSelector(BaseEstimator):
    """Select valid instruments by the Cross Auxiliary-based independent Test (CAT) condition.

    For Y = beta X + f(Z, W, U): a set passes when, for every pair i != j in it, A_i = Y - beta_i X is independent of
    Z_j, with beta_i the effect that candidate i alone gives. Among all sets of ``n_valid`` candidates the one with
    the smallest sum of distance correlations is selected.

    Selecting a set does not prove that it is valid: invalid candidates whose direct effects are proportional to their
    first stages with one constant pass as well, and no data can tell.

    Parameters
    ----------
    n_valid : number of instruments to select (K), or "auto": the largest K whose best set passes all cross tests.
    effect : "constant" (the paper), or "control_function" for an effect that varies with X (follow-up of the paper).
    residual : how covariates are adjusted for: "linear", "forest" or a scikit-learn regressor (cross-fitted).
    cross_fit : folds for residual other than "linear".
    min_first_stage_f : candidates with a smaller first-stage F are not scored (see ``weak_``); None scores all.
    alpha : level of the cross tests, Holm-adjusted over the K (K - 1) tests of a set.
    test : None, "chi2" or "permutation": p-values of the cross tests, and a warning when the selected set fails them.
        n_valid="auto" needs them and takes "chi2".
        The p-values take beta_j as known, and its error makes A_j depend on Z a little: of single tests of truly valid
        pairs of the paper's first case about 10% are below 0.05 with either test and the pair passes in about nine of
        ten draws, at 8,000 rows as at 1,000. A larger ``split`` helps (96% at 0.9), at the cost of power.
    split : share of rows that estimates beta_j for the tests; the tests run on the others.
    n_permutations : permutations of test="permutation"; more than K (K - 1) / alpha - 1 (p candidates for "auto").
    subsample : at most this many rows, drawn at random, for scores and tests; effects use all rows.
    nan_policy : "raise", or "omit" the rows with missing or infinite values.
    on_fail : "raise" NoValidSetError or "warn" (and select the best pair) when no set passes under n_valid="auto".
    max_subsets : sets to enumerate; beyond that, partial sets that branch and bound may visit.
    random_state : seed or generator of folds, subsample, split and permutations.
    n_jobs : threads for the scores; -1 takes all cores. The answer is the same.

    Attributes
    ----------
    selected_ : list of the selected candidates in the order given: column names, or indices for arrays.
    support_ : (p,) bool.
    score_ : score of the selected set; comparable between sets of one size only.
    pair_scores_ : (p, p) symmetric, zero diagonal, NaN rows and columns for weak candidates.
    directed_scores_ : (p, p) entry (i, j) is dCor(A_i, Z_j).
    betas_ : (p,) effect by each candidate alone, units of outcome per unit of treatment; NaN for weak ones.
    first_stage_f_ : (p,) F of each candidate alone.
    weak_ : list of candidates that min_first_stage_f left out.
    effect_ : effect by two-stage least squares on the selected set.
    subset_scores_ : list of (subset, score), at most 50, best first.
    p_values_ : (p, p) of A_i against Z_j (NaN on the diagonal and for weak ones), or None.
    passes_ : whether the selected set passes all its tests, or None.
    n_used_ : rows used. n_features_in_, feature_names_in_ : as in scikit-learn.

    Source: steps 1 to 5 of the algorithm; equations 1 to 3.
    """

    def __init__(
        self,
        n_valid: Any = 2,
        *,
        effect: str = "constant",
        residual: Any = "linear",
        cross_fit: int = 5,
        min_first_stage_f: float | int | None = None,
        alpha: float | int = 0.05,
        test: str | None = None,
        split: float | int = 0.7,
        n_permutations: int = 999,
        subsample: int | None = None,
        nan_policy: str = "raise",
        on_fail: str = "raise",
        max_subsets: int = 2_000_000,
        random_state: Any = None,
        n_jobs: int | None = 1,
    ) -> None:
        self.n_valid = n_valid
        self.effect = effect
        self.residual = residual
        self.cross_fit = cross_fit
        self.min_first_stage_f = min_first_stage_f
        self.alpha = alpha
        self.test = test
        self.split = split
        self.n_permutations = n_permutations
        self.subsample = subsample
        self.nan_policy = nan_policy
        self.on_fail = on_fail
        self.max_subsets = max_subsets
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, Z: Any, treatment: Any, outcome: Any, covariates: Any = None) -> CATSelector:
        """Score all pairs, select, and estimate the effect.

        Rows are matched by position; an index of a frame is not looked at.

        Parameters
        ----------
        Z : (n, p) candidate instruments, p >= 2: array or data frame of numbers or booleans.
        treatment, outcome : (n,) numbers.
        covariates : (n, d) numbers, or None.

        Returns
        -------
        self

        Raises
        ------
        TypeError: columns that are not numbers, by name.
        ValueError: options out of range, NaN, constant, duplicate or collinear columns, too few rows, lengths that
            differ, or more instruments asked for than there are.
        WeakInstrumentError: a candidate without covariance with the treatment (and no screen).
        NoValidSetError: n_valid="auto" and no pair passes.
        RuntimeError: too many sets to search.
        """
        self._check_options()
        rng = as_generator("random_state", self.random_state)
        Z, x, y, W = self._read(Z, treatment, outcome, covariates)
        n, p = Z.shape
        named = [("treatment", x), ("outcome", y), *zip(self._labels, Z.T, strict=True)]
        columns, units = adjust(named, W, self._regressor(), cross_fit=self.cross_fit, seed=rng)
        unit = float(units[1] / units[0])  # of an effect
        x_, y_, Z_ = columns[:, 0], columns[:, 1], columns[:, 2:]
        self._refuse_duplicates(Z_)

        covariates_ = np.empty((n, 0)) if W is None else basis(W)[0]
        self.first_stage_f_ = first_stage_f(Z_, x_, covariates_.shape[1])
        strong = np.flatnonzero(self.first_stage_f_ >= (self.min_first_stage_f or 0))
        self.weak_ = [self._names[j] for j in range(p) if j not in strong]
        if len(strong) < (2 if self.n_valid == "auto" else self.n_valid):
            raise ValueError(
                f"n_valid is {self.n_valid!r} and there are {p} candidates, of which weak (first-stage F below"
                f" {self.min_first_stage_f}): {self.weak_}; expected at most {len(strong)}, and at least 2 candidates"
            )
        Z_, candidates = Z_[:, strong], [named[2 + j] for j in strong]
        test = self.test or ("chi2" if self.n_valid == "auto" else None)
        if test == "permutation":
            self._require_permutations(len(strong) if self.n_valid == "auto" else self.n_valid)

        slopes = single_instrument_slopes(Z_, x_, y_)
        self.betas_ = np.full(p, np.nan)
        self.betas_[strong] = slopes * unit
        rows = np.arange(n)
        if self.subsample is not None and self.subsample < n:
            rows = rng.choice(n, self.subsample, replace=False)
        A = self._auxiliaries(Z_, x_, y_, candidates)
        directed = cross_correlations(A[rows], Z_[rows], self.n_jobs)
        self.directed_scores_ = _scatter(directed, strong, p)
        self.pair_scores_ = self.directed_scores_ + self.directed_scores_.T

        p_values = None if test is None else self._cross_p_values(test, Z_[rows], x_[rows], y_[rows], candidates, rng)
        self.p_values_ = None if p_values is None else _scatter(p_values, strong, p)

        scored, self.passes_ = self._select(directed + directed.T, p_values)
        self.subset_scores_ = [([self._names[strong[j]] for j in subset], score) for subset, score in scored]
        chosen, self.score_ = list(scored[0][0]), scored[0][1]
        self.support_ = np.isin(np.arange(p), strong[chosen])
        self.selected_ = self.subset_scores_[0][0]
        self.effect_ = projected_ratio(Z_[:, chosen], x_, y_) * unit
        self.n_used_ = n
        if W is not None and self._regressor() is None:  # residuals less the covariates: the columns, centred
            observed, units = adjust(named[:2], None)
        else:
            observed, covariates_ = columns[:, :2], covariates_[:, :0]
        in_treatment_units = observed * (
            units[:2] / units[0]
        )  # the ratio is that of the raw columns, whatever their size
        self._second_stage = np.column_stack([in_treatment_units, columns[:, 2:]]), covariates_
        self._warn(slopes[chosen], A[:, chosen].std(0) * np.sqrt(n), np.abs(x_ @ Z_[:, chosen]))
        return self

    def transform(self, Z: Any) -> Any:
        """The selected columns.

        Parameters
        ----------
        Z : (n, p) array, or a frame with the columns of the fit.

        Returns
        -------
        (n, K) array or frame.

        Raises
        ------
        ValueError: columns missing, or another number of columns than in the fit.
        """
        check_is_fitted(self)
        if hasattr(Z, "iloc") and self._named:
            if missing := [name for name in self.selected_ if name not in set(Z.columns)]:
                raise ValueError(f"Z lacks the selected columns {missing}; expected {self.selected_}")
            return Z[self.selected_]
        chosen = np.flatnonzero(self.support_)
        if not hasattr(Z, "iloc"):
            Z, _ = as_matrix("Z", Z)
        if Z.shape[1] != self.n_features_in_:
            raise ValueError(f"Z has {Z.shape[1]} columns; expected {self.n_features_in_}, as in the fit")
        return Z.iloc[:, chosen] if hasattr(Z, "iloc") else Z[:, chosen]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the selected columns.

        Parameters
        ----------
        input_features : p names; None takes the names of the fit, or "x0", "x1", ... for arrays.

        Returns
        -------
        (K,) object array of names.

        Raises
        ------
        ValueError: another number of names than columns in the fit.
        """
        check_is_fitted(self)
        if input_features is None:
            input_features = self._names if self._named else [f"x{j}" for j in range(self.n_features_in_)]
        if len(input_features) != self.n_features_in_:
            raise ValueError(f"input_features has {len(input_features)} names; expected {self.n_features_in_}")
        return np.asarray(input_features, dtype=object)[self.support_]

    def set_score(self, subset: Any) -> float:
        """Score of any set of scored candidates: the sum of its pair scores.

        Parameters
        ----------
        subset : names (of a frame) or column indices, at least two, distinct.

        Returns
        -------
        float; comparable between sets of one size only.

        Raises
        ------
        ValueError: unknown, weak or repeated candidates, or fewer than two.
        """
        check_is_fitted(self)
        known = [name for name in self._names if name not in self.weak_]
        return set_score(self.pair_scores_, positions(subset, self._names, known))

    def iv2sls(self, cov_type: str = "robust") -> Any:
        """Two-stage least squares on the selected set by ``linearmodels``, with standard errors and the Sargan test.

        The standard errors take the set as given: they ignore that it was selected on the same data. Read the parameter
        "treatment" only: all columns are centred, and orthonormal ones replace covariates and instruments, one for
        each that does not depend linearly on the others, as units and dependence would make linearmodels refuse them.

        Parameters
        ----------
        cov_type : covariance of linearmodels: "robust" or "unadjusted".

        Returns
        -------
        linearmodels.iv.results.IVResults; its parameter "treatment" equals ``effect_``.

        Raises
        ------
        ImportError: linearmodels is not installed.
        WeakInstrumentError: the selected set has no linear first stage (only with effect="control_function").
        """
        check_is_fitted(self)
        try:
            import pandas as pd
            from linearmodels.iv import IV2SLS  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("iv2sls needs linearmodels: pip install icml25-cat-iv[iv]") from error
        columns, W = self._second_stage
        chosen = np.flatnonzero(self.support_)
        if np.isnan(self.effect_):
            require_first_stage(self.betas_[chosen], [(self._labels[j], columns[:, 2 + j]) for j in chosen])
        Z, independent = basis(columns[:, 2 + chosen])
        scale = columns[:, 0].std() * np.sqrt(len(columns))  # linearmodels compares the sizes of columns
        instruments = pd.DataFrame(Z * scale, columns=[self._labels[chosen[k]] for k in independent])
        exogenous = pd.DataFrame(W * scale).add_prefix("covariate ").assign(intercept=columns[:, 0].std())
        outcome, treatment = pd.Series(columns[:, 1], name="outcome"), pd.Series(columns[:, 0], name="treatment")
        return IV2SLS(outcome, exogenous, treatment, instruments).fit(cov_type=cov_type)

    def summary(self) -> str:
        """What was selected, and why each other candidate was not.

        Returns
        -------
        Text: effect and score; a line per candidate with first-stage F and its effect alone; for one left out the
        largest distance correlation in its cross tests with the selected set, and the smallest score with it swapped in.
        """
        check_is_fitted(self)
        chosen, labels = np.flatnonzero(self.support_).tolist(), self._labels
        lines = [
            f"CAT selection: {len(chosen)} of {len(labels)} candidates, {self.n_used_} rows",
            f"  selected  {', '.join(labels[j] for j in chosen)}   score {self.score_:.4f}   effect (2SLS) {self.effect_:.4g}",
        ]
        if self.passes_ is not None:
            verdict = "pass" if self.passes_ else "do NOT pass"
            lines.append(f"  cross tests of the selected set {verdict} at level {self.alpha:g} (Holm)")
        width = max(map(len, labels))
        for j, label in enumerate(labels):
            line = f"  {label:<{width}}  F {self.first_stage_f_[j]:>9.1f}  effect alone {self.betas_[j]:>10.4g}  "
            if self.support_[j]:
                line += "selected"
            elif self._names[j] in self.weak_:
                line += f"not scored: first-stage F below {self.min_first_stage_f:g}"
            else:
                line += "left out: " + self._reason(j, chosen)
            lines.append(line)
        lines.append(
            "  Not seen by any test: invalid candidates with direct effects proportional to their first stages."
        )
        return "\n".join(lines)

    def plot_scores(self, ax: Any = None) -> Any:
        """Picture of the pair scores, selected pairs framed.

        Parameters
        ----------
        ax : matplotlib axes; None makes new ones.

        Returns
        -------
        The axes.

        Raises
        ------
        ImportError: matplotlib is not installed.
        """
        check_is_fitted(self)
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError("plot_scores needs matplotlib: pip install icml25-cat-iv[plot]") from error
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        p = len(self._labels)
        shown = np.where(np.eye(p, dtype=bool), np.nan, self.pair_scores_)
        image = ax.imshow(shown, cmap="YlOrRd", vmin=0)
        top = np.nanmax(shown)
        for i, j in permutations(range(p), 2):
            if np.isfinite(shown[i, j]):
                color = "white" if shown[i, j] > 0.6 * top else "black"
                ax.text(j, i, f"{shown[i, j]:.2f}", ha="center", va="center", color=color)
            if self.support_[i] and self.support_[j]:
                ax.add_patch(plt.Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="tab:blue", linewidth=3))
        ax.set_xticks(range(p), self._labels)
        ax.set_yticks(range(p), self._labels)
        ax.figure.colorbar(image, ax=ax, label="pair score")
        return ax

    def _check_options(self) -> None:
        def refuse(name: str, expected: str) -> None:
            raise ValueError(f"{name} is {getattr(self, name)!r}; expected {expected}")

        def number(value: Any, kinds: Any = (int, float, np.integer, np.floating)) -> bool:
            return isinstance(value, kinds) and not isinstance(value, (bool, np.bool_))

        if not (isinstance(self.n_valid, str) and self.n_valid == "auto") and not is_whole(self.n_valid, 2):
            refuse("n_valid", 'a whole number of at least 2, or "auto"')
        choices = {
            "effect": ("constant", "control_function"),
            "test": (None, "chi2", "permutation"),
            "nan_policy": ("raise", "omit"),
            "on_fail": ("raise", "warn"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                refuse(name, f"one of {allowed}")
        if isinstance(self.residual, str):
            if self.residual not in ("linear", "forest"):
                refuse("residual", '"linear", "forest" or a scikit-learn regressor')
        elif isinstance(self.residual, type) or not (
            hasattr(self.residual, "fit") and hasattr(self.residual, "predict")
        ):
            refuse("residual", '"linear", "forest" or a scikit-learn regressor (an instance with fit and predict)')
        for name, least in {"cross_fit": 2, "n_permutations": 1, "max_subsets": 1}.items():
            if not is_whole(getattr(self, name), least):
                refuse(name, f"a whole number of at least {least}")
        if self.subsample is not None and not is_whole(self.subsample, MIN_ROWS):
            refuse("subsample", f"None or a whole number of at least {MIN_ROWS}")
        for name in ("alpha", "split"):
            if not number(getattr(self, name)) or not 0 < getattr(self, name) < 1:
                refuse(name, "a number between 0 and 1")
        f = self.min_first_stage_f
        if f is not None and not (number(f) and 0 <= f < np.inf):
            refuse("min_first_stage_f", "None or a finite number of at least 0")
        if self.n_jobs is not None and (not number(self.n_jobs, (int, np.integer)) or self.n_jobs == 0):
            refuse("n_jobs", "None or a whole number other than 0")

    def _read(
        self, Z: Any, treatment: Any, outcome: Any, covariates: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Checked float64 arrays of the rows to use, and the names of the candidates."""
        Z, self._names = as_matrix("Z", Z)
        x, y = as_vector("treatment", treatment), as_vector("outcome", outcome)
        arrays = {"Z": Z, "treatment": x, "outcome": y}
        self._named = self._names != list(range(Z.shape[1]))
        self._labels = [str(name) if self._named else f"Z[{name}]" for name in self._names]
        columns: Columns = [*zip(self._labels, Z.T, strict=True), ("treatment", x), ("outcome", y)]
        W = None
        if covariates is not None:
            W, names = as_matrix("covariates", covariates)
            arrays["covariates"] = W
            columns += label_columns("covariates", names, W)
        same_length(**arrays)
        self.n_features_in_ = Z.shape[1]
        vars(self).pop("feature_names_in_", None)  # of an earlier fit
        if all(isinstance(name, str) for name in self._names):
            self.feature_names_in_ = np.asarray(self._names, dtype=object)
        if Z.shape[1] < 2:
            raise ValueError(f"Z has {Z.shape[1]} candidate; the cross condition needs at least two")
        if self.nan_policy == "raise":
            refuse_nonfinite(columns)
        else:
            keep = np.all([np.isfinite(v) for _, v in columns], axis=0)
            Z, x, y = Z[keep], x[keep], y[keep]
            W = None if W is None else W[keep]
        d = 0 if W is None else W.shape[1]
        least = max(MIN_ROWS, Z.shape[1] + d + 3)
        if len(Z) < least:
            raise ValueError(
                f"{len(Z)} rows can be used; expected at least {least} for {Z.shape[1]} candidates and {d} covariates"
            )
        refuse_constant([*zip(self._labels, Z.T, strict=True), ("treatment", x), ("outcome", y)])
        return Z, x, y, W

    def _regressor(self) -> Any:
        if isinstance(self.residual, str) and self.residual == "linear":
            return None
        if isinstance(self.residual, str):
            from sklearn.ensemble import RandomForestRegressor

            return RandomForestRegressor(min_samples_leaf=5, random_state=0, n_jobs=self.n_jobs)
        return self.residual

    def _refuse_duplicates(self, Z: np.ndarray) -> None:
        correlation = np.abs(np.triu(Z.T @ Z / len(Z), 1))
        if (correlation > 1 - DUPLICATE).any():
            i, j = np.unravel_index(correlation.argmax(), correlation.shape)
            raise ValueError(
                f"{self._labels[i]} and {self._labels[j]} are perfectly correlated: their cross test would be the test"
                " of a candidate against itself; expected distinct candidates"
            )

    def _auxiliaries(
        self, Z: np.ndarray, x: np.ndarray, y: np.ndarray, candidates: Columns, fit_rows: Any = slice(None)
    ) -> np.ndarray:
        """A_j of all rows, with effects from ``fit_rows``."""
        if self.effect == "control_function":
            return control_function_auxiliary(Z, x, y, fit_rows)
        slopes = single_instrument_slopes(Z[fit_rows], x[fit_rows], y[fit_rows])
        require_first_stage(slopes, candidates)
        return linear_auxiliary(x, y, slopes)

    def _require_permutations(self, size: int) -> None:
        """Refuse fewer permutations than Holm's correction needs to reject any of the tests of a set."""
        tests = size * (size - 1)
        if tests / (self.n_permutations + 1) >= self.alpha:
            raise ValueError(
                f"n_permutations is {self.n_permutations}; expected at least {int(tests / self.alpha * (1 + 1e-12))}: with fewer no"
                f" p-value of the {tests} cross tests of {size} candidates can fall below level {self.alpha:g} (Holm),"
                ' and any set would pass; or take test="chi2"'
            )

    def _cross_p_values(
        self, test: str, Z: np.ndarray, x: np.ndarray, y: np.ndarray, candidates: Columns, rng: np.random.Generator
    ) -> np.ndarray:
        """p-value of A_i against Z_j on rows that did not estimate beta_i; NaN on the diagonal."""
        n, p = Z.shape
        order = rng.permutation(n)
        fit_rows, test_rows = np.split(order, [round(self.split * n)])
        if min(len(fit_rows), len(test_rows)) < 10:
            raise ValueError(f"split is {self.split} of {n} rows; expected at least 10 rows on each side")
        A = self._auxiliaries(Z, x, y, candidates, fit_rows)[test_rows]
        Z = Z[test_rows]
        p_values = np.full((p, p), np.nan)
        for i, j in permutations(range(p), 2):
            if test == "chi2":
                p_values[i, j] = chi2_p_value(A[:, i], Z[:, j])
            else:
                p_values[i, j] = permutation_p_value(A[:, i], Z[:, j], self.n_permutations, rng)
        return p_values

    def _select(self, D: np.ndarray, p_values: np.ndarray | None) -> tuple[list[Any], bool | None]:
        """Scored sets, the selected one first, and whether it passes its cross tests."""

        def passes(subset: tuple[int, ...]) -> bool:
            assert p_values is not None
            return bool(holm(np.array([p_values[pair] for pair in permutations(subset, 2)])).min() >= self.alpha)

        def search(size: int) -> list[Any]:
            return best_subsets(D, size, max_subsets=self.max_subsets)

        if self.n_valid != "auto":
            scored = search(self.n_valid)
            passed = None if p_values is None else passes(scored[0][0])
            if passed is False:
                message = f"the selected set does not pass its cross tests at level {self.alpha:g}"
                warnings.warn(f"{message}: fewer instruments may be valid", stacklevel=3)
            return scored, passed
        scored = []
        for size in range(len(D), 1, -1):
            scored = search(size)
            if passes(scored[0][0]):
                return scored, True
        message = f"no set of two or more candidates passes the cross tests at level {self.alpha:g}"
        if self.on_fail == "raise":
            raise NoValidSetError(
                f"{message}; expected at least two valid candidates (on_fail='warn' takes the best pair)"
            )
        warnings.warn(f"{message}; the pair with the smallest score is selected", stacklevel=3)
        return scored, False

    def _reason(self, j: int, chosen: list[int]) -> str:
        """The cross test with the selected set that candidate j violates most, and the score with j swapped in."""
        names, C = self._labels, self.directed_scores_
        value, i, k = max((C[i, k], i, k) for a in chosen for i, k in ((a, j), (j, a)))
        p_value = "" if self.p_values_ is None else f" (p {self.p_values_[i, k]:.2g})"
        swapped = min(set_score(self.pair_scores_, (*(c for c in chosen if c != out), j)) for out in chosen)
        return f"dCor(A[{names[i]}], {names[k]}) = {value:.3f}{p_value}; swapped in, the score is {swapped:.4f}"

    def _warn(self, slopes: np.ndarray, noise: np.ndarray, strength: np.ndarray) -> None:
        """Warn of selected instruments that are weak or disagree; an effect alone has standard error noise / strength."""
        for j in np.flatnonzero(self.support_):
            if self.first_stage_f_[j] < WEAK_F:
                warnings.warn(
                    f"{self._labels[j]} is selected with a first-stage F of {self.first_stage_f_[j]:.3g} (below"
                    f" {WEAK_F:g}): no linear first stage to speak of; pass a transform such as Z**2 when the relation"
                    " is even, or screen by min_first_stage_f",
                    WeakInstrumentWarning,
                    stacklevel=3,
                )
        if self.effect != "constant":
            return
        size, signs = np.abs(slopes), np.sign(slopes[np.abs(slopes) * strength > 2 * noise])
        if size.max() > DISAGREEMENT * size.min() or len(set(signs)) > 1:
            warnings.warn(
                f"the selected instruments give effects {self.betas_[self.support_]} that differ in sign or by more"
                f" than {DISAGREEMENT:g} times",
                WeakInstrumentWarning,
                stacklevel=3,
            )


def _scatter(values: np.ndarray, kept: np.ndarray, p: int) -> np.ndarray:
    """A (p, p) matrix with ``values`` in the rows and columns ``kept``, and NaN elsewhere."""
    full = np.full((p, p), np.nan)
    full[np.ix_(kept, kept)] = values
    return full
