"""Liger's kernels on a CPU: in a process of their own, where Triton interprets them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

HERE = Path(__file__).parent / "interpreted"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "which", ["not release", pytest.param("release", marks=pytest.mark.release)]
)
def test_what_is_computed_by_triton_s_interpreter_is_right(which: str) -> None:
    """The variable must be there before anything imports Triton; see the files for the tests."""
    files = [HERE / "kernels.py", HERE / "models.py", HERE / "micro.py"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, *files],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert "passed" in ended.stdout
    assert "skipped" not in ended.stdout
