"""scikit-learn classifier around the network: views in, labels and uncertainties out."""

import copy
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import safetensors
import torch
from jaxtyping import Float, Shaped
from safetensors.torch import save_file
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from .fusion import FUSIONS
from .loss import fuml_loss
from .membership import check_norm_order
from .model import FUML, FUMLOutput
from .views import View, cut, given_as_views, read_views

__all__ = ["FUMLClassifier", "FusionReport"]

Record = dict[str, int | float]  # of an epoch
Callback = Callable[["FUMLClassifier", Record], Any]
FORMAT = "icml25.fuml/1"
ROWS_AT_ONCE = 4096  # rows that are dense and float32 at a time outside training


@dataclass(frozen=True)
class FusionReport:
    """Why a sample was classified as it was: one row per sample, one column per view.

    Attributes:
        label: decision, (n,).
        uncertainty: uncertainty of the decision in [0, 1], (n,).
        view_uncertainty: uncertainty of each view alone, (n, V).
        conflict: conflict of each view with the others in [0, 1], (n, V).
        weights: fusion weights, (n, V), rows sum to 1.
        view_label: decision of each view alone, (n, V).
    """

    label: Shaped[np.ndarray, " rows"]
    uncertainty: Float[np.ndarray, " rows"]
    view_uncertainty: Float[np.ndarray, "rows views"]
    conflict: Float[np.ndarray, "rows views"]
    weights: Float[np.ndarray, "rows views"]
    view_label: Shaped[np.ndarray, "rows views"]


@dataclass(frozen=True)
class _TrainingData:
    views: list[View]
    labels: np.ndarray
    weight: np.ndarray | None
    rows: np.ndarray  # those with a positive weight


