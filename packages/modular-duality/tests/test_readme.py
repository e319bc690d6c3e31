"""The README's example runs as it stands, in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path


def test_readme_example_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL))
    code += "\nassert y.shape == (32, 10) and net.mass == 4 and abs(net.sensitivity - 1) < 1e-9 and net.atoms == 10"
    code += "\nassert norms['query']['kernel'].mass == 5 and norms['count'] == Frozen()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
