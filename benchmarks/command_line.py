"""Measure the latency of the command line: `--help`, and a list of many plugins."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.entry import Counts, Entry, interleave, median_ratio, this_machine

MANY = 100
"""Distributions in a crowded environment."""

PROGRAM = (sys.executable, "-m", "accel_bench")


def measure_help(counts: Counts) -> Entry:
    """Measure `accel-bench --help` over importing torch, which it must not do."""
    machine = this_machine()
    samples = interleave(
        {
            "help_seconds": lambda: seconds_of([*PROGRAM, "--help"]),
            "import_torch_seconds": lambda: seconds_of([sys.executable, "-c", "import torch"]),
        },
        counts.rounds,
    )
    return Entry(
        name="help",
        value=median_ratio(samples, "help_seconds", "import_torch_seconds"),
        unit="ratio",
        goal=0.06,
        goal_is="at most",
        samples=samples,
        machine=machine,
    )


def measure_listing(counts: Counts) -> Entry:
    """Measure `accel-bench plugins` with many plugin distributions over that with one."""
    machine = this_machine()
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder, "few"), Path(folder, "many")
        make_distributions(few, 1)
        make_distributions(many, MANY)
        command = [*PROGRAM, "plugins", "--format", "json"]
        samples = interleave(
            {
                "many_seconds": lambda: seconds_of(command, many),
                "few_seconds": lambda: seconds_of(command, few),
            },
            counts.rounds,
        )
    return Entry(
        name="listing",
        value=median_ratio(samples, "many_seconds", "few_seconds"),
        unit="ratio",
        goal=1.05,
        goal_is="at most",
        samples=samples,
        machine=machine,
    )


def seconds_of(command: Sequence[str], path: Path | None = None) -> float:
    """Return wall-clock seconds of a command, with an optional folder in front of Python's path.

    Raises CalledProcessError when it fails.
    """
    inherited = os.environ.get("PYTHONPATH")
    folders = [str(path)] * (path is not None) + [inherited] * bool(inherited)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    started = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def make_distributions(folder: Path, count: int) -> None:
    """Write the metadata of that many plugin distributions, as an installer would leave them."""
    for number in range(count):
        name = f"accel-bench-made-up-{number:03}"
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
            "Requires-Dist: accel-bench\nRequires-Dist: torch>=2.11\n",
            encoding="utf8",
        )
        info.joinpath("entry_points.txt").write_text(
            f"[accel_bench]\nmade-up-{number:03} = accel_bench_made_up_{number:03}:Plugin\n",
            encoding="utf8",
        )
