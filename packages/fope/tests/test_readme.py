"""The README's example runs as it stands, in an empty folder and without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path


def test_readme_example_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL))
    code += "\nassert tokens.shape == (1, 8) and torch.equal(q1, q2) and torch.equal(k1, k2)"
    code += "\nassert undertrained.sum() == 16 and kernel.shape == (2048, 32) and series.positive.shape == (8, 16, 16)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
