"""Epochs with inverse gap weighting (Algorithm 2)."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from icml25.cdf_bandit.checks import (
    LARGEST,
    check_actions,
    check_contexts,
    check_integer,
    check_number,
    check_numbers,
    check_outcomes,
)
from icml25.cdf_bandit.measure import Measure
from icml25.cdf_bandit.regression import CDFRegressor

WIDTHS = ("theorem", "bound", "rank")
BIT_GENERATORS = ("PCG64", "PCG64DXSM")  # their state is plain integers


def inverse_gap_weighting(values: ArrayLike, eta: float | int) -> Float[np.ndarray, "n A"]:
    """Probabilities 1 / (A + eta * gap) for all but the best action, which takes the rest (step 3).

    Parameters
    ----------
    values : (n, A) estimated utility of each action; the lowest index is the best among ties.
    eta : >= 0; 0 is uniform, infinity greedy.

    Returns
    -------
    (n, A), rows sum to 1

    Raises
    ------
    TypeError, ValueError: values are no finite (n, A) numbers with A >= 1, or eta is negative or NaN.
    """
    values = check_numbers(values, "values", ndim=2)
    eta = check_number(eta, "eta", 0, math.inf, open_low=False)
    n, A = values.shape
    if A == 0:
        raise ValueError(f"values must have a column per action, got shape {values.shape}")
    best = values.argmax(1)
    with np.errstate(over="ignore"):
        gap = values[np.arange(n), best][:, None] - values
        p = 1 / (A + np.multiply(eta, gap, where=gap > 0, out=np.zeros_like(gap)))
    p[np.arange(n), best] = 0
    p[np.arange(n), best] = 1 - p.sum(1)
    return p


class EpochBandit(ABC):
    """Rounds in epochs of doubling length; a policy is fixed within an epoch and learned from the one before.

    Parameters
    ----------
    n_actions : A.
    domain : (lo, hi) of the outcomes.
    exploration : c >= 0 in eta = c sqrt(A n) / width; 0 is the uniform policy, infinity the greedy one.
    delta : confidence level in (0, 1).
    first_epoch : m0 >= 0; the first epoch has 2^m0 rounds of uniform actions.
    use_all_data : learn from all epochs before, not only the last.
    strict : refuse an update that is not the last act's.
    random_state : seed, generator or None.
    """

    def __init__(
        self,
        n_actions: int,
        domain: tuple[float, float],
        *,
        exploration: float | int = 1.0,
        delta: float | int = 0.05,
        first_epoch: int = 6,
        use_all_data: bool = False,
        strict: bool = True,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.n_actions = check_integer(n_actions, "n_actions", 1)
        self.domain = domain
        self.exploration = check_number(exploration, "exploration", 0, math.inf, open_low=False)
        self.delta = check_number(delta, "delta", 0, 1, open_high=True)
        self.first_epoch = check_integer(first_epoch, "first_epoch", 0)
        self.use_all_data, self.strict = bool(use_all_data), bool(strict)
        self._start(random_state)

    def _start(self, random_state: int | np.random.Generator | None) -> None:
        self.rng = np.random.default_rng(random_state)
        self.epoch_, self.eta_, self.n_fits_, self.n_features_ = 1, 0.0, 0, None
        self._data: list[tuple[Any, Any, Any]] = []  # of the epoch,
        self._seen = 0  # and its rows
        self._pending: tuple[Any, Any] | None = None

    def fresh(self, random_state: int | np.random.Generator | None = None) -> "EpochBandit":
        """A copy with the same settings that has seen nothing.

        Parameters
        ----------
        random_state : seed of the copy.

        Returns
        -------
        EpochBandit
        """
        other = copy.copy(self)
        other._start(random_state)
        return other

    @abstractmethod
    def _learn(
        self, x: Float[np.ndarray, "n d"], a: Int[np.ndarray, " n"], y: Float[np.ndarray, " n"], delta: float
    ) -> tuple[float, int]:
        """Fit; return the width of the estimate and the number of rows that it used."""

    @abstractmethod
    def _values(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n A"]:
        """Estimated utility of each action."""

    @property
    def rounds_left_(self) -> int:
        """Rounds until the epoch ends and the policy is learned anew."""
        return 2 ** (self.first_epoch + self.epoch_ - 1) - self._seen

    def probabilities(self, x: ArrayLike) -> Float[np.ndarray, "*n A"]:
        """Probability of each action.

        Parameters
        ----------
        x : one context (d,) or several (n, d).

        Returns
        -------
        (A,) or (n, A)

        Raises
        ------
        TypeError, ValueError: bad contexts.
        """
        rows = check_numbers(x, "x")
        X = check_contexts(rows[None] if rows.ndim == 1 else rows, self.n_features_)
        if self.epoch_ == 1 or self.exploration == 0:
            p = np.full((len(X), self.n_actions), 1 / self.n_actions)
        else:
            p = inverse_gap_weighting(self._values(X), self.eta_)
        return p[0] if rows.ndim == 1 else p

    def act_batch(self, X: ArrayLike) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "n A"]]:
        """Draw an action for each context from the epoch's policy.

        Parameters
        ----------
        X : (n, d) contexts, no more than ``rounds_left_`` when they are to be updated with.

        Returns
        -------
        (n,) actions and (n, A) probabilities

        Raises
        ------
        TypeError, ValueError: bad contexts.
        """
        x = check_contexts(X, self.n_features_)
        p = self.probabilities(x)
        actions = (self.rng.random(len(x))[:, None] >= p.cumsum(1)[:, :-1]).sum(1)
        self._pending = x, actions
        return actions, p

    def act(self, x: ArrayLike) -> int:
        """Draw an action for one context.

        Parameters
        ----------
        x : (d,) context.

        Returns
        -------
        int

        Raises
        ------
        TypeError, ValueError: a bad context.
        """
        return int(self.act_batch(check_numbers(x, "x", ndim=1)[None])[0][0])

    def update_batch(self, X: ArrayLike, actions: ArrayLike, y: ArrayLike) -> None:
        """Take in outcomes; the last one of an epoch triggers the learning of the next policy.

        Parameters
        ----------
        X, actions, y : contexts (n, d), the actions taken (n,), their outcomes (n,).

        Raises
        ------
        TypeError, ValueError: bad arguments, more rows than ``rounds_left_``, or (``strict``) not what was acted last;
            or the regression at the epoch's end fails. Then nothing has changed, and the update can be repeated.
        """
        x = check_contexts(X, self.n_features_)
        a = check_actions(actions, len(x), self.n_actions)
        outcome = self._outcomes(y, len(x))
        if len(x) > self.rounds_left_:
            raise ValueError(
                f"{len(x)} rows, but the epoch has {self.rounds_left_} round(s) left, after which the policy changes: act "
                "and update in batches of at most rounds_left_"
            )
        if self.strict and not (
            self._pending is not None and np.array_equal(x, self._pending[0]) and np.array_equal(a, self._pending[1])
        ):
            acted = (
                "nothing" if self._pending is None else f"actions {self._pending[1][:5]} for X {self._pending[0][:1]}"
            )
            raise ValueError(
                f"update with actions {a[:5]} for X {x[:1]} ..., but acted last was {acted} ...; "
                "pass strict=False for delayed or logged data"
            )
        if len(x) == self.rounds_left_:
            self._next_epoch([*self._data, (x, a, outcome)])
        else:
            self._data.append((x, a, outcome))
            self._seen += len(x)
        self._pending, self.n_features_ = None, x.shape[1]

    def update(self, x: ArrayLike, action: Any, y: Any) -> None:
        """Take in one outcome.

        Parameters
        ----------
        x : (d,) context.
        action : the action taken.
        y : its outcome.

        Raises
        ------
        TypeError, ValueError: as for update_batch.
        """
        self.update_batch(check_numbers(x, "x", ndim=1)[None], np.asarray([action]), np.asarray([y]))

    def _outcomes(self, y: Any, n: int) -> Float[np.ndarray, " n"]:
        return check_outcomes(y, n, self.domain, clip=False)

    def _next_epoch(self, data: list[tuple[Any, Any, Any]]) -> None:
        x, a, y = (np.concatenate(part) for part in zip(*data, strict=True))
        m = self.epoch_ + 1
        if self.exploration > 0:
            width, n = self._learn(x, a, y, self.delta / (2 * m**2))
            self.eta_ = self.exploration * math.sqrt(self.n_actions * n) / width
            self.n_fits_ += 1
        self.epoch_, self._data, self._seen = m, [], 0


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Python's own scalars, and infinity as a string, which JSON has no number for."""
    values = {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}
    return {key: "inf" if value == math.inf else value for key, value in values.items()}


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.inf if value == "inf" else value for key, value in values.items()}


