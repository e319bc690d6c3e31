"""The continuous integration's choice of packages."""

import importlib.util

import pytest
from conftest import ROOT

spec = importlib.util.spec_from_file_location("changed", ROOT / ".github" / "changed.py")
assert spec is not None and spec.loader is not None
changed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(changed)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["packages/b/src/icml25/b/x.py"], ["b"]),
        (["packages/b/README.md", "packages/a/pyproject.toml", "README.md"], ["a", "b"]),
        (["shared/src/icml25/shared/cli.py"], ["a", "b"]),
        (["uv.lock"], ["a", "b"]),
        (["noxfile.py"], ["a", "b"]),
        (["README.md", "tests/test_contract.py"], []),
        (["packages/gone/README.md"], []),
    ],
)
def test_affected(paths: list[str], expected: list[str]) -> None:
    assert changed.affected(paths, ["a", "b"]) == expected
