"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL))
def test_example(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


def test_there_are_examples():
    assert README.read_text().count("```python") >= 2
