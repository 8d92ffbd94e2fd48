"""Run some of the micro-benchmarks with pytest, with a warm cache and with an empty one."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

CHOSEN = "(rms_norm or llama_mlp or linear_cross_entropy or sdpa) and llama-2-7b"
"""Targets by their names: a norm, products, a loss and attention at the widths of a 7B model."""

SMALL = "rms_norm and tiny and eager"
"""Targets that show that it works."""

DTYPE = "bfloat16"
"""Dtype in which models are trained on a GPU."""

TARGETS = ("--pyargs", "accel_bench_op.targets", "-q", "-p", "no:cacheprovider")


class Endings:
    """Collects how each cell has ended: passed, skipped or failed, and why."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, Any]] = {}
        self.interrupted = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Let the times of all cells be stored, whatever interrupts from here on."""
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        self.interrupted = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the end of a cell, or what kept it from running."""
        if report.when == "call" or not report.passed:
            where = report.longrepr
            reason = where[-1] if isinstance(where, tuple) else str(where or "")
            ending = {"outcome": report.outcome, "reason": reason}
            self.cells[report.location[-1].removeprefix("test_")] = ending


def main() -> None:
    """Run the chosen targets twice, and print one document with all cells."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_micro", description=__doc__)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--small", action="store_true", help="only show that it works")
    parser.add_argument("-k", dest="chosen", help="other targets, as pytest's -k takes them")
    asked = parser.parse_args()
    chosen = asked.chosen or (SMALL if asked.small else CHOSEN)
    cells: list[dict[str, Any]] = []
    # Interrupted by its limit, it says what it knows.
    with contextlib.suppress(KeyboardInterrupt), contextlib.redirect_stdout(sys.stderr):
        for flush in (False, True):
            code, found = run_targets(asked.device, chosen, flush, asked.small)
            cells += found
            if code == pytest.ExitCode.INTERRUPTED:
                break
    document = {"device": asked.device, "dtype": DTYPE, "chosen": chosen, "cells": cells}
    print(json.dumps(document, indent=1))


def run_targets(
    device: str, chosen: str, flush: bool, small: bool
) -> tuple[int, list[dict[str, Any]]]:
    """Run the chosen targets; return the exit code of pytest, which an interrupt only ends, and
    the cells that have ended, each with its median and what stands beside it."""
    os.environ["ACCEL_BENCH_MICRO_DEVICE"] = device
    os.environ["ACCEL_BENCH_MICRO_DTYPE"] = DTYPE
    os.environ["ACCEL_BENCH_MICRO_FLUSH_CACHE"] = str(int(flush))
    endings, handler = Endings(), signal.getsignal(signal.SIGINT)
    with tempfile.TemporaryDirectory() as folder:
        # Neither the checkout's settings of pytest nor its fixtures are for these.
        alone = ("--noconftest", "-c", os.devnull, "--rootdir", folder)
        saved = Path(folder) / "benchmarks.json"
        times = [f"--benchmark-json={saved}", *(["--benchmark-max-time=0"] if small else [])]
        try:
            code = pytest.main([*TARGETS, *alone, *times, "-k", chosen], plugins=[endings])
        except (KeyboardInterrupt, TypeError):
            # Pytest has stored the times; it fails to show an interrupted line without a number.
            code = pytest.ExitCode.INTERRUPTED
        finally:
            signal.signal(signal.SIGINT, handler)
        if endings.interrupted:
            code = pytest.ExitCode.INTERRUPTED
        timed = json.loads(saved.read_text("utf8"))["benchmarks"] if saved.is_file() else []
    for one in timed:
        # An interrupt may come after the times of a cell and before pytest's report of it.
        endings.cells.setdefault(one["name"].removeprefix("test_"), {"reason": ""}).update(
            {
                "median_seconds": one["stats"]["median"],
                "rounds": one["stats"]["rounds"],
                **one["extra_info"],
                "outcome": "passed",
            }
        )
    cells = [{"name": name, "flush": flush, **cell} for name, cell in endings.cells.items()]
    return int(code), cells


if __name__ == "__main__":
    main()
