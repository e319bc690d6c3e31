"""What is installed: methods and tracks, found by entry point and never by name.

A method package registers its solver file per track in the group ``icml25.solvers`` (``<track> = "icml25.<name>.bench"``)
and tracks of its own in ``icml25.tracks`` (``<track> = "icml25.<name>.track"``). Nothing is imported to find them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

__all__ = ["Budget", "Method", "Metric", "RegistryError", "Track", "fingerprint", "methods", "tracks", "uninstalled"]

_TRACKS = Path(__file__).parent / "tracks"


class RegistryError(ValueError):
    """A package or a track is registered wrongly."""


@dataclass(frozen=True)
class Method:
    """An installed method package."""

    name: str
    distribution: str
    version: str
    summary: str
    backend: str
    folder: Path
    solvers: Mapping[str, Path] = field(default_factory=dict)

    @property
    def checkout(self) -> Path | None:
        """The package's folder in a source checkout, where claims.toml and README.md are; None for an installed wheel."""
        root = self.folder.parents[2]
        return root if (root / "pyproject.toml").is_file() and self.folder.parent.parent.name == "src" else None

    @property
    def claims_file(self) -> Path:
        """claims.toml, beside the sources in a checkout and inside the package in a wheel."""
        return (self.checkout or self.folder) / "claims.toml"

    @property
    def recorded(self) -> dict[str, Any] | None:
        """results/quick.json of a checkout: the claims as the package records them."""
        file = self.checkout / "results" / "quick.json" if self.checkout else None
        return json.loads(file.read_text()) if file and file.is_file() else None


@dataclass(frozen=True)
class Metric:
    """A column of a track's result table; a detail is shown in the report, but not in the terminal."""

    column: str
    label: str
    direction: str
    unit: str = ""
    detail: bool = False

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is better."""
        return self.direction == "max"


@dataclass(frozen=True)
class Budget:
    """What a track runs at one budget: benchopt data set patterns, seeds, seconds per run."""

    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    timeout: float


@dataclass(frozen=True)
class Track:
    """A benchopt benchmark folder with its ``track.toml``."""

    name: str
    folder: Path
    title: str
    description: str
    metrics: Mapping[str, Metric]
    primary: tuple[str, ...]
    budgets: Mapping[str, Budget]

    @property
    def baselines(self) -> list[Path]:
        """Solver files of the track itself."""
        return sorted(path for path in (self.folder / "solvers").glob("*.py") if not path.name.startswith("_"))


@cache
def methods() -> dict[str, Method]:
    """Installed methods by name, sorted."""
    solvers: dict[str, dict[str, Path]] = {}
    found: dict[str, importlib.metadata.Distribution] = {}
    for entry in importlib.metadata.entry_points(group="icml25.solvers"):
        match = re.fullmatch(r"icml25\.(\w+)\.bench", entry.value)
        if match is None or entry.dist is None:
            raise RegistryError(f"entry point {entry.name} = {entry.value!r} is not of the form icml25.<name>.bench")
        name = entry.dist.name.removeprefix("icml25-")
        found[name] = entry.dist
        solvers.setdefault(name, {})[entry.name] = _locate(match[1]) / "bench.py"
    return {
        name: Method(
            name=name,
            distribution=found[name].name,
            version=found[name].version,
            summary=found[name].metadata["Summary"] or "",
            backend=_backend(found[name].requires or []),
            folder=next(iter(solvers[name].values())).parent,
            solvers=solvers[name],
        )
        for name in sorted(found)
    }


@cache
def tracks() -> dict[str, Track]:
    """Tracks by name, sorted: those of this package and those that method packages bring."""
    folders = {path.parent.name: path.parent for path in _TRACKS.glob("*/track.toml")}
    for entry in importlib.metadata.entry_points(group="icml25.tracks"):
        package, _, inner = entry.value.removeprefix("icml25.").partition(".")
        folders[entry.name] = _locate(package).joinpath(*inner.split("."))
    return {name: _read_track(name, folders[name]) for name in sorted(folders)}


def uninstalled(checkout: Path) -> Iterator[Method]:
    """Packages of a source checkout that are not installed here."""
    for file in sorted(checkout.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        name = project["name"].removeprefix("icml25-")
        if name not in methods():
            folder = file.parent / "src" / "icml25" / name.replace("-", "_")
            entry_points = project.get("entry-points", {}).get("icml25.solvers", {})
            solvers = {track: folder / "bench.py" for track in entry_points}
            backend = _backend(project.get("dependencies", []))
            yield Method(name, project["name"], project["version"], project["description"], backend, folder, solvers)


def fingerprint(paths: Iterable[Path], distribution: str | None = None) -> str:
    """Hash of sources (files, or folders and all below) and of the versions of what a distribution requires.

    It names the cache of results: results computed by other code, or with another torch, are not these results.
    """
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix == ".py":
                digest.update(file.relative_to(path.parent).as_posix().encode())
                digest.update(file.read_bytes())
    for text in (importlib.metadata.requires(distribution) if distribution else None) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            digest.update(f"{requirement.name}=={importlib.metadata.version(requirement.name)}".encode())
    return digest.hexdigest()[:16]


def _locate(package: str) -> Path:
    """Folder of ``icml25.<package>`` without importing it (the namespace spans several places)."""
    for root in importlib.import_module("icml25").__path__:
        if (folder := Path(root) / package).joinpath("__init__.py").is_file():
            return folder
    raise RegistryError(f"icml25.{package} is registered but its folder is not there; reinstall the package")


def _backend(requirements: Iterable[str]) -> str:
    names = {
        requirement.name for requirement in map(Requirement, requirements) if "extra" not in str(requirement.marker)
    }
    return next((backend for backend in ("torch", "jax") if backend in names), "numpy")


def _read_track(name: str, folder: Path) -> Track:
    file = folder / "track.toml"
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text())
        metrics = {column: Metric(column, **spec) for column, spec in table["metrics"].items()}
        budgets = {
            budget: Budget(tuple(spec["datasets"]), tuple(spec["seeds"]), float(spec.get("timeout", 600)))
            for budget, spec in table["budgets"].items()
        }
        track = Track(name, folder, table["title"], table["description"], metrics, tuple(table["primary"]), budgets)
    except OSError as error:
        raise RegistryError(f"track {name}: cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise RegistryError(f"{file}: {type(error).__name__}: {error}") from error
    for metric in metrics.values():
        if metric.direction not in ("max", "min"):
            raise RegistryError(
                f"{file}: metric {metric.column}: direction must be 'max' or 'min', got {metric.direction!r}"
            )
    if missing := set(track.primary) - set(metrics):
        raise RegistryError(f"{file}: primary names metrics that are not defined: {', '.join(sorted(missing))}")
    return track
