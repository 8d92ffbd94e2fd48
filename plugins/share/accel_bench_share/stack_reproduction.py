"""Comparison of each stack of a bundle with its reproduction: verdict, changes, other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel_bench.analysis.aggregate import ExperimentRuns, PlannedSummary, collect_runs
from accel_bench.analysis.checks.comparability import NOT_COMPARABLE
from accel_bench.analysis.device_kinds import device_models
from accel_bench.analysis.quantity import quantity_obstacle
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import UNPAIRED, Finding, compare
from accel_bench.analysis.summary import summarize
from accel_bench.analysis.tables.listing import differing_keys
from accel_bench.analysis.wording import finding_words, percent, ratio_interval
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.redaction import FOLDER
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment

REPRODUCED = finding_words("reproduced", "not reproduced")
"""Words for the verdicts on a stack or a whole bundle, in display order."""

MARGIN = 0.05
"""Maximum relative difference of two ratios that count as equal."""


NOT_WORK = {"name", "description", "launcher", "measure", "metrics", "resources", "evaluate"}
"""Sections of a scenario that may differ in a reproduction."""


class StackReproduction(Frozen):
    """Comparison of a stack at a sweep point: `there` in the bundle, `here` in its reproduction."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    tag: str = ""
    """Name of the sweep point; empty without a sweep."""

    is_baseline: bool
    """True for the stack that others are compared with, which has no ratio and no verdict."""

    compared: str
    """Name of the quantity that the ratios compare, such as `tokens_per_second`."""

    claim: str
    """Verdict of the bundle's own runs on the stack, as printed."""

    status_here: Status | None
    """Status of the stack in the reproduction; null if it was not planned there."""

    ratio_there: Interval | None
    """Ratio to the baseline in the bundle."""

    ratio_here: Interval | None
    """Ratio to the baseline in the reproduction."""

    change: Interval | None = None
    """`ratio_here` divided by `ratio_there`, with Welch's 95 % interval over rounds."""

    tokens_per_second_there: Interval | None
    """Real tokens per second in the bundle, global."""

    tokens_per_second_here: Interval | None
    """Real tokens per second in the reproduction, global."""

    speed_change: Interval | None = None
    """Speed here divided by speed there, without a verdict, since machines and days differ; null on
    another device model."""

    last_loss_there: float | None = None
    """Loss at the last step common to all stacks of the bundle."""

    last_loss_here: float | None = None
    """Loss at the last step common to all stacks of the reproduction."""

    verdict: Finding | None
    """Verdict on the statement that the ratio was reproduced; null for the baseline."""

    reason: str
    """Reason of the verdict."""


def reproduce_stacks(
    there: Sequence[Result], here: Summary, here_runs: Sequence[Result]
) -> tuple[StackReproduction, ...]:
    """Return the comparison of each experiment of a bundle with its reproduction.

    `there` are the bundle's runs. `here` is the summary of the reproduction, and `here_runs` are
    its runs.
    """
    before = summarize_results(there, here.baseline)
    same = device_models(there) == device_models(here_runs)
    rows = {row_key(row.stack, row.sweep): row for row in here.experiments}
    return tuple(
        _compare(
            row, rows.get(row_key(row.stack, row.sweep)), here.baseline, (there, here_runs), same
        )
        for row in before.experiments
    )


def summarize_results(results: Sequence[Result], baseline: str) -> Summary:
    """Return the summary of one scenario's stored runs; experiments without a run are left out."""
    planned = {(run.experiment.id, run.experiment.stack.name): run.experiment for run in results}
    points = list(dict.fromkeys(experiment.point for experiment in planned.values()))
    rows = sorted(
        planned.values(),
        key=lambda experiment: (
            points.index(experiment.point),
            experiment.stack.name != baseline,
            experiment.stack.name,
        ),
    )
    plans = [PlannedSummary(experiment=experiment) for experiment in rows]
    rounds = max((run.round + 1 for run in results), default=0)
    return summarize(rows[0].scenario.name, baseline, plans, results, rounds)


def _compare(
    there: ExperimentSummary,
    here: ExperimentSummary | None,
    baseline: str,
    runs: tuple[Sequence[Result], Sequence[Result]],
    same_device: bool,
) -> StackReproduction:
    """Return the comparison of a stack's summary in the bundle with that in the reproduction.

    `runs` is a pair: all runs of the bundle, all of the reproduction. Without `same_device` the
    speeds are not compared.
    """
    is_baseline = there.stack == baseline
    change, speed = _changes(there, runs, baseline)
    verdict, reason = (None, "") if is_baseline else _judge(there, here, change)
    if verdict is not None and (other := _other_work(there, runs, baseline)):
        verdict, reason = "inconclusive", f"other work was run here: {other}"
    return StackReproduction(
        stack=there.stack,
        sweep=there.sweep,
        tag=there.tag,
        is_baseline=is_baseline,
        compared=there.quantity.name,
        claim=there.verdict_word,
        status_here=here.status if here else None,
        ratio_there=there.ratio,
        ratio_here=here.ratio if here else None,
        change=None if is_baseline else change,
        tokens_per_second_there=there.tokens_per_second,
        tokens_per_second_here=here.tokens_per_second if here else None,
        speed_change=speed if same_device else None,
        last_loss_there=there.loss.last if there.loss else None,
        last_loss_here=here.loss.last if here and here.loss else None,
        verdict=verdict,
        reason=reason,
    )


