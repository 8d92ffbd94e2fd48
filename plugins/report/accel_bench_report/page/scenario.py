"""What a report shows of one scenario: its rows, ranked where they may be, with their grounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from accel_bench.analysis.aggregate import ExperimentRuns, collect_runs
from accel_bench.analysis.checks.comparability import (
    NOT_COMPARABLE,
    Difference,
    comparability_of_rounds,
)
from accel_bench.analysis.reproduction import (
    reproduce_stacks,
    row_key,
    summarize_results,
)
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.statistics.verdict import Finding
from accel_bench.analysis.summary import collect_raced, summarize_runs
from accel_bench.machine.info import Machine
from accel_bench.result import Result, Status
from accel_bench_report.learning.convergence import converge
from accel_bench_report.learning.schema import ConvergenceDocument
from accel_bench_report.page.memory_parts import MemoryAtPeak, memory_at_peak
from accel_bench_report.page.repetitions import Repetition
from accel_bench_report.page.stored_plan import StoredPlan
from accel_bench_report.page.waterfall import Waterfall, waterfall

WORDS = {
    Status.OOM: "out of memory",
    Status.PLUGIN_ERROR: "failed in a plugin",
    Status.INFRA_ERROR: "lost to the machine",
    Status.TIMEOUT: "over the time limit",
}
"""Endings whose names are no words."""


StackRepetition = tuple[Finding, bool]
"""What one repetition found of a stack at a sweep point, and whether on the session's machine."""

Repeated = dict[tuple[str, str], list[StackRepetition]]
"""What repetitions found, by `row_key`."""


@dataclass(frozen=True)
class PageRow:
    """One experiment."""

    summary: ExperimentSummary
    runs: ExperimentRuns

    why_not_ranked: str
    """Why it has no place among the others; empty where it has one."""

    declared: tuple[Difference, ...] = ()
    """What differs from the baseline and is declared by the stack."""

    differing: tuple[Difference, ...] = ()
    """What else differs."""

    waterfall: Waterfall | None = None
    """From the baseline's step to this one; null for the baseline, and without phases."""

    memory: MemoryAtPeak | None = None

    repetitions: tuple[StackRepetition, ...] = ()
    """What those found who have repeated the session's bundle."""

    @property
    def last_run(self) -> Result | None:
        """The last run, however it ended."""
        counted = list(self.runs.counted.values())
        return counted[-1] if counted else None


@dataclass(frozen=True)
class ScenarioPage:
    """One scenario, as one command measured it."""

    command: str
    """Id of the command's first session."""

    started_at: str
    """UTC time of the first run, ISO 8601."""

    summary: Summary
    points: tuple[tuple[PageRow, ...], ...]
    """Rows by sweep point: ranked ones by speed, the fastest first, then the others."""

    machines: tuple[Machine, ...]
    """Machines of its runs, each once."""

    learning: ConvergenceDocument | None = None
    """How its stacks learned; null where nothing was evaluated and no learning curve was made."""

    arguments: tuple[str, ...] = ()
    """What the command was started with."""

    running: tuple[int, int] | None = None
    """Runs that have ended and runs that are planned, while the session goes on; else None."""

    @property
    def rows(self) -> list[PageRow]:
        """All rows in this order."""
        return [row for point in self.points for row in point]


def scenario_page(
    command: str,
    plan: StoredPlan,
    results: Sequence[Result],
    repetitions: Sequence[Repetition] = (),
) -> ScenarioPage:
    """Return the page of the runs of one scenario, and of who repeated them; at least one run."""
    if plan.race:
        runs, raced = collect_raced(plan.planned, results, plan.baseline, plan.rounds)
    else:
        runs = [collect_runs(planned, results, plan.rounds) for planned in plan.planned]
        raced = None
    summary = summarize_runs(
        results[0].experiment.scenario.name, plan.baseline, runs, plan.reference, plan.sections
    ).model_copy(update={"race": raced})
    points: dict[str, list[tuple[ExperimentSummary, ExperimentRuns]]] = {}
    for row, own in zip(summary.experiments, runs, strict=True):
        points.setdefault(own.planned.experiment.point, []).append((row, own))
    repeated = _judged(results, repetitions, plan.baseline)
    return ScenarioPage(
        command=command,
        started_at=min(result.started_at for result in results),
        summary=summary,
        points=tuple(_point(rows, plan.baseline, repeated) for rows in points.values()),
        machines=_machines(results),
        learning=_learning(runs, plan.baseline),
    )


