"""The README's example runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path


def test_readme_example_runs(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL))
    assert "watermarking_config" in code
    command = [sys.executable, "-W", "error", "-c", code]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
