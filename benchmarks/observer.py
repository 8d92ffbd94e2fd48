"""Measure what the observer of `accel-bench ab` adds to the steps of a command."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from accel_bench_ab.launch import command_environment

from benchmarks.entry import Counts, Entry, interleave, this_machine

LOOP = Path(__file__).parent / "observed_loop.py"


def measure_observer(counts: Counts) -> Entry:
    """Measure the microseconds per step that the observer adds, 4,096 tokens of a batch counted.

    A note says what hooks that do nothing add in the observer's places.
    """
    machine = this_machine()
    samples = interleave(
        {
            "observed_microseconds": lambda: loop(counts.laps, observed=True),
            "bare_microseconds": lambda: loop(counts.laps),
            "empty_hooks_microseconds": lambda: loop(counts.laps, "empty"),
        },
        counts.rounds,
    )

    def added(side: str) -> float:
        both = zip(samples[side], samples["bare_microseconds"], strict=True)
        return median(more - bare for more, bare in both)

    return Entry(
        name="observer",
        value=added("observed_microseconds"),
        unit="microseconds per step",
        goal=10,
        goal_is="at most",
        notes=(f"hooks that do nothing add {added('empty_hooks_microseconds'):.1f}",),
        samples=samples,
        machine=machine,
    )


def loop(steps: int, *more: str, observed: bool = False) -> float:
    """Return the microseconds of a step of a loop in a process of its own.

    `more` are the loop's arguments after the number of steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        page = Path(folder, "no-page")
        done = subprocess.run(
            [sys.executable, str(LOOP), str(steps), *more],
            env=command_environment(variables, Path(folder), page, observed),
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout)