def _changes(
    row: ExperimentSummary, runs: tuple[Sequence[Result], Sequence[Result]], baseline: str
) -> tuple[Interval | None, Interval | None]:
    """Return the changes of a stack's ratio and of its speed from the bundle to the reproduction.

    `runs` is a pair: all runs of the bundle, all of the reproduction. A change is None if one of
    the two lacks the value.
    """
    own = [_usable(results, row, row.stack) for results in runs]
    base = [_usable(results, row, baseline) for results in runs]
    costs = [[stack.quantity.costs if stack else {} for stack in side] for side in (own, base)]
    relative = (
        {key: cost[key] / others[key] for key in sorted({*others} & {*cost})}
        for cost, others in zip(*costs, strict=True)
    )
    seconds = (stack.compared_seconds if stack else {} for stack in own)
    ratios, speeds = (compare(there, here, UNPAIRED).ratio for there, here in (relative, seconds))
    return ratios, speeds


def _other_work(
    there: ExperimentSummary, runs: tuple[Sequence[Result], Sequence[Result]], baseline: str
) -> str:
    """Return a text on settings of a stack or its baseline that the reproduction has changed.

    It is empty if there are none. Devices are ignored, and so are paths, which a bundle does not
    contain.
    """
    changed: dict[str, tuple[Any, Any]] = {}
    for stack in (there.stack, baseline):
        before, after = (_of_row(results, there, stack)[-1:] for results in runs)
        for run, other in zip(before, after, strict=False):
            both = differing_keys(_work(run.experiment), _work(other.experiment))
            changed |= {key: (a, b) for key, a, b in both if not str(a).startswith(FOLDER)}
    return ", ".join(f"{key} {a} -> {b}" for key, (a, b) in changed.items())


def _work(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that must be equal in a reproduction: of the scenario and of plugins."""
    work = experiment.scenario.model_dump(mode="json", exclude=NOT_WORK)
    return {**work, "uses": {use.use: use.options for use in experiment.stack.uses}}


def _of_row(results: Sequence[Result], row: ExperimentSummary, stack: str) -> list[Result]:
    """Return those of `results` that are runs of a stack, at the sweep point of `row`."""
    own = (run for run in results if run.experiment.stack.name == stack)
    return [run for run in own if run.experiment.sweep == row.sweep]


def _usable(results: Sequence[Result], row: ExperimentSummary, stack: str) -> ExperimentRuns | None:
    """Return a stack's runs at the sweep point of `row`; None if no run of it is usable."""
    own = _of_row(results, row, stack)
    if not own:
        return None
    runs = collect_runs(PlannedSummary(experiment=own[-1].experiment), own, 0)
    return runs if runs.usable else None


def _judge(
    there: ExperimentSummary, here: ExperimentSummary | None, change: Interval | None
) -> tuple[Finding, str]:
    """Return the verdict on a stack's reproduction, and the reason for it.

    `change` is the reproduction's ratio divided by the bundle's ratio.
    """
    if there.ratio is None:
        return "inconclusive", "the bundle has no ratio of it"
    if here is None or not here.status.completed:
        ended = "was not run here" if here is None else f"ended as {here.status.value} here"
        return "inconclusive", f"it {ended}"
    if here.ratio is None or change is None:
        return "inconclusive", f"there is no ratio here: {here.verdict_reason}"
    reasons = (row.verdict_reason for row in (there, here))
    refusals = [reason for reason in reasons if reason.startswith(NOT_COMPARABLE)]
    of_quantity = quantity_obstacle(there.quantity, here.quantity)
    if refused := next(filter(None, (of_quantity, *refusals)), ""):
        return "inconclusive", refused
    if bool(there.training_difference) != bool(here.training_difference):
        where, what = ("here", here) if here.training_difference else ("there", there)
        return "does not hold", f"{where} alone it trains differently: {what.training_difference}"
    return _judge_ratio(there, here.ratio, change)


def _judge_ratio(
    there: ExperimentSummary, ratio: Interval, change: Interval
) -> tuple[Finding, str]:
    """Return whether the ratio was reproduced, within the margin or in direction, and the reason.

    `ratio` is the reproduction's ratio, and `change` is this ratio divided by the bundle's ratio.
    """
    if change.low is None or change.high is None or ratio.low is None or ratio.high is None:
        return "inconclusive", "one round has no interval; --rounds 5 measures more"
    low, high = 1 / (1 + MARGIN), 1 + MARGIN
    if change.high < low or change.low > high:
        return "does not hold", f"its ratio is {_distance(change)}"
    direction = {"better": 1, "worse": -1}.get(there.verdict, 0)
    if (direction > 0 and ratio.high < 1) or (direction < 0 and ratio.low > 1):
        word = there.verdict_word
        return "does not hold", f"the bundle calls it {word}, and here it is the opposite"
    if low <= change.low and change.high <= high:
        return "holds", f"its ratio is within {percent(MARGIN)} of the bundle's"
    same_side = (direction > 0 and ratio.low > 1) or (direction < 0 and ratio.high < 1)
    if same_side and change.low <= 1 <= change.high:
        return "holds", "the same direction, and no difference between the ratios is sure"
    return "inconclusive", f"its ratio is {_distance(change)}; more --rounds narrow that"


def _distance(change: Interval) -> str:
    return f"{ratio_interval(change)} times the bundle's"


def row_key(stack: str, sweep: Mapping[str, JsonValue]) -> tuple[str, str]:
    """Return a pair that identifies a stack at a sweep point: its name and the swept values."""
    return stack, canonical_json(dict(sweep))