class FUMLClassifier(ClassifierMixin, BaseEstimator):
    """Multi-view classifier whose uncertainty rises where views are noisy or contradict each other.

    An error or Ctrl-C while training takes back the epoch it came in: the estimator is that of the last finished epoch,
    or as it was before the call if there is none.

    The input ``X`` of all methods is a sequence or mapping of 2-D arrays with the same rows (dense, sparse or data
    frames), or, with ``views`` set, one 2-D array that is cut into views. Missing values are out of the method's scope.

    Args:
        views: how to cut one 2-D array: a number of contiguous blocks of (nearly) equal width, or a list with a
            (start, stop) tuple or a list of column numbers per view; a list of two numbers means two columns, also
            where it was a tuple before it went through JSON. None: X must come as views.
        n_layers: linear layers per view.
        hidden_width: width of the hidden layers; None: that of the view, as in the paper. Views of few columns learn
            better with more.
        dropout: dropout of hidden units, in [0, 1).
        head_bias: initial bias of the logits; None: torch's default, as in the paper. A class whose logit is negative
            for every sample gets no gradient, so 0.5, say, helps where views or classes stay dead.
        p: order of the norm in Eq. 3, >= 1.
        fusion: "drf", "average", "uncertainty" or "conflict", see :func:`~icml25.fuml.fusion_weights`.
        epochs: passes over the training data.
        batch_size: samples per step.
        lr: learning rate of Adam.
        weight_decay: weight decay of Adam (the official code's 1e-5; the paper's text says 1e-4).
        scale: "minmax" scales every feature to [0, 1] on the training rows (in float64, not clipped), None leaves it.
        validation_fraction: share of the training rows in [0, 1) held out (stratified); if positive, the epoch with
            the least validation loss is kept instead of the last one.
        device: a torch device, or "auto" (CUDA where there is one).
        random_state: seed of initial weights, shuffling, dropout and split.
        warm_start: a further ``fit`` starts from the fitted network and optimiser and trains ``epochs`` epochs more.
        verbose: print one line per epoch.

    Attributes:
        classes_: labels, (K,).
        n_views_: number of views V.
        module_: the :class:`~icml25.fuml.FUML` network.
        scalers_: one MinMaxScaler per view, or None.
        history_: per epoch a dict with "epoch" (from 1), "loss" and, with validation, "validation_loss" and
            "validation_accuracy".
        n_features_in_: columns of all views together.
        feature_names_in_: column names, where X was a frame or all views were.

    Source:
        Duan et al., Deep Fuzzy Multi-view Learning for Reliable Classification, ICML 2025.
    """

    _network = FUML

    def __init__(
        self,
        views: Any = None,
        *,
        n_layers: Any = 3,
        hidden_width: Any = None,
        head_bias: Any = None,
        dropout: Any = 0.1,
        p: Any = 3,
        fusion: Any = "drf",
        epochs: Any = 500,
        batch_size: Any = 100,
        lr: Any = 1e-3,
        weight_decay: Any = 1e-5,
        scale: Any = "minmax",
        validation_fraction: Any = 0.0,
        device: Any = "auto",
        random_state: Any = None,
        warm_start: Any = False,
        verbose: Any = False,
    ) -> None:
        self.views = views
        self.n_layers = n_layers
        self.hidden_width = hidden_width
        self.head_bias = head_bias
        self.dropout = dropout
        self.p = p
        self.fusion = fusion
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.scale = scale
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose

    # ------------------------------------------------------------------ training

    def fit(self, X: Any, y: Any, sample_weight: Any = None, callback: Callback | None = None) -> "FUMLClassifier":
        """Train on views and labels.

        Args:
            X: views, see the class.
            y: labels of at least two classes, (n,).
            sample_weight: weights >= 0 in the loss, (n,); rows of weight 0 are left out altogether.
            callback: called as ``callback(estimator, record)`` after each epoch with that epoch's ``history_`` record;
                training stops when it returns True, and :meth:`resume` continues it.

        Returns:
            The estimator.

        Raises:
            ValueError: a parameter out of its range, NaN or infinity in a view, views that don't fit each other or y,
                fewer than two classes, targets that are not classes.
            TypeError: X is one 2-D array though ``views`` is None, or a view is not numeric.
        """
        self._check_parameters()
        again = self.warm_start and hasattr(self, "module_")
        with self._kept_if_no_epoch_ends():
            data = self._training_data(X, y, sample_weight, reset=not again)
            if not again:
                self._set_classes(data.labels[data.rows])
            train, validation = self._split(data)
            if not again:
                self._start(data.views, train)
            self._last_epoch = len(self.history_) + int(self.epochs)
            self._targets = self._digest(data)
            return self._train(data, train, validation, callback)

    def resume(self, X: Any, y: Any, sample_weight: Any = None, callback: Callback | None = None) -> "FUMLClassifier":
        """Continue a ``fit`` that its callback, an error or Ctrl-C stopped, with the result of an uninterrupted one.

        Works on the same estimator and on one saved by :meth:`save` and loaded again.

        Args:
            X: the views that ``fit`` got.
            y: the labels that ``fit`` got.
            sample_weight: the weights that ``fit`` got.
            callback: see :meth:`fit`.

        Returns:
            The estimator.

        Raises:
            NotFittedError: there is nothing to resume.
            ValueError: y or sample_weight are not those of ``fit``; see :meth:`fit`.
        """
        check_is_fitted(self, "module_")
        self._check_parameters()
        data = self._training_data(X, y, sample_weight, reset=False)
        if self._digest(data) != self._targets:
            raise ValueError(f"y and sample_weight must be those of fit, got others (for {len(data.labels)} rows).")
        return self._train(data, *self._split(data), callback)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> "FUMLClassifier":
        """Train one epoch on the given rows, without validation split.

        Scalers are fitted by the first call and kept, so that an input means the same in all calls.

        Args:
            X: views, see the class.
            y: labels, (n,).
            classes: all labels that will ever come, (K,); needed in the first call.
            sample_weight: weights >= 0 in the loss, (n,).

        Returns:
            The estimator.

        Raises:
            ValueError: see :meth:`fit`; classes is missing in the first call, differs from earlier, or lacks a label.
        """
        self._check_parameters()
        first = not hasattr(self, "module_")
        if first and classes is None:
            raise ValueError("classes must be given in the first call of partial_fit.")
        if not first and classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={list(classes)} differs from those of earlier calls, {list(self.classes_)}.")
        with self._kept_if_no_epoch_ends():
            data = self._training_data(X, y, sample_weight, reset=first)
            if first:
                self._set_classes(np.asarray(classes))
                self._start(data.views, data.rows)
            self._last_epoch = len(self.history_) + 1
            self._targets = self._digest(data)
            return self._train(data, data.rows, data.rows[:0], None)

    @contextmanager
    def _kept_if_no_epoch_ends(self) -> Iterator[None]:
        """Leave the estimator as it was where training fails before its first epoch has ended."""
        before = vars(self).copy()
        try:
            yield
        except BaseException:
            history = getattr(self, "history_", None)
            if not history or history is before.get("history_"):
                vars(self).clear()
                vars(self).update(before)
            raise

    def _start(self, views: list[View], rows: np.ndarray) -> None:
        """Fit the scalers and build a fresh network and optimiser."""
        self.n_views_ = len(views)
        self.scalers_ = None
        if self.scale == "minmax":
            self.scalers_ = []
            for view in views:
                scaler = MinMaxScaler()
                with np.errstate(over="ignore"):
                    for chunk in _chunks(rows, ROWS_AT_ONCE):
                        scaler.partial_fit(_finite(view.rows(chunk).astype(np.float64), view))
                _finite(scaler.data_range_, view)
                self.scalers_.append(scaler)
        self.module_ = self._build([view.width for view in views])
        self.history_: list[Record] = []
        self._optimizer_state: dict[int, dict[str, Tensor]] = {}
        self._current: dict[str, Tensor] | None = None  # last epoch's weights, where module_ holds better earlier ones
        self._best_loss = math.inf

    def _build(self, widths: list[int]) -> FUML:
        return self._network(
            widths,
            len(self.classes_),
            float(self.p),
            str(self.fusion),
            n_layers=int(self.n_layers),
            dropout=float(self.dropout),
            hidden_width=None if self.hidden_width is None else int(self.hidden_width),
            head_bias=None if self.head_bias is None else float(self.head_bias),
            generator=torch.Generator().manual_seed(self._seed),
        )

    def _train(
        self, data: _TrainingData, train: np.ndarray, validation: np.ndarray, callback: Callback | None
    ) -> "FUMLClassifier":
        """Train up to epoch ``_last_epoch``; after each epoch the estimator is as if training had ended there."""
        missing = np.setdiff1d(data.labels[data.rows], self.classes_)
        if len(missing):
            raise ValueError(f"y holds labels {missing.tolist()} that are not in classes_ {self.classes_.tolist()}.")
        device = self._torch_device()
        y = torch.from_numpy(np.searchsorted(self.classes_, data.labels))
        weight = None
        if data.weight is not None:
            weight = torch.from_numpy((data.weight / data.weight[train].mean()).astype(np.float32))
        # Dense views are scaled once; sparse ones are made dense batch by batch.
        ready = [None if view.sparse else self._scaled_whole(view, v) for v, view in enumerate(data.views)]

        def batch(index: np.ndarray) -> tuple[list[Tensor], Tensor, Tensor | None]:
            i = torch.from_numpy(index)
            x = [
                self._scaled(view, index, v) if x is None else x[i]
                for v, (view, x) in enumerate(zip(data.views, ready, strict=True))
            ]
            return [t.to(device) for t in x], y[i].to(device), None if weight is None else weight[i].to(device)

        module = self.module_.to(device)
        optimizer = torch.optim.Adam(
            module.parameters(), lr=float(self.lr), weight_decay=float(self.weight_decay), fused=True
        )
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": _clones(self._optimizer_state), "param_groups": groups})

        def one_epoch(epoch: int, best: dict[str, Tensor]) -> Record:
            if self._current is not None:
                module.load_state_dict(self._current)
            # Each epoch has its own random streams, so a resumed run draws what an uninterrupted one would have.
            order_seed, dropout_seed = np.random.SeedSequence([self._seed, epoch]).generate_state(2)
            order = np.random.default_rng(order_seed).permutation(train)
            generator = torch.Generator(device).manual_seed(int(dropout_seed))
            module.train()
            total = torch.zeros((), device=device)
            for index in _chunks(order, int(self.batch_size)):
                x, target, w = batch(index)
                logits = [net(t, generator) for net, t in zip(module.backbones, x, strict=True)]
                loss = fuml_loss(module.from_logits(logits, target), target, w)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(index)
            module.eval()
            record: Record = {"epoch": epoch, "loss": float(total) / len(train)}
            if not math.isfinite(record["loss"]) or not all(w.isfinite().all() for w in module.parameters()):
                raise ValueError(f"training diverged in epoch {epoch} (loss {record['loss']}): lower lr={self.lr!r}.")
            current, best_loss = None, self._best_loss
            if len(validation):
                record |= self._validate(module, batch, validation)
                if record["validation_loss"] < best_loss:
                    best_loss = record["validation_loss"]
                else:
                    current = _copy(module)
                    module.load_state_dict(best)
            self._optimizer_state = _clones(optimizer.state_dict()["state"])
            self._current, self._best_loss, self.history_ = current, best_loss, [*self.history_, record]
            return record

        try:
            while len(self.history_) < self._last_epoch:
                finished = _copy(module)
                try:
                    record = one_epoch(len(self.history_) + 1, finished)
                except BaseException:
                    module.load_state_dict(finished)
                    module.eval()
                    raise
                if self.verbose:
                    print(", ".join(f"{key} {value:.4g}" for key, value in record.items()))
                stop = callback is not None and callback(self, dict(record))
                if isinstance(stop, (bool, np.bool_)) and stop:
                    break
        finally:
            module.cpu()
            self._optimizer_state = {i: {k: t.cpu() for k, t in s.items()} for i, s in self._optimizer_state.items()}
        return self

    @staticmethod
    @torch.no_grad()
    def _validate(module: FUML, batch: Callable[..., Any], rows: np.ndarray) -> dict[str, float]:
        loss = correct = total = 0.0
        for index in _chunks(rows, ROWS_AT_ONCE):
            x, y, w = batch(index)
            out = module(x, labels=y)
            loss += float(fuml_loss(out, y, w)) * len(index)
            correct += float((out.credibility.argmax(-1) == y).sum())
            total += len(index) if w is None else float(w.sum())
        return {"validation_loss": loss / total, "validation_accuracy": correct / len(rows)}

    # ------------------------------------------------------------------ prediction

    def predict(self, X: Any) -> Shaped[np.ndarray, " rows"]:
        """Return the label of each sample.

        Args:
            X: views, see the class.

        Returns:
            Labels, (n,).

        Raises:
            ValueError: NaN, infinity or far too large values in a view, or views that differ from those of ``fit`` in
                number, width or name.
        """
        (index,) = self._collect(X, lambda out: (out.credibility.argmax(-1),))
        return self.classes_[index]

    def credibility(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """Return the credibility of each class for the fused decision (Eq. 2), in [0, 1].

        Args:
            X: views, see the class.

        Returns:
            Credibilities, (n, K) float32.

        Raises:
            ValueError: see :meth:`predict`.
        """
        return self._collect(X, lambda out: (out.credibility.float(),))[0]

    def membership(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """Return the fused membership (possibility) of each class, in [0, 1].

        Args:
            X: views, see the class.

        Returns:
            Memberships, (n, K) float32; a row need not sum to 1 and may be 0.

        Raises:
            ValueError: see :meth:`predict`.
        """
        return self._collect(X, lambda out: (out.membership.float(),))[0]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """Return credibilities divided by their sum: a score to rank classes by, not a calibrated probability.

        Args:
            X: views, see the class.

        Returns:
            Scores, (n, K) float64, rows sum to 1.

        Raises:
            ValueError: see :meth:`predict`.
        """
        return self._collect(X, lambda out: (out.credibility / out.credibility.sum(-1, keepdim=True),))[0]

    def uncertainty(self, X: Any) -> Float[np.ndarray, " rows"]:
        """Return the uncertainty of each decision (Eq. 6), from 0 (certain) to 1.

        Args:
            X: views, see the class.

        Returns:
            Uncertainties, (n,) float32.

        Raises:
            ValueError: see :meth:`predict`.
        """
        return self._collect(X, lambda out: (out.uncertainty.float(),))[0]

    def explain(self, X: Any) -> FusionReport:
        """Return what each view says, how sure it is, how far from the others, and how much it weighs.

        Args:
            X: views, see the class.

        Returns:
            The report.

        Raises:
            ValueError: see :meth:`predict`.
        """
        parts = self._collect(
            X,
            lambda out: (
                out.credibility.argmax(-1),
                out.uncertainty.float(),
                out.view_uncertainty.float().T,
                out.conflict.float().T,
                out.weights.float().T,
                out.view_credibility.argmax(-1).T,
            ),
        )
        label, u, view_u, o, w, view_label = parts
        return FusionReport(self.classes_[label], u, view_u, o, w, self.classes_[view_label])

    @torch.no_grad()
    def _collect(self, X: Any, read: Callable[[FUMLOutput], tuple[Tensor, ...]]) -> list[np.ndarray]:
        """Run the network batch by batch and join the tensors that ``read`` takes from each output."""
        check_is_fitted(self, "module_")
        views = self._read(X, reset=False)
        device = self._torch_device()
        module = self.module_ if device.type == "cpu" else copy.deepcopy(self.module_).to(device)
        n = views[0].array.shape[0]
        columns: list[np.ndarray] = []
        for start in range(0, max(n, 1), ROWS_AT_ONCE):  # an empty input is one empty batch
            rows = slice(start, start + ROWS_AT_ONCE)
            x = [self._scaled(view, rows, v).to(device) for v, view in enumerate(views)]
            # Fusion in double precision, so that results don't depend on how rows are batched.
            logits = [net(t).to("cpu", torch.float64) for net, t in zip(module.backbones, x, strict=True)]
            for view, a in zip(views, logits, strict=True):
                if not a.isfinite().all():
                    raise ValueError(f"X: view {view.name} holds values so large that the network overflows.")
            taken = [t.numpy() for t in read(module.from_logits(logits))]
            columns = columns or [np.empty((n, *t.shape[1:]), t.dtype) for t in taken]
            for column, t in zip(columns, taken, strict=True):
                column[rows] = t
        return columns

    # ------------------------------------------------------------------ input

    def _read(self, X: Any, reset: bool) -> list[View]:
        """Read X as views, and note their widths and names (``reset``) or compare them with those noted."""
        if self.views is None or given_as_views(X):
            views, keys = read_views(X)
            if not reset and self._keys is not None and keys is not None and set(keys) == set(self._keys):
                order = [keys.index(key) for key in self._keys]  # a mapping is matched by key
                views, keys = [views[i] for i in order], self._keys
            if not reset and keys != self._keys:
                expected, got = (
                    "a sequence of views" if k is None else f"a mapping with keys {k}" for k in (self._keys, keys)
                )
                raise ValueError(f"X must be {expected} as in fit, got {got}.")
            if reset:
                self._keys = keys
                self.n_features_in_ = sum(view.width for view in views)
                vars(self).pop("feature_names_in_", None)
                if all(view.names is not None for view in views):
                    self.feature_names_in_ = np.array([name for view in views for name in view.names or ()], object)
        else:
            X = validate_data(
                self, X, accept_sparse="csr", ensure_all_finite=False, ensure_min_samples=int(reset), reset=reset
            )
            views = cut(X, self.views, getattr(self, "feature_names_in_", None))
            if reset:
                self._keys = None
        widths = [view.width for view in views]
        if reset:
            self._widths, self._names = widths, [view.names for view in views]
        elif len(widths) != len(self._widths):
            raise ValueError(f"X must hold {len(self._widths)} views as in fit, got {len(widths)}.")
        for view, width, names in zip(views, self._widths, self._names, strict=True):
            if view.width != width:
                raise ValueError(f"X: view {view.name} must have {width} columns as in fit, got {view.width}.")
            if names is not None and view.names is not None and view.names != names:
                raise ValueError(f"X: view {view.name} must have the columns {names} as in fit, got {view.names}.")
        return views

    def _training_data(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> _TrainingData:
        views = self._read(X, reset)
        labels = column_or_1d(y, warn=True)
        n = views[0].array.shape[0]
        if n == 0 or len(labels) != n:
            raise ValueError(f"X and y must have the same number of rows, at least 1, got {n} and {len(labels)}.")
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise ValueError("y contains NaN or infinity.")
        check_classification_targets(labels)
        if sample_weight is None:
            return _TrainingData(views, labels, None, np.arange(n))
        weight = np.asarray(sample_weight, dtype=np.float64)
        if weight.shape != (n,):
            raise ValueError(f"sample_weight must have shape {(n,)}, got {weight.shape}.")
        if not np.isfinite(weight).all() or weight.min() < 0 or weight.max() == 0:
            raise ValueError("sample_weight must hold finite weights >= 0, not all of them zero.")
        return _TrainingData(views, labels, weight, np.flatnonzero(weight))

    def _set_classes(self, labels: np.ndarray) -> None:
        self.classes_ = unique_labels(labels)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least 2 classes, got 1 class: {self.classes_.tolist()}.")
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))

    def _digest(self, data: _TrainingData) -> str:
        """What tells the labels and weights of two calls apart."""
        codes = np.searchsorted(self.classes_, data.labels).astype(np.int64)
        return hashlib.sha256(codes.tobytes() + (b"" if data.weight is None else data.weight.tobytes())).hexdigest()

    def _split(self, data: _TrainingData) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train on and rows to validate on."""
        if self.validation_fraction == 0:
            return data.rows, data.rows[:0]
        labels, fraction = data.labels[data.rows], float(self.validation_fraction)
        try:
            train, validation = train_test_split(
                data.rows, test_size=fraction, stratify=labels, random_state=self._seed
            )
        except ValueError as error:
            raise ValueError(
                f"validation_fraction={fraction} doesn't split {len(labels)} rows into two parts with a row of each of "
                f"{len(np.unique(labels))} classes: {error}"
            ) from error
        return np.asarray(train), np.asarray(validation)

    def _scaled(self, view: View, rows: slice | np.ndarray, v: int) -> Tensor:
        """The rows of view v as the network sees them."""
        x = view.rows(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.scalers_ is not None:
                x = x.astype(np.float64) * self.scalers_[v].scale_ + self.scalers_[v].min_
            x = x.astype(np.float32)
        return torch.from_numpy(_finite(x, view))

    def _scaled_whole(self, view: View, v: int) -> Tensor:
        n = view.array.shape[0]
        whole = torch.empty(n, view.width)
        for start in range(0, n, ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            whole[rows] = self._scaled(view, rows, v)
        return whole

    def _torch_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device).cpu()
        except (AssertionError, RuntimeError, TypeError) as error:
            raise ValueError(f"device must be 'auto' or a device of this machine, got {self.device!r}.") from error
        return device

    def _check_parameters(self) -> None:
        check_norm_order(self.p)
        if self.fusion not in FUSIONS:
            raise ValueError(f"fusion must be one of {FUSIONS}, got {self.fusion!r}.")
        if self.scale not in ("minmax", None):
            raise ValueError(f"scale must be 'minmax' or None, got {self.scale!r}.")
        for name in ("n_layers", "hidden_width", "epochs", "batch_size"):
            value = getattr(self, name)
            if name == "hidden_width" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}.")
        for name, low, high in (("dropout", 0, 1), ("validation_fraction", 0, 1), ("weight_decay", 0, math.inf)):
            value = getattr(self, name)
            if not _is_real(value) or not low <= value < high:
                raise ValueError(f"{name} must be in [{low}, {high}), got {value!r}.")
        if self.head_bias is not None and not (_is_real(self.head_bias) and math.isfinite(self.head_bias)):
            raise ValueError(f"head_bias must be None or a finite number, got {self.head_bias!r}.")
        if not _is_real(self.lr) or not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be in (0, inf), got {self.lr!r}.")
        if not isinstance(self.warm_start, (bool, np.bool_)):
            raise ValueError(f"warm_start must be True or False, got {self.warm_start!r}.")

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what the estimator takes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator, with all that :meth:`resume` needs, to one safetensors file.

        Parameters and labels stand as JSON in its header. A ``random_state`` that is no integer is not kept.

        Args:
            path: the file, replaced as a whole if it exists.

        Raises:
            NotFittedError: there is nothing to save.
            TypeError: labels that JSON can't hold.
        """
        check_is_fitted(self, "module_")
        tensors = {f"module.{key}": t for key, t in self.module_.state_dict().items()}
        tensors |= {f"current.{key}": t for key, t in (self._current or {}).items()}
        for i, state in self._optimizer_state.items():
            tensors |= {f"optimizer.{i}.{key}": t for key, t in state.items()}
        for v, scaler in enumerate(self.scalers_ or []):
            tensors[f"scaler.{v}"] = torch.from_numpy(np.stack([scaler.data_min_, scaler.data_max_]))
        parameters = self.get_params(deep=False)
        parameters["views"] = _views_to_json(self.views)
        parameters["device"] = str(self.device)
        if not isinstance(self.random_state, (int, np.integer)):
            parameters["random_state"] = None
        header = {
            "format": FORMAT,
            "parameters": {key: value.item() if hasattr(value, "item") else value for key, value in parameters.items()},
            "classes": {"dtype": str(self.classes_.dtype), "values": self.classes_.tolist()},
            "widths": self._widths,
            "keys": self._keys,
            "names": self._names,
            "feature_names": self.feature_names_in_.tolist() if hasattr(self, "feature_names_in_") else None,
            "n_features": int(self.n_features_in_),
            "history": self.history_,
            "seed": self._seed,
            "last_epoch": self._last_epoch,
            "targets": self._targets,
            "best_loss": self._best_loss if math.isfinite(self._best_loss) else None,
        }
        temporary = f"{os.fspath(path)}.part"
        save_file(
            {key: t.detach().cpu().contiguous() for key, t in tensors.items()},
            temporary,
            metadata={"icml25.fuml": json.dumps(header)},
        )
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "FUMLClassifier":
        """Read an estimator written by :meth:`save`.

        Args:
            path: the file.

        Returns:
            The fitted estimator.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file is damaged or not one of these.
        """
        name = os.fspath(path)
        try:
            with safetensors.safe_open(name, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("icml25.fuml", "{}"))
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, json.JSONDecodeError) as error:
            raise ValueError(f"{name} is not a readable safetensors file: {error}") from error
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ValueError(f"{name} is not a saved FUMLClassifier of format {FORMAT!r}.")
        try:
            return cls._restored(header, tensors)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{name} is damaged: {error!r}") from error

    @classmethod
    def _restored(cls, header: dict[str, Any], tensors: dict[str, Tensor]) -> "FUMLClassifier":
        """The estimator that :meth:`save` wrote; any error means that the file doesn't fit together."""
        parameters = header["parameters"]
        if set(parameters) != set(cls._get_param_names()):
            raise ValueError(f"it holds the parameters {sorted(parameters)}.")
        clf = cls(**parameters | {"views": _views_from_json(parameters["views"])})
        clf._check_parameters()
        clf.classes_ = np.array(header["classes"]["values"], dtype=header["classes"]["dtype"])
        clf._widths, clf._names, clf._keys = header["widths"], header["names"], header["keys"]
        clf._seed, clf._targets = header["seed"], header["targets"]
        clf.n_features_in_, clf.n_views_ = header["n_features"], len(clf._widths)
        if header["feature_names"] is not None:
            clf.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        clf.history_, clf._last_epoch = header["history"], header["last_epoch"]
        clf._best_loss = math.inf if header["best_loss"] is None else header["best_loss"]

        groups: dict[str, dict[str, Tensor]] = {"module": {}, "current": {}, "optimizer": {}, "scaler": {}}
        for key, t in tensors.items():
            group, rest = key.split(".", 1)
            groups[group][rest] = t
        clf.module_ = clf._build(clf._widths).eval()
        weights = {key: t.shape for key, t in clf.module_.state_dict().items()}
        moments = {
            f"{i}.{key}": shape
            for i, w in enumerate(clf.module_.parameters())
            for key, shape in (("step", torch.Size()), ("exp_avg", w.shape), ("exp_avg_sq", w.shape))
        }
        ranges = {str(v): torch.Size([2, width]) for v, width in enumerate(clf._widths)}
        expected = {
            "module": weights,
            "current": weights if groups["current"] else {},
            "optimizer": moments,
            "scaler": ranges if clf.scale else {},
        }
        for group, shapes in expected.items():
            if {key: t.shape for key, t in groups[group].items()} != shapes:
                raise ValueError(f"the tensors of the {group} must have the shapes {shapes}.")
        clf.module_.load_state_dict(groups["module"])
        clf._current = groups["current"] or None
        clf._optimizer_state = {}
        for key, t in groups["optimizer"].items():
            i, rest = key.split(".", 1)
            clf._optimizer_state.setdefault(int(i), {})[rest] = t
        clf.scalers_ = None
        if clf.scale:
            clf.scalers_ = [MinMaxScaler().fit(groups["scaler"][key].numpy()) for key in ranges]
        return clf


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _chunks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _copy(module: FUML) -> dict[str, Tensor]:
    return {key: t.detach().clone() for key, t in module.state_dict().items()}


def _clones(state: dict[int, dict[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
    return {i: {key: t.clone() for key, t in moments.items()} for i, moments in state.items()}


def _finite(x: np.ndarray, view: View) -> np.ndarray:
    if not np.isfinite(x).all():
        raise ValueError(
            f"X: view {view.name} contains NaN, infinity or a value too large for float32; "
            "the method has no place for missing values."
        )
    return x


def _views_to_json(views: Any) -> Any:
    if views is None or isinstance(views, (int, np.integer)):
        return views if views is None else int(views)
    return [
        {"range": [int(i) for i in entry]} if isinstance(entry, tuple) else [int(i) for i in entry] for entry in views
    ]


def _views_from_json(views: Any) -> Any:
    if not isinstance(views, list):
        return views
    return [tuple(entry["range"]) if isinstance(entry, dict) else entry for entry in views]
