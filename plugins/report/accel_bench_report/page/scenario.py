"""Data of one scenario in a report: ranked rows, and reasons why other rows are not ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accel_bench.analysis.aggregate import ExperimentRuns, collect_runs
from accel_bench.analysis.checks.comparability import (
    NOT_COMPARABLE,
    Difference,
    comparability_of_rounds,
)
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.summary import collect_raced, summarize_runs
from accel_bench.machine.info import Machine
from accel_bench.result import Result, Status
from accel_bench_report.commands import Repetitions
from accel_bench_report.learning.convergence import converge
from accel_bench_report.learning.schema import ConvergenceDocument
from accel_bench_report.page.memory_parts import MemoryAtPeak, memory_at_peak
from accel_bench_report.page.stored_plan import StoredPlan
from accel_bench_report.page.waterfall import Waterfall, waterfall

WORDS = {
    Status.OOM: "out of memory",
    Status.PLUGIN_ERROR: "failed in a plugin",
    Status.INFRA_ERROR: "lost to the machine",
    Status.TIMEOUT: "over the time limit",
}
"""Readable words for statuses whose names are abbreviations."""


Badges = Mapping[tuple[str, str], tuple[str, str]]
"""Badges of reproductions with their explanations, by stack and sweep point."""


@dataclass(frozen=True)
class PageRow:
    """One experiment as a row of a page."""

    summary: ExperimentSummary
    runs: ExperimentRuns

    why_not_ranked: str
    """Reason why the row is not ranked; empty if ranked."""

    declared: tuple[Difference, ...] = ()
    """Differences from the baseline that the stack declares."""

    differing: tuple[Difference, ...] = ()
    """Other differences from the baseline."""

    waterfall: Waterfall | None = None
    """Time difference to the baseline by phase; null for the baseline, or without phases."""

    memory: MemoryAtPeak | None = None

    repeated: tuple[str, str] = ("", "")
    """Badge for sessions reproduced by other people, with its explanation; else empty."""

    @property
    def last_run(self) -> Result | None:
        """Last run of the experiment, with any status."""
        counted = list(self.runs.counted.values())
        return counted[-1] if counted else None


@dataclass(frozen=True)
class ScenarioPage:
    """Data of one scenario measured by one command."""

    command: str
    """Id of the command's first session."""

    started_at: str
    """UTC time of the first run, ISO 8601."""

    summary: Summary
    points: tuple[tuple[PageRow, ...], ...]
    """Rows by sweep point: ranked ones by speed, the fastest first, then unranked ones."""

    machines: tuple[Machine, ...]
    """Distinct machines of the runs."""

    learning: ConvergenceDocument | None = None
    """Learning of the stacks; null without evaluations or steps after the window."""

    arguments: tuple[str, ...] = ()
    """Command-line arguments of the command."""

    running: tuple[int, int] | None = None
    """Numbers of finished and of planned runs while the session is running; else None."""

    @property
    def rows(self) -> list[PageRow]:
        """Rows of all sweep points."""
        return [row for point in self.points for row in point]


def scenario_page(
    command: str,
    plan: StoredPlan,
    results: Sequence[Result],
    repetitions: Repetitions | None = None,
) -> ScenarioPage:
    """Return the page data of one or more runs of a scenario.

    `command` is the id of the first session, `plan` the plan of the runs, and `repetitions` holds
    other people's reproductions, which give rows a badge.
    """
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
    repeated = repetitions.badges(results, plan.baseline) if repetitions else {}
    return ScenarioPage(
        command=command,
        started_at=min(result.started_at for result in results),
        summary=summary,
        points=tuple(_point(rows, plan.baseline, repeated) for rows in points.values()),
        machines=_machines(results),
        learning=_learning(runs, plan.baseline),
    )


def _learning(rows: Sequence[ExperimentRuns], baseline: str) -> ConvergenceDocument | None:
    runs = [run for row in rows for run in row.completed.values()]
    if not any(rank.learning for run in runs for rank in run.ranks):
        return None
    return converge(rows, {run.session: baseline for run in runs})


def count_endings(rows: Sequence[PageRow]) -> list[tuple[str, int]]:
    """Return the number of rows by outcome: `measured` first, then `out of memory`, ..."""
    counts = Counter(map(_ending, rows))
    return sorted(counts.items(), key=lambda pair: (pair[0] != "measured", -pair[1], pair[0]))


def status_word(status: Status) -> str:
    """Return a readable word for a status."""
    return WORDS.get(status, status.value)


def _ending(row: PageRow) -> str:
    if row.runs.imported:
        return "imported"
    if not row.summary.status.completed:
        return status_word(row.summary.status)
    return "failed the self-audit" if row.summary.failed_audit else "measured"


def _point(
    rows: Sequence[tuple[ExperimentSummary, ExperimentRuns]],
    baseline: str,
    repeated: Badges,
) -> tuple[PageRow, ...]:
    """Return the rows of one sweep point: ranked rows, the best first, then unranked rows.

    `repeated` has the badges of rows whose sessions other people have reproduced.
    """
    base = next((pair for pair in rows if pair[0].stack == baseline), None)
    built = [_row(row, own, base, repeated) for row, own in rows]
    return tuple(sorted(built, key=_place))


def _place(row: PageRow) -> tuple[bool, bool, float]:
    """Return the sort key of a row: ranked rows come first, from best to worst."""
    quantity = row.summary.quantity
    best = quantity.value.median if quantity.value else 0.0
    sign = 1 if quantity.better == "lower" else -1
    return bool(row.why_not_ranked), quantity.value is None, sign * best


def _row(
    row: ExperimentSummary,
    own: ExperimentRuns,
    base: tuple[ExperimentSummary, ExperimentRuns] | None,
    repeated: Badges,
) -> PageRow:
    other = base if base and base[1] is not own else None
    both = comparability_of_rounds(other[1].completed, own.completed) if other else None
    why = why_not_ranked(row, own)
    sound = other is not None and not why and not other[0].failed_audit
    return PageRow(
        summary=row,
        runs=own,
        why_not_ranked=why,
        declared=both.declared if both else (),
        differing=both.differing if both else (),
        waterfall=waterfall(other[0], row) if other and sound else None,
        memory=memory_at_peak(row.memory, own.last),
        repeated=repeated.get((row.stack, own.planned.experiment.point), ("", "")),
    )


def why_not_ranked(row: ExperimentSummary, own: ExperimentRuns) -> str:
    """Return the reason why a row with the runs `own` is not ranked; empty if it is ranked."""
    other = f"it did not {'answer' if row.generated else 'train'} the same"
    reasons = {
        "imported: it was not measured here": own.imported,
        status_word(row.status): not row.status.completed,
        "its own figures contradict one another": row.failed_audit,
        "no speed was measured": row.tokens_per_second is None,
        f"saturated at {row.offered_rate} requests/s": row.saturated,
        other: row.training_difference,
        "not comparable": row.verdict_reason.startswith(NOT_COMPARABLE),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _machines(results: Sequence[Result]) -> tuple[Machine, ...]:
    machines: list[Machine] = []
    for result in results:
        # The load of that minute is no part of what the machine is.
        machine = result.machine and result.machine.model_copy(update={"load_average": None})
        if machine and machine not in machines:
            machines.append(machine)
    return tuple(machines)
