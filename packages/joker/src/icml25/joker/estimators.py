"""scikit-learn estimators around the solver."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from icml25.joker.features import RandomFeatures
from icml25.joker.kernels import KERNELS, Kernel, kernel_function, mean_sqdist_gamma
from icml25.joker.losses import LOSSES, EpsilonInsensitive, Huber, Logistic, Loss, number
from icml25.joker.rows import RowSource, streamed_mean, take
from icml25.joker.solver import (
    NAMES,
    NUMBERS,
    DualResult,
    FeatureChunks,
    FeatureDual,
    KernelDual,
    checked,
    descend,
    one_of,
    partition,
    stream_seed,
)

DTYPES = {"float32": torch.float32, "float64": torch.float64}
GAMMA_ROWS = 10_000  # rows that the width rule looks at
FITTED = {
    "X_fit_", "_kernel", "random_weights_", "random_offset_", "dual_coef_", "coef_",
    "n_iter_", "n_epochs_", "duality_gap_", "relative_gap_", "history_",
}  # fmt: skip
Model = TypeVar("Model", bound="_Joker")


class _Joker(BaseEstimator):
    """What regressor and classifier share: checks, fitting, decision values, state."""

    _task: str
    loss: str | Loss
    C: float | int
    kernel: str | Kernel
    gamma: str | float | int
    n_features: int | None
    block_size: int
    max_epochs: int
    tol: float | int
    check_every: int
    block_order: str
    max_tr_iter: int
    max_cg_iter: int
    max_radius: float | int
    radius_decay: float | int
    radius_decay_every: int
    init: str
    warm_start: bool
    keep_dual: bool
    device: str | torch.device | None
    dtype: str
    random_state: int | np.random.RandomState | None
    verbose: int
    callback: Callable[[Any, dict[str, Any]], bool | None] | None
    dual_coef_: np.ndarray
    coef_: np.ndarray
    n_epochs_: int

    def _loss(self) -> Loss:
        loss, task = self.loss, self._task
        if isinstance(loss, Loss):
            if loss.task != task:
                raise ValueError(f"loss is for {loss.task}, got {loss!r} in {type(self).__name__}")
            return loss
        return LOSSES[one_of("loss", loss, [name for name, kind in LOSSES.items() if kind.task == task])]()

    def _check_parameters(self) -> None:
        self._options()
        for name, allowed in (("delta", "> 0"), ("epsilon", ">= 0")):
            if hasattr(self, name):
                number(name, getattr(self, name), allowed)
        if not callable(self.kernel):
            one_of("kernel", self.kernel, KERNELS)
        if self.n_features is not None:
            number("n_features", self.n_features, ">= 1", int)
            if callable(self.kernel):
                raise NotImplementedError(
                    f"random features need a shift-invariant kernel ({list(KERNELS)}), "
                    f"got the callable {self.kernel!r}; use n_features=None"
                )
        if isinstance(self.gamma, str):
            one_of("gamma", self.gamma, ["mean_sqdist"])
        else:
            number("gamma", self.gamma, "> 0")
        one_of("dtype", self.dtype, DTYPES)

    def _options(self) -> dict[str, Any]:
        """Return the solver's options, checked."""
        return checked({name: value for name, value in self.get_params(deep=False).items() if name in NUMBERS | NAMES})

    def __sklearn_tags__(self) -> Any:
        """Say that sparse input is for feature mode alone."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.n_features is not None
        return tags

    def _torch(self) -> tuple[torch.device, torch.dtype]:
        device = self.device if self.device is not None else "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(device), DTYPES[self.dtype]

    def _validate(self, X: Any, *targets: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Check X (and, when fitting, the targets) the way scikit-learn does, without a copy of X."""
        y: Any = targets[0] if targets else None
        y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
        values = np.asarray(y)
        if values.dtype.kind == "f" and values.size and values.ndim in (1, 2):
            streamed_mean(values.reshape(len(values), -1), torch.float64, name="y")
        if isinstance(X, Tensor):
            X = X.detach()
            if X.is_complex():
                raise ValueError(f"Complex data not supported: X is a tensor of {X.dtype}")
            if X.device.type != "cpu":
                return self._validate_on_device(X, *targets, **kwargs)
            X = X.float() if X.dtype == torch.bfloat16 else X
            X = X.numpy()
        kwargs |= {"dtype": "numeric", "ensure_all_finite": False, "reset": bool(targets)}
        kwargs["accept_sparse"] = "csr" if self.n_features is not None else False
        if targets:
            X, y = validate_data(self, X, y, **kwargs)
        else:
            X = validate_data(self, X, **kwargs)
        if X.dtype == np.float16:
            warnings.warn("X is float16: it is computed with in " + self.dtype, UserWarning, stacklevel=3)
        return X, y

    def _validate_on_device(self, X: Tensor, *targets: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """Check a tensor on an accelerator by its shape; its values are checked where the rows are streamed."""
        if X.ndim != 2 or 0 in X.shape:
            raise ValueError(f"X must be a non-empty (n, d) tensor, got shape {tuple(X.shape)}")
        y = None
        if targets:
            rows: Any = np.zeros((len(X), 1))
            _, y = validate_data(self, rows, *targets, **kwargs)
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features"
            )
        return X, y

    def _fit(self: Model, X: Any, targets: np.ndarray) -> Model:
        """Fit on checked X and finite targets (n, T)."""
        device, dtype = self._torch()
        options, loss, mean = self._options(), self._loss(), streamed_mean(X, DTYPES[self.dtype])
        resume = self.warm_start and hasattr(self, "dual_coef_")
        alpha, epochs = (self.dual_coef_, self.n_epochs_) if resume else (None, 0)
        for name in FITTED & vars(self).keys():
            delattr(self, name)
        if not resume:
            self.seed_ = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        # A shift-invariant kernel does not see the mean; subtracting it keeps float32 digits.
        self._shift = None if callable(self.kernel) or sparse.issparse(X) else mean
        source = RowSource(X, device, dtype, self._shift).resident()
        n = len(source)
        self.gamma_ = self._width(source)
        y = torch.from_numpy(np.ascontiguousarray(targets)).to(device, dtype)
        blocks = partition(n, options.pop("block_size"), self.seed_)
        if self.n_features is None:
            self.X_fit_, self._kernel = X, self.kernel
            aggregate = KernelDual(source, blocks, kernel_function(self.kernel, self.gamma_), y)
        else:
            features = RandomFeatures.draw(
                str(self.kernel), self.gamma_, X.shape[1], int(self.n_features), stream_seed(self.seed_, 3)
            ).to(device, dtype)
            self.random_weights_, self.random_offset_ = features.W.cpu().numpy(), features.b.cpu().numpy()
            aggregate = FeatureDual(source, blocks, features, features.n_features, y)
        if alpha is not None:
            if alpha.shape != tuple(y.shape):
                raise ValueError(
                    f"warm_start=True continues on the same rows: dual_coef_ is {alpha.shape}, "
                    f"the new targets {tuple(y.shape)}"
                )
            alpha = torch.from_numpy(alpha).to(device, dtype)
        result = descend(
            aggregate, source, blocks, y, loss, **options, seed=self.seed_, alpha=alpha, epochs=epochs,
            callback=self._report,
        )  # fmt: skip
        if not result.converged and not self._stopped:
            warnings.warn(
                f"max_epochs={self.max_epochs} reached at a relative duality gap of {result.relative_gap:.3g} "
                f"> tol={self.tol}",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    @contextmanager
    def _whole_models_only(self) -> Iterator[None]:
        """Put back the previous model when a fit ends early and has none of its own to show."""
        before = vars(self).copy()
        history = before.get("history_")
        try:
            yield
        except BaseException:
            if vars(self).get("history_", history) is history:
                vars(self).clear()
                vars(self).update(before)
            raise

    def _report(self, result: DualResult) -> bool:
        """Make the result so far the fitted model, all at once, and show it."""
        model = {
            "n_iter_": result.steps, "n_epochs_": result.epochs, "duality_gap_": result.gap,
            "relative_gap_": result.relative_gap, "history_": result.history,
        }  # fmt: skip
        if result.theta is not None:
            model["coef_"] = result.theta.cpu().numpy()
        if result.theta is None or self.keep_dual:
            model["dual_coef_"] = result.alpha.cpu().numpy()
        vars(self).update(model)
        row = result.history[-1]
        if self.verbose:
            print(f"epoch {row['epoch']:4d}  primal {row['primal']:.6e}  relative gap {row['relative_gap']:.2e}")
        self._stopped = self.callback is not None and bool(self.callback(self, row))
        return self._stopped

    def _width(self, source: RowSource) -> float:
        if callable(self.kernel):
            return 1.0
        if not isinstance(self.gamma, str):
            return float(self.gamma)
        sample = torch.randperm(len(source), generator=stream_seed(self.seed_, 4))[:GAMMA_ROWS]
        x = take(source, sample.sort().values)
        return mean_sqdist_gamma(x.to_dense() if x.is_sparse else x)

    def _decision(self, X: Any) -> np.ndarray:
        """Return decision values (n, T) in float64; computed in float64 on a CPU, in ``dtype`` elsewhere."""
        check_is_fitted(self)
        X, _ = self._validate(X)
        device, dtype = self._torch()
        streamed_mean(X, dtype)
        dtype = torch.float64 if device.type == "cpu" else dtype

        def on_device(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device, dtype)

        shift = None if sparse.issparse(X) else self._shift
        source = RowSource(X, device, dtype, shift)
        blocks = torch.arange(len(source)).split(int(self.block_size))
        if hasattr(self, "coef_"):
            offset = self.random_offset_
            if shift is None and self._shift is not None:  # W^T (x - shift) + b, with sparse x
                offset = offset - self._shift @ self.random_weights_
            features = RandomFeatures(on_device(self.random_weights_), on_device(offset))
            theta = on_device(self.coef_)
            chunks, values = (
                FeatureChunks(features, features.n_features, theta),
                theta.new_zeros(len(source), theta.shape[1]),
            )
            for block in blocks:
                for columns, psi in chunks(take(source, block)):
                    values[block] += psi @ theta[columns]
            return values.double().cpu().numpy()
        train, alpha = RowSource(self.X_fit_, device, dtype, shift), on_device(self.dual_coef_)
        kernel = kernel_function(self._kernel, self.gamma_)
        values = alpha.new_zeros(len(source), alpha.shape[1])
        for support in torch.from_numpy(self.dual_coef_.any(1)).nonzero()[:, 0].split(4 * int(self.block_size)):
            z = take(train, support)
            for block in blocks:
                values[block] += kernel(take(source, block), z) @ alpha[support]
        return values.double().cpu().numpy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one .npz file (arrays and JSON, no pickle), replacing it at once when complete.

        Args:
            path: file to write; its name is taken as it is.

        Raises:
            ValueError: a parameter or label that JSON cannot hold (callables, a Loss instance, a RandomState). The
                callback is left out.
        """
        check_is_fitted(self)
        parameters = self.get_params() | {"callback": None}
        state, arrays = {}, {}
        for name, value in vars(self).items():
            if name in parameters:
                continue
            if isinstance(value, np.ndarray) and value.dtype == object:
                if not all(isinstance(v, str) for v in value):
                    raise ValueError(
                        f"cannot save {name}: labels of mixed types {value!r}; expected strings or numbers"
                    )
                state[name], value = {"dtype": "object"}, value.astype(str)
            if isinstance(value, np.ndarray):
                arrays[name] = np.asarray(value)
            elif sparse.issparse(value):
                raise ValueError(f"cannot save {name}: sparse")
            else:
                state[name] = value
        try:
            meta = json.dumps(
                {"class": type(self).__name__, "parameters": parameters, "state": state},
                default=lambda v: v.item() if isinstance(v, np.generic) else json.JSONEncoder().default(v),
            )
        except TypeError as error:
            raise ValueError(f"cannot save a parameter that JSON cannot hold: {error}") from error
        partial = Path(f"{os.fspath(path)}.partial")
        with open(partial, "wb") as file:
            np.savez(file, meta=np.array(meta), **arrays)
        os.replace(partial, path)

    @classmethod
    def load(cls: type[Model], path: str | os.PathLike[str]) -> Model:
        """Return the estimator that :meth:`save` wrote.

        Args:
            path: the file.

        Raises:
            ValueError: the file holds another class, or is not one that :meth:`save` wrote, or not all of one.
        """
        try:
            with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            meta = json.loads(str(arrays.pop("meta")))
            if meta["class"] != cls.__name__:
                raise ValueError(f"it holds a {meta['class']}, expected a {cls.__name__}")
            estimator = cls(**meta["parameters"])
            for name, value in meta["state"].items():
                if isinstance(value, dict):
                    arrays[name] = arrays[name].astype(object)
                else:
                    setattr(estimator, name, value)
        except (ValueError, TypeError, KeyError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"cannot load {os.fspath(path)}: {error!r}") from error
        for name, value in arrays.items():
            setattr(estimator, name, value)
        return estimator


class JokerRegressor(RegressorMixin, _Joker):
    """Kernel regression (ridge, Huber, support vector) trained by dual block coordinate descent with a trust region.

    Parameters:
        loss: "squared" (y-u)^2/2, "huber", "epsilon_insensitive", or a :class:`Loss` of your own.
        C: weight of the summed loss against half the squared norm (1 / lambda); > 0.
        delta: where the Huber loss turns linear; > 0.
        epsilon: half width of the insensitive tube; >= 0.
        kernel: "rbf" exp(-gamma ||x-z||^2), "laplace" exp(-gamma ||x-z||_1), "student" 1 / (1 + gamma ||x-z||^2), or a
            callable (n, d), (m, d) -> (n, m) on tensors (exact mode only).
        gamma: width of a named kernel, > 0; "mean_sqdist" takes 1 / the mean squared distance of distinct pairs
            among up to 10,000 random rows.
        n_features: number of random Fourier features M; None for the exact kernel (O(n^2 d) an epoch).
        block_size: rows in a block, B.
        max_epochs: passes over the rows at most.
        tol: relative duality gap to stop at.
        check_every: epochs between gap checks.
        block_order: "permute" (a new order each epoch), "random" (with replacement) or "cyclic".
        max_tr_iter: trust-region iterations on a block at most.
        max_cg_iter: conjugate-gradient iterations in each at most.
        max_radius: cap of the trust radius of a block's dual coefficients, in units of max |y| or of their largest
            finite bound (C; C ``delta`` for "huber"), whichever is larger; multiplied by ``radius_decay`` every
            ``radius_decay_every`` block updates, down to 1e-3.
        radius_decay: in (0, 1].
        radius_decay_every: block updates between two decays.
        init: "default", or "random" (uniform in the box where it is bounded).
        center_y: subtract the target mean before fitting and add it back at prediction; the model has no bias.
        warm_start: continue from the last fit's dual (same rows): k + m epochs give what k+m uninterrupted ones give.
        keep_dual: keep ``dual_coef_`` after fitting in feature mode; without it the model is O(M (d + T)).
        device: torch device; None for CUDA where there is one, else CPU.
        dtype: "float32" or "float64".
        random_state: seed of the features, the blocks and their order.
        verbose: 1 prints a line at each gap check.
        callback: ``callback(estimator, history_row)`` at each check, when the estimator can already predict; returning
            True stops.

    Attributes:
        dual_coef_: (n, T) dual coefficients.
        coef_: (M, T) primal coefficients, in feature mode, with ``random_weights_`` (d, M) and ``random_offset_`` (M,).
        X_fit_: the training rows (a reference, not a copy), in exact mode.
        gamma_: the width used.
        n_iter_: block updates done.
        n_epochs_: epochs done.
        duality_gap_: P - D at the last check, a certified bound on the suboptimality.
        relative_gap_: duality_gap_ / |P|.
        history_: one dict per check: epoch, primal, dual, gap, relative_gap, seconds, tr_iterations, products.
        n_features_in_: number of input columns.

    Raises:
        ValueError: a parameter out of range, or data that are not finite numbers; the message names it.

    Source: Algorithms 1-3 of the paper.
    """

    _task = "regression"

    def __init__(
        self,
        loss="squared",
        *,
        C=1.0,
        delta=1.0,
        epsilon=0.1,
        kernel="rbf",
        gamma="mean_sqdist",
        n_features=None,
        block_size=512,
        max_epochs=100,
        tol=1e-3,
        check_every=1,
        block_order="permute",
        max_tr_iter=50,
        max_cg_iter=100,
        max_radius=64.0,
        radius_decay=0.5,
        radius_decay_every=1000,
        init="default",
        center_y=True,
        warm_start=False,
        keep_dual=True,
        device=None,
        dtype="float32",
        random_state=None,
        verbose=0,
        callback=None,
    ):
        self.loss = loss
        self.C = C
        self.delta = delta
        self.epsilon = epsilon
        self.kernel = kernel
        self.gamma = gamma
        self.n_features = n_features
        self.block_size = block_size
        self.max_epochs = max_epochs
        self.tol = tol
        self.check_every = check_every
        self.block_order = block_order
        self.max_tr_iter = max_tr_iter
        self.max_cg_iter = max_cg_iter
        self.max_radius = max_radius
        self.radius_decay = radius_decay
        self.radius_decay_every = radius_decay_every
        self.init = init
        self.center_y = center_y
        self.warm_start = warm_start
        self.keep_dual = keep_dual
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback

    def __sklearn_tags__(self) -> Any:
        """Say that y may have several columns."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _loss(self) -> Loss:
        if self.loss == "huber":
            return Huber(self.delta)
        return EpsilonInsensitive(self.epsilon) if self.loss == "epsilon_insensitive" else super()._loss()

    def fit(self, X: Any, y: Any) -> JokerRegressor:
        """Fit to X (n, d) and real targets y, (n,) or (n, T); numpy, memory map, torch, or CSR in feature mode."""
        self._check_parameters()
        with self._whole_models_only():
            X, y = self._validate(X, y, multi_output=True, y_numeric=True)
            targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
            streamed_mean(targets, DTYPES[self.dtype], name="y")
            self._y_mean = targets.mean(0) if self.center_y else np.zeros(targets.shape[1])
            self._y_ndim = y.ndim
            return self._fit(X, targets - self._y_mean)

    def predict(self, X: Any) -> np.ndarray:
        """Return predictions, shaped as y was."""
        values = self._decision(X) + self._y_mean
        return values[:, 0] if self._y_ndim == 1 else values


def _is_logistic(classifier: JokerClassifier) -> bool:
    return classifier.loss == "logistic" or isinstance(classifier.loss, Logistic)


class JokerClassifier(ClassifierMixin, _Joker):
    """Kernel classification (L1 and L2 support vector machine, logistic), one-vs-rest for several classes.

    Parameters and attributes are those of :class:`JokerRegressor`, but for these.

    Parameters:
        loss: "squared_hinge" max(0, 1-yu)^2/2, "hinge" or "logistic", or a :class:`Loss` of your own.

    Attributes:
        classes_: the labels, sorted; column k of ``dual_coef_`` is for class k (two classes share one column, positive
            for ``classes_[1]``).

    Raises:
        ValueError: a parameter out of range, data that are not finite numbers, or a single class.

    Source: Algorithms 1-3 of the paper.
    """

    _task = "classification"

    def __init__(
        self,
        loss="squared_hinge",
        *,
        C=1.0,
        kernel="rbf",
        gamma="mean_sqdist",
        n_features=None,
        block_size=512,
        max_epochs=100,
        tol=1e-3,
        check_every=1,
        block_order="permute",
        max_tr_iter=50,
        max_cg_iter=100,
        max_radius=64.0,
        radius_decay=0.5,
        radius_decay_every=1000,
        init="default",
        warm_start=False,
        keep_dual=True,
        device=None,
        dtype="float32",
        random_state=None,
        verbose=0,
        callback=None,
    ):
        self.loss = loss
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.n_features = n_features
        self.block_size = block_size
        self.max_epochs = max_epochs
        self.tol = tol
        self.check_every = check_every
        self.block_order = block_order
        self.max_tr_iter = max_tr_iter
        self.max_cg_iter = max_cg_iter
        self.max_radius = max_radius
        self.radius_decay = radius_decay
        self.radius_decay_every = radius_decay_every
        self.init = init
        self.warm_start = warm_start
        self.keep_dual = keep_dual
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.callback = callback

    def fit(self, X: Any, y: Any) -> JokerClassifier:
        """Fit to X (n, d) and labels y (n,); numpy, memory map, torch, or CSR in feature mode."""
        self._check_parameters()
        with self._whole_models_only():
            X, y = self._validate(X, y)
            y = column_or_1d(y, warn=True)
            check_classification_targets(y)
            binarizer = LabelBinarizer(neg_label=-1)
            targets = binarizer.fit_transform(y)
            self.classes_ = binarizer.classes_
            if len(self.classes_) < 2:
                raise ValueError(f"y holds one class only, {self.classes_[0]!r}; expected at least two classes")
            return self._fit(X, targets.astype(np.float64))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return decision values, (n,) for two classes (positive: ``classes_[1]``), else (n, T)."""
        values = self._decision(X)
        return values[:, 0] if len(self.classes_) == 2 else values

    def predict(self, X: Any) -> np.ndarray:
        """Return labels, (n,)."""
        values = self._decision(X)
        return self.classes_[(values[:, 0] > 0).astype(int) if values.shape[1] == 1 else values.argmax(1)]

    @available_if(_is_logistic)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities (n, classes) in the order of ``classes_``: sigmoids, one-vs-rest ones normalised."""
        p = expit(self._decision(X).astype(np.float64))
        if p.shape[1] == 1:
            return np.hstack([1 - p, p])
        return p / p.sum(1, keepdims=True)
