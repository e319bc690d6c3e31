"""Importing the package stays light."""

import subprocess
import sys


def test_heavy_parts_are_imported_when_asked_for() -> None:
    code = (
        "import sys, icml25.cat_iv as c; heavy = {'sklearn', 'pandas', 'linearmodels', 'matplotlib', 'numba', 'scipy.stats'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "c.CATSelector, c.NoValidSetError; assert 'sklearn' in sys.modules;"
        "assert all(hasattr(c, name) for name in c.__all__); assert not hasattr(c, 'nothing')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
