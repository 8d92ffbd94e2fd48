"""Measure verdicts on known truths: a stack compared with itself, and with a longer step."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from accel_bench.analysis.checks.noise import load_of
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.documents.base import JsonValue
from accel_bench.result import Result
from accel_bench.store.database import open_store
from accel_bench.testing import run_program
from benchmarks.entry import Counts, Entry, this_machine
from benchmarks.gpu_sections import TINIER, settings

AGAIN = "baseline-again"
"""Name of the stack that does what the baseline does."""

SLOWDOWN = Path(__file__).with_name("slowdown.yaml")
"""Scenario of a step of known length, and of two longer ones."""

LOADS = {"stolen": "share_of_cpus_stolen", "others": "share_of_cpus_by_other_work"}
"""Load of the host during a run, by the name that its samples get."""


class Compared(NamedTuple):
    """Results and output of one `accel-bench run`."""

    document: Mapping[str, Any]
    """What it printed."""

    results: Sequence[Result]
    """What it stored: every run, in the order in which they were started."""


def measure_identical(counts: Counts, device: str = "cpu") -> Entry:
    """Compare the quickstart's baseline with itself, each run in a process of its own.

    A stack with another name does the very same: whoever calls it faster or slower is wrong.
    """
    arguments = ("quickstart", "--set", f"stacks.{AGAIN}=[]", "--device", device)
    tiny = settings(*TINIER) if counts.process_rounds == 1 else ()
    return _measure("identical", (*arguments, *tiny), AGAIN, counts, ("same", "inconclusive"))


def measure_identical_sessions(counts: Counts) -> Entry:
    """Run sessions whose rounds are `auto`, of a baseline and two stacks that do the very same."""
    names = [f"{AGAIN}-{number}" for number in (1, 2)]
    words = [word for name in names for word in ("--set", f"stacks.{name}=[]", "--only", name)]
    few = shortened(counts) if counts.process_rounds == 1 else ("--rounds", "auto")
    alarms, rounds = [], []
    machine = this_machine()
    for _ in range(counts.identical_pairs):
        compared = run_comparison(("quickstart", *words, *settings(*TINIER), *few))
        rows = [one for one in compared.document["experiments"] if one["stack"] in names]
        found = map(_comparison, rows)
        alarms.append(float(any(one.wins or one.verdict == "worse" for one in found)))
        rounds += [float(one["rounds"]) for one in rows]
    return Entry(
        name="identical-sessions",
        value=fmean(alarms),
        unit="fraction of sessions that call one of two equal stacks faster or slower",
        goal=0.01,
        goal_is="at most",
        notes=(f"{len(alarms)} sessions, {fmean(rounds):.1f} rounds of a stack on average",),
        samples={"alarms": tuple(alarms), "rounds": tuple(rounds)},
        machine=machine,
    )


def measure_slowdown(counts: Counts, percent: int) -> Entry:
    """Compare a step that sleeps 5 or 10 % longer with the baseline's, each in a process."""
    name = f"slower-by-{percent}"
    return _measure(f"slowdown-{percent}", (str(SLOWDOWN),), name, counts, ("worse",))


def _measure(
    name: str, arguments: Sequence[str], stack: str, counts: Counts, right: tuple[str, ...]
) -> Entry:
    """Compare a stack with the baseline by accel-bench, and keep every process's time."""
    machine = this_machine()
    compared = run_comparison((*arguments, "--only", stack, *shortened(counts)))
    return entry_of(name, compared, stack, right, machine)


def entry_of(
    name: str,
    compared: Compared,
    stack: str,
    right: tuple[str, ...],
    machine: dict[str, JsonValue],
) -> Entry:
    """Return the speed of a stack over that of the baseline, with accel-bench's verdict."""
    row = next(one for one in compared.document["experiments"] if one["stack"] == stack)
    said = _comparison(row)
    if said.ratio is None:
        raise RuntimeError(
            f"{name}: no ratio: {'; '.join([*row['reasons'], row['verdict_reason']])}"
        )
    low, high = said.ratio.low, said.ratio.high
    return Entry(
        name=name,
        value=said.ratio.median,
        interval=None if low is None or high is None else (low, high),
        unit="ratio",
        goal=None,
        goal_is="at least",
        right_verdicts=right,
        comparison=said,
        notes=notes_of(compared, stack),
        samples=samples_of(compared.results),
        machine=machine,
    )


def _comparison(row: Mapping[str, Any]) -> Comparison:
    """Return the comparison that a row of a document holds."""
    return Comparison(**{name: row[name] for name in Comparison.model_fields})


def shortened(counts: Counts) -> tuple[str, ...]:
    """Return options that shorten a comparison where it only has to work."""
    if counts.process_rounds > 1:
        return ("--rounds", str(counts.process_rounds))
    return ("--rounds", "1", *settings(f"measure.steps={counts.steps}", "measure.warmup=1"))


def run_comparison(arguments: Sequence[str]) -> Compared:
    """Run the program as its users do, in a results folder of its own.

    Raises RuntimeError with the end of its output where a run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = ("run", *arguments, "--results", folder)
        done = run_program(*words, "--format", "json", "--quiet")
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {(done.stderr or done.stdout)[-2000:]}")
        with open_store(Path(folder), write=False) as store:
            return Compared(json.loads(done.stdout), store.results())


def samples_of(results: Sequence[Result]) -> dict[str, tuple[float, ...]]:
    """Return the time and the host's load of each stack's processes, in order of rounds.

    Seconds per real token of the window are compared. Loads that this system does not report are
    left out.
    """
    samples: dict[str, tuple[float, ...]] = {}
    names = sorted({result.experiment.stack.name for result in results})
    for name in names:
        runs = sorted((r for r in results if r.experiment.stack.name == name), key=_round_of)
        side = name.replace("-", "_")
        speeds = [speed for run in runs if (speed := run_throughput(run)) is not None]
        samples[f"{side}_seconds_per_token"] = tuple(speed.seconds_per_token for speed in speeds)
        loads = [load._asdict() for run in runs if (load := load_of(run)) is not None]
        for kind, words in LOADS.items():
            shares = tuple(load[kind] for load in loads if load[kind] is not None)
            if len(shares) == len(runs):
                samples[f"{side}_{words}"] = shares
    return samples


def notes_of(compared: Compared, stack: str) -> tuple[str, ...]:
    """Return the document's notes: on the host's load, the loss, and doubtful runs."""
    rows = [one for one in compared.document["experiments"] if one["stack"] in ("baseline", stack)]
    doubts = [f"{one['stack']}: {reason}" for one in rows for reason in one["reasons"]]
    losses = [f"loss of {stack}: {one['loss_verdict']}" for one in rows if one["stack"] == stack]
    return (*compared.document["noise"], *losses, *doubts)


def _round_of(result: Result) -> int:
    return result.round
