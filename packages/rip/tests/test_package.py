"""Importing the package stays light."""

import subprocess
import sys


def test_import() -> None:
    code = (
        "import sys, icml25.rip as m; heavy = {'torch', 'transformers', 'datasets', 'rich.progress', 'icml25.shared'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); assert all(hasattr(m, n) for n in m.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
