"""Measure what the probes of memory cost: a training with them, over the same without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.entry import Counts, Entry, ratio_of_pairs, this_machine
from benchmarks.identical import Compared, entry_of, run_comparison, shortened

PROBES = Path(__file__).with_name("memory-probes.yaml")
"""Scenario of a small training without metrics, and with the metric `memory`."""

STACK = "memory"
"""Name of its stack with the metric."""


def measure_memory(counts: Counts) -> Iterator[Entry]:
    """Compare the steps of the window, and the whole processes, in rounds of both."""
    machine = this_machine()
    compared = run_comparison(
        (str(PROBES), *(shortened(counts) if counts.process_rounds == 1 else ()))
    )
    steps = entry_of("memory-steps", compared, STACK, ("same", "inconclusive"), machine)
    yield steps
    samples = run_seconds(compared)
    yield Entry(
        name="memory-run",
        **ratio_of_pairs(samples["memory_run_seconds"], samples["baseline_run_seconds"]),
        goal=None,
        goal_is="at most",
        notes=steps.notes,
        samples=samples,
        machine=machine,
    )


def run_seconds(compared: Compared) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each stack's processes from start to end, in order of rounds."""
    runs = sorted(compared.results, key=lambda run: run.round)
    return {
        f"{stack}_run_seconds": tuple(
            run.seconds for run in runs if run.experiment.stack.name == stack
        )
        for stack in ("baseline", STACK)
    }
