"""The README's example runs as it stands, in an empty folder and without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path


def test_readme_example_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL))
    code += "\nassert abs(report.gap - 0.12) < 0.005 and not report.vacuous and len(report.table) == 9"
    code += "\nassert gaps[1] < gaps[0] and gaps[2] < gaps[0] and first['n_sequences'] > 100 and record.test > 0"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
