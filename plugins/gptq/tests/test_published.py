"""The published benchmark of quantized PEFT on a CPU: every stack of its table trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_bench.testing import run_program

pytestmark = [pytest.mark.box, pytest.mark.release]


def test_the_whole_twin_prints_its_table(tmp_path: Path) -> None:
    results = ("--results", str(tmp_path / "results"))
    done = run_program("run", "fms-peft-cpu", *results)
    assert done.returncode == 0, done.stderr
    columns = "tokens_per_second,peak_memory_bytes"
    chosen = ("--rows", "stack,batch_size", "--values", columns, "--format", "json")
    table = run_program("results", "pivot", *chosen, *results)
    assert table.returncode == 0, table.stderr
    found = json.loads(table.stdout)
    # Seven stacks, each at two micro-batches.
    assert len({tuple(row) for row in found["rows"]}) == 14
    assert {cell["status"] for cell in found["cells"]} == {"ok"}
