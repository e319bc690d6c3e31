"""What the tests across packages share."""

import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Package:
    """A package's folder in this repository."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        return self.folder / "src" / "icml25" / self.module

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "pyproject.toml").read_text())

    @property
    def project(self) -> dict[str, Any]:
        return self.pyproject["project"]

    @property
    def readme(self) -> str:
        return (self.folder / "README.md").read_text()

    @property
    def results(self) -> dict[str, Any] | None:
        file = self.folder / "results" / "quick.json"
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def core(self) -> list[Path]:
        """All modules but the solver and a track of its own."""
        return [
            p
            for p in self.source.rglob("*.py")
            if p.name != "bench.py" and "track" not in p.parts and "bench" not in p.parts
        ]


def packages() -> list[Package]:
    return [Package(path.parent) for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
