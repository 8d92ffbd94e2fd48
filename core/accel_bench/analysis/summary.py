"""Everything that a comparison of stacks may say about one scenario, as one document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from accel_bench.analysis.aggregate import (
    BY_THE_USER,
    ExperimentRuns,
    StopReason,
    beside_baseline,
    collect_runs,
    loss_ends,
    peak_memory,
    shared_steps,
    step_seconds,
)
from accel_bench.analysis.checks.convergence import LossVerdict, compare_losses
from accel_bench.analysis.checks.noise import load_notes
from accel_bench.analysis.ladder import ladder_steps
from accel_bench.analysis.metrics.breakdown import phases, start_up
from accel_bench.analysis.metrics.memory import memory_figures
from accel_bench.analysis.metrics.throughput import token_summary
from accel_bench.analysis.metrics.utilization import devices_used, peak_flops_of, utilization
from accel_bench.analysis.schema import (
    ExperimentSummary,
    PlannedSummary,
    Summary,
)
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.seeds import compare_over_seeds
from accel_bench.analysis.statistics.verdict import Comparison, compare, paired_logs
from accel_bench.analysis.wording import plain_value, settings
from accel_bench.effective import EffectiveConfiguration
from accel_bench.result import Result, Status
from accel_bench.scenario.models import Stack
from accel_bench.scenario.uses import Use

__all__ = ["ExperimentSummary", "PlannedSummary", "Summary", "exit_code", "summarize"]


class _Judgement(NamedTuple):
    """What a row's comparison with its baseline gave."""

    comparison: Comparison
    """About speed."""

    loss: LossVerdict
    """About the loss."""

    ending: StopReason
    """How the row ended, seen beside its baseline."""


def summarize(  # noqa: PLR0913, PLR0917 - a plan, its results, and what ended them
    scenario: str,
    baseline: str,
    planned: Sequence[PlannedSummary],
    results: Sequence[Result],
    rounds: int,
    stopped: StopReason = BY_THE_USER,
) -> Summary:
    """Bring the results of a scenario together, one row for each planned experiment.

    `results` may hold several attempts of a run and several sessions; stacks are compared with the
    stack called `baseline` at the same sweep point. `rounds` is the number of rounds asked for;
    `stopped` is what ended the session, where it was ended before all of them.
    """
    measured = [collect_runs(plan, results, rounds, stopped) for plan in planned]
    points = list(dict.fromkeys(row.planned.experiment.point for row in measured))
    judged: dict[int, _Judgement] = {}
    steps: dict[str, int] = {}
    for point in points:
        rows = [row for row in measured if row.planned.experiment.point == point]
        judged.update(_judge_point(rows, baseline))
        steps[point] = shared_steps(rows)
    experiments = tuple(
        _row(row, judged[id(row)], steps[row.planned.experiment.point]) for row in measured
    )
    completed = [run for row in measured for run in row.completed.values()]
    return Summary(
        scenario=scenario,
        baseline=baseline,
        experiments=experiments,
        ladder=ladder_steps(measured, [row.ratio for row in experiments]),
        noise=load_notes(completed),
        seeds=compare_over_seeds(measured, baseline),
    )


def exit_code(summaries: Sequence[Summary]) -> int:
    """0 when all is ok, degraded or partly skipped; 1 when something failed; 3 when nothing ran."""
    statuses = [row.status for summary in summaries for row in summary.experiments]
    ran = [status for status in statuses if status is not Status.SKIPPED]
    if not ran:
        return 3
    return 0 if all(status.completed for status in ran) else 1


def differs(stack: Stack) -> str:
    """What a stack adds and changes, in one line."""
    uses = [_use_text(use) for use in stack.uses]
    changed = [f"{key}={plain_value(value)}" for key, value in stack.settings.items()]
    return ", ".join([*uses, *changed]) or "as the scenario says"


def _use_text(use: Use) -> str:
    """`name(option=value)`."""
    return f"{use.use}({settings(use.options)})" if use.options else use.use