def _judged(
    results: Sequence[Result], repetitions: Sequence[Repetition], baseline: str
) -> Repeated:
    """Compare a session's runs with each repetition; return verdicts by `row_key`.

    The baseline has none: it is what ratios are to.
    """
    found: Repeated = {}
    for one in repetitions:
        here = summarize_results(one.results, baseline)
        for row in reproduce_stacks(results, here, one.results):
            if row.verdict is not None:
                judged = row.verdict, one.same_machine
                found.setdefault(row_key(row.stack, row.sweep), []).append(judged)
    return found


def _learning(rows: Sequence[ExperimentRuns], baseline: str) -> ConvergenceDocument | None:
    runs = [run for row in rows for run in row.completed.values()]
    if not any(rank.learning for run in runs for rank in run.ranks):
        return None
    return converge(rows, {run.session: baseline for run in runs})


def count_endings(rows: Sequence[PageRow]) -> list[tuple[str, int]]:
    """Return how many rows ended in which way: `measured` first, then `out of memory`, ..."""
    counts = Counter(map(_ending, rows))
    return sorted(counts.items(), key=lambda pair: (pair[0] != "measured", -pair[1], pair[0]))


def status_word(status: Status) -> str:
    """Return a status in words."""
    return WORDS.get(status, status.value)


def _ending(row: PageRow) -> str:
    if row.runs.imported:
        return "imported"
    if not row.summary.status.completed:
        return status_word(row.summary.status)
    return "disowned by the self-audit" if row.summary.disowned else "measured"


def _point(
    rows: Sequence[tuple[ExperimentSummary, ExperimentRuns]],
    baseline: str,
    repeated: Repeated,
) -> tuple[PageRow, ...]:
    """Return the rows of one sweep point in their order."""
    base = next((pair for pair in rows if pair[0].stack == baseline), None)
    built = [_row(row, own, base, repeated) for row, own in rows]
    return tuple(sorted(built, key=_place))


def _place(row: PageRow) -> tuple[bool, bool, float]:
    """Return the place of a row: the best one of what is compared comes first."""
    quantity = row.summary.quantity
    best = quantity.value.median if quantity.value else 0.0
    sign = 1 if quantity.better == "lower" else -1
    return bool(row.why_not_ranked), quantity.value is None, sign * best


def _row(
    row: ExperimentSummary,
    own: ExperimentRuns,
    base: tuple[ExperimentSummary, ExperimentRuns] | None,
    repeated: Repeated,
) -> PageRow:
    other = base if base and base[1] is not own else None
    both = comparability_of_rounds(other[1].completed, own.completed) if other else None
    why = why_not_ranked(row, own)
    sound = other is not None and not why and not other[0].disowned
    return PageRow(
        summary=row,
        runs=own,
        why_not_ranked=why,
        declared=both.declared if both else (),
        differing=both.differing if both else (),
        waterfall=waterfall(other[0], row) if other and sound else None,
        memory=memory_at_peak(row.memory, own.last),
        repetitions=tuple(repeated.get(row_key(row.stack, row.sweep), ())),
    )


def why_not_ranked(row: ExperimentSummary, own: ExperimentRuns) -> str:
    """Return why a row has no place among the others; empty where it has one."""
    other = f"it did not {'answer' if row.generated else 'train'} the same"
    reasons = {
        "imported: it was not measured here": own.imported,
        status_word(row.status): not row.status.completed,
        "its own figures contradict one another": row.disowned,
        "no speed was measured": row.tokens_per_second is None,
        f"saturated at {row.offered_rate} requests/s": row.saturated,
        other: row.training_difference,
        "not comparable": row.verdict_reason.startswith(NOT_COMPARABLE),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _machines(results: Sequence[Result]) -> tuple[Machine, ...]:
    found: list[Machine] = []
    for result in results:
        # The load of that minute is no part of what the machine is.
        machine = result.machine and result.machine.model_copy(update={"load_average": None})
        if machine and machine not in found:
            found.append(machine)
    return tuple(found)
