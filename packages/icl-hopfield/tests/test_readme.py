"""The README's example runs as it stands, in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path


def test_readme_example_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL))
    code += "\nassert z.shape == (2, 1) and (dE <= 0).all() and path.shape == (5, 2) and (0 < gamma).all() and (gamma < 1).all()"
    code += "\nassert (variance > 0.1).all() and errors.shape == (13,) and errors[-1] < errors[0]"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