class CDFBandit(EpochBandit):
    """Contextual bandit for any utility of the outcome's distribution (Algorithm 2).

    Epochs of 2^m0, 2^(m0+1), ... rounds. The first takes uniform actions; before each later one the conditional CDF is
    regressed on the epoch before, and actions are drawn by inverse gap weighting of the utility of the predicted CDFs.

    Parameters
    ----------
    basis : phi, see ``LogisticBasis``.
    n_actions : A.
    utility : u(F, s, m), such as ``CVaR(0.1)``.
    exploration : c >= 0 in eta = c sqrt(A n) / E, default 1; 0 is the uniform policy, infinity the greedy one. The theory's
        own 1/(2 L sqrt(C)) explores far too much; 10 to 20 does well.
    delta : confidence level in (0, 1); epoch m uses delta/(2 m^2).
    first_epoch : m0 >= 0, default 6: 64 rounds.
    width : E, "theorem" (Thm 3.6), "bound" (Lemma 3.7) or "rank" (sqrt(max(N, 1) log(n/delta))).
    s0 : for width="bound"; None takes the sum of lambda_k^gamma.
    use_all_data : regress on all epochs before; the theory needs the last one only.
    scale_by_lipschitz : divide eta by the utility's Lipschitz constant.
    regressor : ``CDFRegressor`` whose settings are taken (its basis and n_actions are replaced); None for the defaults.
    strict : refuse an update that is not the last act's.
    random_state : seed, generator or None.

    Attributes
    ----------
    epoch_, rounds_left_ : the epoch, from 1, and its rounds to go.
    eta_ : exploration parameter of the epoch.
    n_fits_ : calls of the regression so far.
    regressor_ : the ``CDFRegressor`` behind the policy.

    Raises
    ------
    TypeError, ValueError: naming the argument.

    Source: Algorithm 2, Thm 4.2.
    """

    def __init__(
        self,
        basis: Any,
        n_actions: int,
        utility: Callable[..., Any],
        *,
        exploration: float | int = 1.0,
        delta: float | int = 0.05,
        first_epoch: int = 6,
        width: str = "theorem",
        s0: float | int | None = None,
        use_all_data: bool = False,
        scale_by_lipschitz: bool = False,
        regressor: CDFRegressor | None = None,
        strict: bool = True,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        if width not in WIDTHS:
            raise ValueError(f"width must be one of {', '.join(WIDTHS)}, got {width!r}")
        if not callable(utility):
            raise TypeError(f"utility must be a function u(F, s, m) or an object like CVaR(0.1), got {utility!r}")
        if not hasattr(basis, "domain"):
            raise TypeError(f"basis has no domain; expected an object like LogisticBasis, got {basis!r}")
        if regressor is not None and not isinstance(regressor, CDFRegressor):
            raise TypeError(f"regressor must be a CDFRegressor, got {regressor!r}")
        lipschitz = 1.0
        if scale_by_lipschitz:
            lo, hi = basis.domain
            if hasattr(utility, "lipschitz_on"):
                lipschitz = utility.lipschitz_on(lo, hi)  # type: ignore[attr-defined]
            elif hasattr(utility, "lipschitz"):
                lipschitz = utility.lipschitz  # type: ignore[attr-defined]
            else:
                raise ValueError(f"scale_by_lipschitz needs utility.lipschitz, which {utility!r} has not")
            lipschitz = check_number(lipschitz, "utility.lipschitz", 0, LARGEST)
        self.basis, self.utility, self.width = basis, utility, width
        self.s0 = None if s0 is None else check_number(s0, "s0", 0, math.inf)
        self.scale_by_lipschitz, self._lipschitz = bool(scale_by_lipschitz), lipschitz
        self.regressor = CDFRegressor(basis, n_actions) if regressor is None else regressor.fresh()
        self.regressor.set_params(basis=basis, n_actions=n_actions)
        super().__init__(
            n_actions,
            basis.domain,
            exploration=exploration,
            delta=delta,
            first_epoch=first_epoch,
            use_all_data=use_all_data,
            strict=strict,
            random_state=random_state,
        )

    def _start(self, random_state: int | np.random.Generator | None) -> None:
        super()._start(random_state)
        self.regressor_ = self.regressor.fresh()

    def _outcomes(self, y: Any, n: int) -> Float[np.ndarray, " n"]:
        return check_outcomes(y, n, self.domain, clip=self.regressor.clip)

    def _learn(
        self, x: Float[np.ndarray, "n d"], a: Int[np.ndarray, " n"], y: Float[np.ndarray, " n"], delta: float
    ) -> tuple[float, int]:
        model = copy.copy(self.regressor_)  # the old one stays if anything fails
        model = (model.partial_fit if self.use_all_data else model.fit)(x, a, y)
        n = model.n_samples_
        if self.width == "theorem":
            width = model.error_bound(delta)
        elif self.width == "bound":
            width = model.data_free_bound(delta, s0=self.s0)
        else:
            width = math.sqrt(max(model.rank_, 1) * math.log(n / delta))
        self.regressor_ = model
        return width * self._lipschitz, n

    def _values(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n A"]:
        return self.regressor_.predict_utility(x, self.utility)

    def to_dict(self) -> dict[str, Any]:
        """The whole state as JSON-able values, but for basis and utility, which are code.

        Returns
        -------
        dict

        Raises
        ------
        ValueError: random_state was a generator whose state is not plain integers.
        """
        rng = self.rng.bit_generator.state
        if rng["bit_generator"] not in BIT_GENERATORS:
            raise ValueError(f"a generator of kind {rng['bit_generator']} cannot be stored; use {BIT_GENERATORS[0]}")
        names = ["exploration", "delta", "first_epoch", "width", "s0", "use_all_data", "scale_by_lipschitz", "strict"]
        settings = {name: getattr(self, name) for name in names}
        params = self.regressor.get_params()
        measure = params.pop("measure")
        del params["basis"], params["n_actions"]
        model = self.regressor_
        return {
            "n_actions": self.n_actions,
            "settings": _plain(settings),
            "regressor": _plain(params),
            "measure": measure
            and {
                "points": measure.points.tolist(),
                "weights": measure.weights.tolist(),
                "edges": None if measure.edges is None else measure.edges.tolist(),
            },
            "epoch": self.epoch_,
            "eta": _plain({"eta": self.eta_})["eta"],
            "n_fits": self.n_fits_,
            "n_features": self.n_features_,
            "data": [[part.tolist() for part in batch] for batch in self._data],
            "pending": self._pending and [part.tolist() for part in self._pending],
            "statistics": [model._kernel.tolist(), model._moment.tolist(), model.n_samples_]
            if hasattr(model, "_kernel")
            else None,
            "rng": rng,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], basis: Any, utility: Callable[..., Any]) -> "CDFBandit":
        """The bandit that ``to_dict`` stored, with the same future.

        Parameters
        ----------
        state : what to_dict returned, straight or by way of JSON.
        basis, utility : those of the stored bandit.

        Returns
        -------
        CDFBandit

        Raises
        ------
        ValueError: state lacks a key or names an unknown generator.
        """
        try:
            measure = state["measure"]
            if measure is not None:
                edges = measure["edges"]
                measure = Measure(
                    np.array(measure["points"], float),
                    np.array(measure["weights"], float),
                    None if edges is None else np.array(edges, float),
                )
            regressor = CDFRegressor(basis, state["n_actions"], measure=measure, **_numbers(state["regressor"]))
            self = cls(basis, state["n_actions"], utility, regressor=regressor, **_numbers(state["settings"]))
            kind = state["rng"]["bit_generator"]
            if kind not in BIT_GENERATORS:
                raise ValueError(f"state names an unknown generator {kind!r}")
            bits = getattr(np.random, kind)()
            bits.state = state["rng"]
            self.rng = np.random.Generator(bits)
            self.epoch_, self.eta_, self.n_fits_ = state["epoch"], float(state["eta"]), state["n_fits"]
            self.n_features_ = state["n_features"]
            self._data = [(np.array(x, float), np.array(a, np.int64), np.array(y, float)) for x, a, y in state["data"]]
            self._seen = sum(len(y) for _, _, y in self._data)
            if state["pending"] is not None:
                x, a = state["pending"]
                self._pending = np.array(x, float), np.array(a, np.int64)
            if state["statistics"] is not None:
                kernel, moment, n = state["statistics"]
                model = self.regressor_
                model._solve(model._measure(), np.array(kernel), np.array(moment), n, self.n_features_)
        except (KeyError, TypeError) as error:
            raise ValueError(f"state is not what to_dict returns: {error!r}") from error
        return self
