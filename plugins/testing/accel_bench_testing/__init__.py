"""Implementation of `accel_bench.testing`, the test kit for authors of plugins."""

from __future__ import annotations

from accel_bench_testing.check import check_plugin
from accel_bench_testing.factory import (
    close_run,
    evidence_of,
    make_experiment,
    make_machine,
    make_run,
)
from accel_bench_testing.report import CheckReport, Clause
from accel_bench_testing.running import run_plugin, run_program, run_scenario

__all__ = [
    "CheckReport",
    "Clause",
    "check_plugin",
    "close_run",
    "evidence_of",
    "make_experiment",
    "make_machine",
    "make_run",
    "run_plugin",
    "run_program",
    "run_scenario",
]
