"""What every package owes: names, metadata, README, claims, and a core that stands alone."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from conftest import ROOT, Package, packages
from packaging.requirements import Requirement

from icml25.shared import registry
from icml25.shared.claims import read_claims, render_table
from icml25.shared.engine import _solver_name

SECTIONS = ["Install", "Use", "When not to use it", "Claims", "Speed and memory", "Differences", "Citation"]
# What no core may pull in at import; "torch" and "jax" only as its own backend.
HEAVY = {"benchopt", "gymnasium", "icml25.shared", "jax", "matplotlib", "torch", "transformers"}

every_package = pytest.mark.parametrize("package", packages(), ids=lambda package: package.name)


@every_package
def test_one_name(package: Package) -> None:
    assert package.project["name"] == f"icml25-{package.name}"
    assert package.source.is_dir()
    assert not (package.folder / "src" / "icml25" / "__init__.py").exists()
    assert (package.source / "py.typed").exists()


@every_package
def test_metadata(package: Package) -> None:
    project = package.project
    assert project["license"] == "Apache-2.0"
    assert (package.folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert project["requires-python"] == ">=3.11"
    assert project["readme"] == "README.md"
    assert project["description"].endswith("(ICML 2025)")
    assert project["urls"]["Paper"].startswith("https://")
    for text in chain(project["dependencies"], *project["optional-dependencies"].values()):
        operators = {specifier.operator for specifier in Requirement(text).specifier}
        assert operators <= {">="}, f"{text}: lower bounds only"
        assert operators, f"{text}: a lower bound is missing"
    assert not any(Requirement(text).name.startswith("icml25") for text in project["dependencies"])
    assert {"bench", "test"} <= set(project["optional-dependencies"])


@every_package
def test_readme_sections(package: Package) -> None:
    lines = package.readme.splitlines()
    assert lines[0] == f"# icml25-{package.name}"
    found = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert [section for section in found if section in SECTIONS] == SECTIONS
    assert f"pip install icml25-{package.name}" in package.readme
    assert "```python" in package.readme


@every_package
def test_claims_are_valid_and_on_a_track(package: Package) -> None:
    _, claims = read_claims(package.folder / "claims.toml")
    for claim in claims:
        track = registry.tracks()[claim.track]
        compared = claim.metric in track.metrics or not claim.baselines  # a column of the method's own has no direction
        assert compared, f"{claim.id}: {claim.track} has no metric {claim.metric}"
        assert claim.budget in track.budgets, f"{claim.id}: {claim.track} has no budget {claim.budget}"


@every_package
def test_readme_shows_the_measured_claims(package: Package) -> None:
    match = re.search(r"<!-- claims -->\n(.*?)\n<!-- /claims -->", package.readme, flags=re.DOTALL)
    assert match is not None
    results = package.results
    if results is None:
        assert match[1] == "Not measured yet."
        return
    assert match[1] == render_table(results)
    assert results["package"] == package.project["name"]
    assert results["budget"] == "quick"
    _, claims = read_claims(package.folder / "claims.toml")
    stated = [(c.id, c.statement, c.metric, [str(t) for t in c.tests]) for c in claims]
    assert [(c["id"], c["statement"], c["metric"], c["threshold"]) for c in results["claims"]] == stated
    assert all(c["verdict"] in ("holds", "fails", "not shown") for c in results["claims"])


@every_package
def test_solvers_are_registered_and_load(package: Package) -> None:
    method = registry.methods()[package.name]
    for track, file in method.solvers.items():
        assert track in registry.tracks(), f"{package.name} is on a track {track} that does not exist"
        assert file == package.source / "bench.py"
        assert _solver_name(file)


@every_package
def test_core_stands_alone(package: Package) -> None:
    for path in package.core:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                if name.startswith("icml25"):
                    assert name.split(".")[1:2] == [package.module], f"{path}:{node.lineno} imports {name}"


@every_package
def test_core_import_is_light(package: Package) -> None:
    code = f"import sys, icml25.{package.module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not (HEAVY - {registry.methods()[package.name].backend}) & set(loaded)


@every_package
def test_public_callables_are_documented(package: Package) -> None:
    module = importlib.import_module(f"icml25.{package.module}")
    for name in module.__all__:
        item = getattr(module, name)
        if not callable(item):
            continue
        assert inspect.getdoc(item), f"{name} has no docstring"
        if inspect.isclass(item):
            own = {key: value for key, value in vars(item).items() if not key.startswith("_") and callable(value)}
            for key in own:
                assert inspect.getdoc(getattr(item, key)), f"{name}.{key} has no docstring"


@every_package
def test_no_unsafe_loading(package: Package) -> None:
    for path in package.source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                call, keywords = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
                where = f"{path}: {ast.unparse(node)}"
                assert call not in ("eval", "exec", "pickle.load", "pickle.loads", "joblib.load"), where
                assert call != "torch.load" or keywords.get("weights_only") == "True", where
                assert keywords.get("allow_pickle", "False") == "False", where


@every_package
def test_wheel_holds_this_package_only(package: Package, tmp_path: Path) -> None:
    build = ["uv", "build", "--quiet", "--wheel", "--package", package.project["name"], "--out-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    inside = f"icml25/{package.module}/"
    assert all(name.startswith(inside) or ".dist-info/" in name for name in names)
    assert {f"{inside}__init__.py", f"{inside}py.typed", f"{inside}claims.toml"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_readme_lists_every_package() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\]\(packages/\1\)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert rows == [package.name for package in packages()]


def test_shared_names_no_method_and_no_backend() -> None:
    methods = "|".join(package.module for package in packages())
    for path in (ROOT / "shared" / "src").rglob("*.py"):
        if "tracks" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                assert not re.fullmatch(rf"(torch|jax|flax|optax|icml25\.({methods}))(\..*)?", module), (
                    f"{path}: {module}"
                )
