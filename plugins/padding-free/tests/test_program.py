"""The sample for a CPU, carried out by the real program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_twin_of_the_scenario_for_a_gpu_learns_alike_without_padding(tmp_path: Path) -> None:
    words = ("run", "padding-free-cpu", "--rounds", "1", "--format", "json", "--results", "r")
    done = subprocess.run(
        [sys.executable, "-m", "accel_bench", *words],
        env={**os.environ, "GIT_DIR": os.devnull},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["stack"]: row for row in json.loads(done.stdout)["experiments"]}
    assert {row["status"] for row in rows.values()} == {"ok"}
    padded, flat = (rows[name]["tokens"]["total_global"] for name in ("padded", "padding-free"))
    assert flat["processed"] == flat["real"] == padded["real"] < padded["processed"]
    assert rows["padding-free"]["loss_verdict"] == "equivalent"
