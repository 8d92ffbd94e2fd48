"""Summary of a scenario's results: the comparison of its stacks as one document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from accel_bench.analysis.aggregate import (
    BY_THE_USER,
    ExperimentRuns,
    PlannedSummary,
    StopReason,
    beside_baseline,
    by_point,
    collect_runs,
    obstacle,
    shared_steps,
)
from accel_bench.analysis.checks.comparability import comparability_of_rounds
from accel_bench.analysis.checks.noise import load_notes
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import (
    TrainingComparison,
    training_not_compared,
)
from accel_bench.analysis.compare import judged_rows
from accel_bench.analysis.experiment_figures import figures
from accel_bench.analysis.metrics.breakdown import phases, start_up, update_cost
from accel_bench.analysis.metrics.memory import memory_figures
from accel_bench.analysis.metrics.throughput import token_summary
from accel_bench.analysis.metrics.utilization import devices_used, peak_flops_of, utilization
from accel_bench.analysis.race import RaceSummary, race_looks, race_point
from accel_bench.analysis.schema import ExperimentSummary, SlowRun, Summary
from accel_bench.analysis.sections import with_sections
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.sequential import Outcome, judge_comparison
from accel_bench.analysis.statistics.verdict import (
    MINIMUM_ROUNDS,
    Comparison,
    Policy,
    RoundKey,
    compare_stacks,
    paired_logs,
)
from accel_bench.analysis.wording import label, percent, ratio_interval
from accel_bench.effective import EffectiveConfiguration
from accel_bench.result import Result, Status

DEVIATIONS = 6.0
"""Robust standard deviations from the median beyond which a round is an outlier."""

SMALLEST_FACTOR = 1.5
"""Minimum ratio of a slow run's time to the usual time."""


def summarize(  # noqa: PLR0913, PLR0917 - a plan, its results, and what ended them
    scenario: str,
    baseline: str,
    planned: Sequence[PlannedSummary],
    results: Sequence[Result],
    rounds: int,
    stopped: StopReason = BY_THE_USER,
    reference: str = "",
    race: bool = False,
    sections: Sequence[str] = (),
) -> Summary:
    """Return the summary of a scenario's results, with a row for each planned experiment.

    `results` may hold several attempts and sessions; stacks are compared with the stack called
    `baseline` at the same sweep point. `rounds` is the number of planned rounds, `stopped` the
    reason for missing rounds. `reference` is the tag of the sweep point that others are compared
    with, by default the first. With `race`, dropped stacks have fewer rounds. `sections` are names
    of further sections, from other distributions.
    """
    if race:
        measured, raced = collect_raced(planned, results, baseline, rounds, stopped)
    else:
        measured = [collect_runs(plan, results, rounds, stopped) for plan in planned]
        raced = None
    summary = summarize_runs(scenario, baseline, measured, reference, sections)
    return summary.model_copy(update={"race": raced})


def collect_raced(
    planned: Sequence[PlannedSummary],
    results: Sequence[Result],
    baseline: str,
    rounds: int,
    stopped: StopReason = BY_THE_USER,
) -> tuple[list[ExperimentRuns], RaceSummary]:
    """Return a race's experiments, with the rounds until their stack was dropped, and a summary of
    dropped stacks and of the runs saved. The arguments are as for `summarize`."""
    # Rounds that a dropped stack was spared are not missing.
    points = by_point(collect_runs(plan, results, 0) for plan in planned)
    drops = tuple(drop for point in points for drop in race_point(point, baseline, rounds))
    runs = rounds * sum(not plan.skipped for plan in planned)
    raced = RaceSummary(looks=race_looks(rounds), drops=drops, runs_planned=runs)
    measured = [collect_runs(plan, results, rounds, stopped) for plan in planned]
    return [_as_dropped(row, raced, results, stopped) for row in measured], raced


def summarize_runs(
    scenario: str,
    baseline: str,
    measured: Sequence[ExperimentRuns],
    reference: str = "",
    sections: Sequence[str] = (),
) -> Summary:
    """Return the summary of collected runs, with arguments as for `summarize`."""
    summaries = {
        id(row): summary
        for rows in by_point(measured)
        for row, summary in zip(rows, _summarize_point(rows, baseline), strict=True)
    }
    experiments = tuple(summaries[id(row)] for row in measured)
    summary = Summary(
        scenario=scenario,
        baseline=baseline,
        experiments=experiments,
        notices=tuple(
            dict.fromkeys(text for row in measured for text in row.planned.experiment.notices)
        ),
        noise=load_notes([run for row in measured for run in row.completed.values()]),
        reference=reference,
    )
    return with_sections(summary, measured, sections)


