"""A new package passes lint, format and contract, and its tests fail only where the method is missing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_contract
from conftest import ROOT, Package


@pytest.fixture(scope="module", params=["torch", "jax", "numpy"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Package:
    root = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "pyproject.toml", root)
    folder = root / "packages" / "some-paper"
    answers = ["--data", "name=some-paper", "--data", f"backend={request.param}", "--defaults", "--quiet"]
    subprocess.run(["copier", "copy", *answers, str(ROOT / "shared" / "scaffold"), str(folder)], check=True)
    return Package(folder)


def test_lint_and_format(package: Package) -> None:
    for command in (["ruff", "check"], ["ruff", "format", "--check"]):
        done = subprocess.run(command, cwd=package.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_it_meets_the_contract(package: Package) -> None:
    test_contract.test_one_name(package)
    test_contract.test_metadata(package)
    test_contract.test_readme_sections(package)
    test_contract.test_claims_are_valid_and_on_a_track(package)
    test_contract.test_readme_shows_the_measured_claims(package)
    test_contract.test_core_stands_alone(package)
    test_contract.test_no_unsafe_loading(package)


def test_only_the_missing_method_fails(package: Package, tmp_path: Path) -> None:
    if package.project["dependencies"][0] != "numpy>=1.26":
        pytest.skip("the same for all backends; run for one")
    target = tmp_path / "site"
    install = [
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-sources",
        "--target",
        str(target),
        str(package.folder),
    ]
    subprocess.run(install, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests", "-m", "not bench", "-q", "-p", "no:cacheprovider"],
        cwd=package.folder,
        env={"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert "NotImplementedError: write the method here" in done.stdout