def _judge_point(rows: Sequence[ExperimentRuns], baseline: str) -> dict[int, _Judgement]:
    """Compare the stacks of one sweep point, all of them together, with their baseline."""
    base = next((row for row in rows if row.planned.experiment.stack.name == baseline), None)
    reasons = {id(row): _obstacle(row, base) for row in rows}
    open_rows = {str(id(row)): row for row in rows if not reasons[id(row)] and row is not base}
    times = {key: _times(row) for key, row in open_rows.items()}
    compared = compare(_times(base), times, _noise_floor(base, open_rows.values()))
    judged = {id(row): _unjudged(row, reasons[id(row)], row is base) for row in rows}
    for key, row in open_rows.items():
        assert base is not None
        loss = compare_losses(base.completed, row.completed)
        judged[id(row)] = _Judgement(compared[key], loss, beside_baseline(row, base).ending)
    return judged


def _obstacle(row: ExperimentRuns, base: ExperimentRuns | None) -> str:
    """Why a row has no ratio; empty when it can be compared."""
    if row is base and row.usable:
        return "this is the baseline"
    if not row.usable:
        return _ended(row)
    if base is None:
        return "the baseline was not run"
    if not base.usable:
        return f"the baseline {_ended(base)}"
    shared = set(base.speeds) & set(row.speeds)
    return "" if shared else "no round in which it and the baseline both completed"


def _ended(row: ExperimentRuns) -> str:
    """How an experiment without usable numbers ended."""
    status = row.ending.status
    return "was skipped" if status is Status.SKIPPED else f"ended as {status.value}"


def _unjudged(row: ExperimentRuns, reason: str, is_baseline: bool) -> _Judgement:
    """Nothing compared; the baseline is 1 times as fast as itself, by definition."""
    itself = is_baseline and row.usable
    ratio = Interval(median=1.0, low=1.0, high=1.0) if itself else None
    comparison = Comparison(rounds=0, ratio=ratio, verdict="not tested", reason=reason)
    loss = LossVerdict(verdict="not tested", reason=reason)
    return _Judgement(comparison, loss, row.ending)


def _noise_floor(base: ExperimentRuns | None, rows: Iterable[ExperimentRuns]) -> float | None:
    """Relative difference that code identical to the baseline's showed beside it, if any ran."""
    same = [
        logs
        for row in rows
        if base
        and row.planned.experiment.id == base.planned.experiment.id
        and (logs := paired_logs(_times(base), _times(row)))
    ]
    return max((math.expm1(abs(fmean(logs))) for logs in same), default=None)


def _times(row: ExperimentRuns | None) -> Mapping[tuple[str, int], float]:
    """Seconds per real token of every run of a row that may be compared."""
    return row.seconds_per_token if row and row.usable else {}


def _row(row: ExperimentRuns, judged: _Judgement, steps: int) -> ExperimentSummary:
    """Fill in one row; `steps` is how many all runs of its sweep point took."""
    experiment, comparison, loss = row.planned.experiment, judged.comparison, judged.loss
    speed, last, middle = row.tokens_per_second, row.last, row.middle
    devices = experiment.scenario.world_size
    rank = last.ranks[0] if last and last.ranks else None
    counted = list(row.counted.values())
    peak, kind = peak_memory(row.completed)
    return ExperimentSummary(
        experiment_id=experiment.id,
        stack=experiment.stack.name,
        sweep=experiment.sweep,
        status=judged.ending.status,
        reasons=judged.ending.reasons,
        runs=len(row.completed),
        tokens_per_second=speed,
        ratio=comparison.ratio,
        step_seconds=step_seconds(row.speeds),
        peak_memory_bytes=peak,
        loss=loss_ends(row.speeds, steps),
        loss_verdict=loss.verdict,
        verdict=comparison.verdict,
        tokens_per_second_per_device=speed.median / devices if speed else None,
        peak_memory_kind=kind,
        memory=memory_figures(list(row.completed.values())),
        differs=differs(experiment.stack),
        devices_used=devices_used(last),
        plugins=(last or counted[-1]).plugins if counted else (),
        evidence=rank.evidence if rank else {},
        effective=rank.effective if rank else EffectiveConfiguration(),
        tokens=token_summary(last) if last else None,
        start_up=start_up(row.completed.values()),
        phases=phases(list(row.completed.values())),
        utilization=utilization(middle, peak_flops_of(middle)) if middle else None,
        ratio_reason="" if comparison.ratio else comparison.reason,
        verdict_reason=comparison.reason,
        rounds=comparison.rounds,
        minimum_detectable_effect=comparison.minimum_detectable_effect,
        rounds_needed=comparison.rounds_needed,
        loss_difference=loss.largest_difference,
        loss_tolerance=loss.tolerance,
        loss_reason=loss.reason,
    )
