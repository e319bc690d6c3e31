"""One call measured in a fresh process."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from icml25.shared.isolated import MeasurementError, measure

CODE = """
import os
import sys
import time
import numpy as np

def warm_up():
    time.sleep(0.3)

def fill(arrays, params):
    block = np.ones(int(params["mb"] * 2**17))
    time.sleep(params["seconds"])
    return {"total": block.sum(), "x": arrays["x"] * 2, "pid": os.getpid(), "text": "t", "scalar": np.float32(1.5),
            "benchopt": "benchopt" in sys.modules}

def fails(arrays, params):
    raise KeyError("the reason")

def dies(arrays, params):
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "code.py"
    path.write_text("from icml25.shared.isolated import BaseSolver\n" + CODE)
    return path


def test_seconds_memory_and_values(file: Path) -> None:
    x = np.arange(3, dtype=np.float32)
    out = measure(file, "fill", {"x": x}, {"mb": 64, "seconds": 0.2})
    assert 0.2 <= out["seconds"] < 2  # not the warm-up, not the start of the process
    assert 60 < out["peak_memory_mb"] < 80
    assert out["total"] == 64 * 2**17
    np.testing.assert_array_equal(out["x"], x * 2)
    assert out["x"].dtype == np.float32
    assert out["pid"] != os.getpid()
    assert (out["text"], out["scalar"], out["benchopt"]) == ("t", 1.5, False)


def test_memory_does_not_depend_on_what_was_measured_before(file: Path) -> None:
    small = measure(file, "fill", {"x": np.ones(1)}, {"mb": 16, "seconds": 0})
    measure(file, "fill", {"x": np.ones(1)}, {"mb": 256, "seconds": 0})
    again = measure(file, "fill", {"x": np.ones(1)}, {"mb": 16, "seconds": 0})
    assert abs(small["peak_memory_mb"] - again["peak_memory_mb"]) < 4


def test_failures_are_told(file: Path) -> None:
    with pytest.raises(MeasurementError, match="KeyError: 'the reason'"):
        measure(file, "fails", {})
    with pytest.raises(MeasurementError, match="killed by signal 9"):
        measure(file, "dies", {})
    start = time.monotonic()
    with pytest.raises(MeasurementError, match="time limit of 1 s"):
        measure(file, "fill", {"x": np.ones(1)}, {"mb": 1, "seconds": 60}, timeout=1.0)
    assert time.monotonic() - start < 30
    with pytest.raises(TypeError, match=r"arrays\['x'\] has dtype object"):
        measure(file, "fill", {"x": np.array([None])})
