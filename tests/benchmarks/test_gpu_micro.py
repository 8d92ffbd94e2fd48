"""Micro-benchmarks of the script for a GPU: an interrupt ends them, and what was timed is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SLOW = "rms_norm and tiny and eager"
"""Three cells of more than a second each, unless they are told to be short."""


def test_an_interrupt_ends_the_cells_and_keeps_those_that_were_timed() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_micro", "cpu", "-k", SLOW]
    # As a worker of this suite, pytest-benchmark would time nothing.
    alone = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    at_once = {**alone, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=at_once, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while (said := process.stderr.read(1)) not in (".", ""):
            pass  # until pytest has told of the first cell
        process.send_signal(signal.SIGINT)
        printed, rest = process.communicate()
    document = json.loads(printed)
    assert (process.returncode, document["dtype"]) == (0, "bfloat16"), said + rest
    cells = document["cells"]
    assert 1 <= len(cells) < 6, "the other cache's begin no more"
    assert {(one["outcome"], one["flush"]) for one in cells} == {("passed", False)}
    assert all(one["median_seconds"] > 0 for one in cells)
