import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})
