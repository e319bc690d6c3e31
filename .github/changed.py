"""Which packages a change has to test, as JSON: ``python .github/changed.py BASE`` (all packages without BASE)."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EVERYTHING = re.compile(r"shared/|uv\.lock$|pyproject\.toml$|noxfile\.py$|\.github/")


def packages() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def affected(paths: list[str], known: list[str]) -> list[str]:
    """Packages with a changed file; all of them when what they share has changed."""
    if any(EVERYTHING.match(path) for path in paths):
        return known
    folders = {path.split("/")[1] for path in paths if path.startswith("packages/")}
    return [name for name in known if name in folders]


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else ""
    if base.strip("0"):
        git = ["git", "diff", "--name-only", f"{base}...HEAD"]
        changed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
        print(json.dumps(affected(changed, packages())))
    else:
        print(json.dumps(packages()))
