"""Cells on a third party's device: torch's backend for external devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from machine.device_distribution import install_standin

PROGRAM = """
import sys
import pytest
from accel_bench_op import roofline_impl as roofline

# What computes in its place is a CPU, for which the product of a GPU takes a minute.
roofline.MATMUL_SIZE, roofline.COPIED_BYTES = 64, 2**16
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_cells_run_on_the_device_that_the_environment_names(tmp_path: Path) -> None:
    install_standin(tmp_path)
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    environment |= {"PYTHONPATH": str(tmp_path), "ACCEL_BENCH_MICRO_FLUSH_CACHE": "1"}
    words = ["--pyargs", "accel_bench_op.targets", "-q", "-p", "no:cacheprovider"]
    words += ["-k", "(rms_norm or swiglu) and tiny and eager", "--benchmark-max-time=0"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--benchmark-json=found.json"],
        cwd=tmp_path,
        env=environment | {"ACCEL_BENCH_MICRO_DEVICE": "standin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads((tmp_path / "found.json").read_text("utf8"))["benchmarks"]
    assert len(cells) == 3
    for cell in cells:
        info = cell["extra_info"]
        assert (info["device"], info["clock"]) == ("standin:0", "standin events")
        assert (info["outcome"], info["cache_flushed"]) == ("ok", True)
        assert info["peak_memory_bytes"] > 0 and info["roofline_share"] > 0