def _as_dropped(
    row: ExperimentRuns, race: RaceSummary, results: Sequence[Result], stopped: StopReason
) -> ExperimentRuns:
    """Return the experiment `row`; for a dropped stack, the planned rounds end at the drop."""
    experiment = row.planned.experiment
    for drop in race.drops:
        if (drop.stack, drop.sweep) == (experiment.stack.name, experiment.sweep):
            fewer = collect_runs(row.planned, results, drop.rounds, stopped)
            return replace(fewer, dropped=drop.reason)
    return row


def exit_code(summaries: Sequence[Summary], answers: Collection[Status] = ()) -> int:
    """Return the exit code: 0 if all experiments that ran completed, 1 if a round failed or the
    compared quantity is missing, 3 if nothing ran.

    `answers` are further statuses that are no failures.
    """
    rows = [row for summary in summaries for row in summary.experiments]
    ran = [row for row in rows if row.status is not Status.SKIPPED]
    if not ran:
        return 3
    if any(row.quantity.obstacle for row in ran if row.status.completed):
        return 1
    statuses = [status for row in ran for status in (row.status, *row.failed_rounds)]
    return 0 if all(status.completed or status in answers for status in statuses) else 1


def judge_row(row: ExperimentSummary, baseline: str, floor: float) -> tuple[Outcome, str]:
    """Return the outcome of testing whether a stack is slower by more than `floor`, with the
    reason. A `floor` of 0.01 is 1 %."""
    name, allowed = label(row), percent(floor)
    if row.not_the_same:
        return "regression", f"{name} is not the same as {baseline}: {row.not_the_same}"
    outcome: Outcome = "inconclusive" if row.untested else judge_comparison(row, floor).outcome
    words = row.words
    times = f"{words.times}{row.quantity.by}"
    basis = f"{ratio_interval(row.ratio)} {times}" if row.ratio else row.verdict_reason
    worse = f"{words.worse} than {baseline} by more than {allowed}"
    if outcome == "regression":
        return outcome, f"{name} is {worse}: {basis}"
    if outcome == "passed":
        return outcome, f"{name} is not {worse}: {basis}"
    ended = () if row.status.completed else row.reasons
    reasons = dict.fromkeys((basis, row.untested or row.verdict_reason, *ended))
    reason = "; ".join(filter(None, reasons))
    return outcome, f"it is open whether {name} is {worse}: {reason}"


def _summarize_point(rows: Sequence[ExperimentRuns], baseline: str) -> list[ExperimentSummary]:
    """Return the rows of one sweep point, whose stacks are compared together with the baseline."""
    base = next((row for row in rows if row.planned.experiment.stack.name == baseline), None)
    steps = shared_steps(rows)
    obstacles = [_obstacle(row, base) for row in rows]
    open_rows = {str(n): row for n, row in enumerate(rows) if not obstacles[n]}
    compared = _compare(base, open_rows) if base else {}
    summaries = []
    for number, row in enumerate(rows):
        comparison, reason = compared.get(str(number)), obstacles[number]
        if base and comparison:
            training = compare_training(base.completed, row.completed)
            both = comparability_of_rounds(base.completed, row.completed)
            speed = judged_rows(comparison, (base, row), training, both)
            shown = beside_baseline(row, base)
            summary = _row(shown, speed, training, steps)
            names = base.planned.experiment.stack.name, row.planned.experiment.stack.name
            outliers = slow_runs(base.compared_seconds, row.compared_seconds, names)
            slow = tuple(run for run in outliers if run.round not in row.repeated)
            other = tuple(reason for reason in shown.other_work if reason not in base.other_work)
            is_open = speed.verdict == "inconclusive" and row.quantity.of_speed
            more = {
                "slow_runs": slow if is_open else (),
                "other_work": other,
            }
            summaries.append(summary.model_copy(update=more))
        else:
            # The baseline is 1 times as fast as itself, by definition.
            itself = row is base and row.usable
            ratio = Interval(median=1.0, low=1.0, high=1.0) if itself else None
            comparison = Comparison(ratio=ratio, verdict_reason=reason)
            summaries.append(_row(row, comparison, training_not_compared(reason), steps))
    return summaries


