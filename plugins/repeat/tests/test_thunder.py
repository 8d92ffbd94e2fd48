"""Thunder's benchmark of compilers, with Thunder in an environment of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from accel_bench.testing import run_program

pytestmark = [pytest.mark.box, pytest.mark.release]

OLDEST = os.environ.get("ACCEL_BENCH_OLDEST", "")
"""Folder of an environment with Thunder and a torch that it works with; empty without one."""

SCENARIO = """\
extends: litgpt-compilers-cpu
name: thunder
environments:
  thunder: {{python: {environment}}}
stacks:
  thunder:
    use: [{{use: torch-compile, backend: thunder}}]
    set: {{resources.environment: thunder}}
measure: {{warmup: 3, steps: 5, rounds: 1}}
"""


@pytest.mark.skipif(not OLDEST, reason="ACCEL_BENCH_OLDEST names no environment (make oldest)")
def test_thunder_trains_beside_eager_in_its_own_environment(tmp_path: Path) -> None:
    path = tmp_path / "thunder.yaml"
    path.write_text(SCENARIO.format(environment=Path(OLDEST).absolute()))
    results = ("--results", str(tmp_path / "results"))
    only = ("--only", "thunder", "--allow-env", "--format", "json")
    done = run_program("run", str(path), *only, *results)
    assert done.returncode == 0, done.stderr
    eager, thunder = json.loads(done.stdout)["experiments"]
    assert (eager["stack"], thunder["stack"]) == ("eager", "thunder")
    assert thunder["status"] == "ok", thunder["reasons"]
    assert thunder["loss_verdict"] == "equivalent"