def slow_runs(
    baseline: Mapping[RoundKey, float], stack: Mapping[RoundKey, float], names: tuple[str, str]
) -> list[SlowRun]:
    """Return the slow runs behind outliers among at least five rounds, by seconds per token.

    `names` are the names of the baseline and of the stack. An outlier's ratio is farther from the
    median than six robust standard deviations (1.4826 times the median absolute deviation), and
    than a factor of 1.5. Of its two runs, the slow run is farther from its stack's median.
    """
    keys = sorted(set(baseline) & set(stack))
    if len(keys) < MINIMUM_ROUNDS:
        return []
    sides = [{key: math.log(side[key]) for key in keys} for side in (baseline, stack)]
    logs = {key: sides[0][key] - sides[1][key] for key in keys}
    middle = median(logs.values())
    spread = 1.4826 * median(abs(log - middle) for log in logs.values())
    threshold = max(DEVIATIONS * spread, math.log(SMALLEST_FACTOR))
    runs = []
    for key, log in logs.items():
        if abs(log - middle) > threshold:
            late = [side[key] - median(side.values()) for side in sides]
            factor = math.exp(max(late))
            if factor >= SMALLEST_FACTOR:  # A run that is fast instead is not repeated.
                name = names[0 if late[0] > late[1] else 1]
                runs.append(SlowRun(stack=name, session=key[0], round=key[1], factor=factor))
    return runs


def _obstacle(row: ExperimentRuns, base: ExperimentRuns | None) -> str:
    """Return the reason why an experiment is not compared with the baseline, or an empty text."""
    if base is None:
        return "the baseline was not run" if row.usable else row.how_it_ended
    shared = set(base.speeds) & set(row.speeds)
    none = "" if shared else "no round in which it and the baseline both completed"
    return obstacle(row, base, "the baseline") or none


def _compare(base: ExperimentRuns, open_rows: dict[str, ExperimentRuns]) -> dict[str, Comparison]:
    """Return the comparison of each of `open_rows` with `base`. Rows with the id of `base` are the
    same experiment: the largest difference between them is the noise floor."""
    costs = {key: row.quantity.costs for key, row in open_rows.items()}
    identical = [
        math.expm1(abs(fmean(logs)))
        for key, row in open_rows.items()
        if row.planned.experiment.id == base.planned.experiment.id
        and (logs := paired_logs(base.quantity.costs, costs[key]))
    ]
    policy = Policy(noise_floor=max(identical, default=None))
    return compare_stacks(base.quantity.costs, costs, policy)


def _row(
    row: ExperimentRuns, comparison: Comparison, training: TrainingComparison, steps: int
) -> ExperimentSummary:
    """Return the row of an experiment; `steps` is the number of steps that all runs share."""
    speed, last, middle = row.tokens_per_second, row.last, row.middle
    devices = row.planned.experiment.scenario.world_size
    rank = last.ranks[0] if last and last.ranks else None
    completed, counted = list(row.completed.values()), list(row.counted.values())
    return ExperimentSummary(
        **dict(figures(row, steps)),
        **dict(comparison),
        **dict(training),
        other_work=row.other_work,
        tokens_per_second_per_device=speed.median / devices if speed else None,
        memory=memory_figures(completed),
        devices_used=devices_used(last),
        plugins=(last or counted[-1]).plugins if counted else (),
        evidence=rank.evidence if rank else {},
        effective=rank.effective if rank else EffectiveConfiguration(),
        tokens=token_summary(last) if last else None,
        start_up=start_up(completed),
        phases=phases(completed),
        update_cost=update_cost(rank.update) if rank and rank.update else None,
        utilization=utilization(middle, peak_flops_of(middle)) if middle else None,
        utilization_reason=middle.ranks[0].workload_reason if middle and middle.ranks else "",
        dropped=row.dropped,
        repeated_rounds=tuple(sorted(row.repeated)),
        failed_rounds=dict(Counter(run.status for run in counted if not run.status.completed)),
    )
