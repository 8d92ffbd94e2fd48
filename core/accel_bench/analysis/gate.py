"""The gate: may a stack pass, being no slower than another by more than a floor allows?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from accel_bench.analysis.aggregate import ExperimentRuns, beside_baseline, collect_runs
from accel_bench.analysis.checks.convergence import LossVerdict, LossWord, compare_losses
from accel_bench.analysis.schema import PlannedSummary
from accel_bench.analysis.statistics.estimators import Interval, log_interval
from accel_bench.analysis.statistics.sequential import Judgement, judge_rounds
from accel_bench.analysis.statistics.verdict import MAXIMUM_ROUNDS, MINIMUM_ROUNDS, paired_logs
from accel_bench.analysis.wording import interval_text, label, percent, ratio
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import SCHEMA_VERSION

Outcome: TypeAlias = Literal["passed", "regression", "inconclusive", "failed", "skipped"]
"""What the gate says."""

EXIT_CODES: Mapping[Outcome, int] = {
    "passed": 0,
    "failed": 1,
    "skipped": 3,
    "regression": 4,
    "inconclusive": 5,
}
"""What the program exits with."""

WORST_FIRST: tuple[Outcome, ...] = ("failed", "regression", "inconclusive", "passed", "skipped")
"""Of several sweep points the worst outcome counts."""


class GatePoint(Frozen):
    """One sweep point: the stack against the other one."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    outcome: Outcome
    """What the gate says."""

    reason: str
    """Why, in a sentence."""

    stack_id: str
    """Id of the stack's experiment."""

    against_id: str
    """Id of the other one's."""

    rounds: int = 0
    """Rounds in which both completed."""

    looks: int = 0
    """Sessions in which these rounds were measured; each is a look at them."""

    ratio: Interval | None = None
    """The stack's speed over the other's, with a 95 % interval; null without a round."""

    slower_by: float | None = None
    """Estimated relative increase of the time per token; 0.01 is 1 %, negative is faster."""

    slower_by_at_most: float | None = None
    """Upper bound of that, at the level of this look; null with fewer than two rounds."""

    rounds_needed: int | None = None
    """Rounds in all that would settle it, if spread and mean stay; null if settled or hopeless."""

    more_rounds: int | None = None
    """How many of those are missing."""

    loss_verdict: LossWord = "not tested"
    """Whether the loss curve is the other one's."""

    loss_difference: float | None = None
    """Largest relative difference of the smoothed loss curves; 0.01 is 1 %."""

    loss_reason: str = ""
    """Why the loss verdict is not `equivalent`, where it is not."""

    status: Status
    """How the stack's experiment ended."""

    against_status: Status
    """How the other one's ended."""

    reasons: tuple[str, ...] = ()
    """Why either status is not `ok`."""

    seconds: float = 0.0
    """Wall-clock seconds of all runs of both."""


class GateReport(Frozen):
    """The document of `accel-bench gate`."""

    schema_version: int = SCHEMA_VERSION
    """Version of this document's form."""

    scenario: str
    """Name of the scenario."""

    stack: str
    """The stack that wants to pass."""

    against: str
    """The stack that it is held against."""

    floor: float
    """Relative slow-down that is allowed; 0.01 is 1 %."""

    outcome: Outcome
    """The worst of all points."""

    exit_code: int
    """What the program exits with."""

    points: tuple[GatePoint, ...]
    """Every sweep point, in the order of the plan."""


def judge_gate(
    stack: str,
    against: str,
    floor: float,
    planned: Sequence[PlannedSummary],
    results: Sequence[Result],
) -> GateReport:
    """Judge every sweep point of a plan that holds the two stacks."""
    by_point: dict[str, dict[str, PlannedSummary]] = {}
    for plan in planned:
        by_point.setdefault(plan.experiment.point, {})[plan.experiment.stack.name] = plan
    pairs = [
        (collect_runs(both[stack], results, 0), collect_runs(both[against], results, 0))
        for both in by_point.values()
    ]
    compared = sum(not _skipped(*pair) for pair in pairs)
    points = tuple(_judge_point(*pair, floor, compared) for pair in pairs)
    outcome = min((point.outcome for point in points), key=WORST_FIRST.index)
    return GateReport(
        scenario=planned[0].experiment.scenario.name,
        stack=stack,
        against=against,
        floor=floor,
        outcome=outcome,
        exit_code=EXIT_CODES[outcome],
        points=points,
    )


def _judge_point(
    stack: ExperimentRuns, against: ExperimentRuns, floor: float, points: int
) -> GatePoint:
    """Skipped and failed runs first, then the loss, then the speed."""
    loss = compare_losses(against.completed, stack.completed)
    logs = paired_logs(against.seconds_per_token, stack.seconds_per_token)
    judged = judge_rounds(logs, floor, _looks(stack, against), points) if _enough(logs) else None
    outcome, reason = _outcome(stack, against, loss, judged, floor)
    needed = MINIMUM_ROUNDS if judged is None else judged.rounds_needed
    needed = needed if outcome == "inconclusive" else None
    runs = [*stack.counted.values(), *against.counted.values()]
    stack = beside_baseline(stack, against)
    return GatePoint(
        sweep=stack.planned.experiment.sweep,
        outcome=outcome,
        reason=reason,
        stack_id=stack.planned.experiment.id,
        against_id=against.planned.experiment.id,
        rounds=len(logs),
        looks=_looks(stack, against),
        ratio=log_interval(logs),
        slower_by=judged.slower_by if judged else None,
        slower_by_at_most=judged.at_most if judged else None,
        rounds_needed=needed,
        more_rounds=needed - len(logs) if needed else None,
        loss_verdict=loss.verdict,
        loss_difference=loss.largest_difference,
        loss_reason=loss.reason,
        status=stack.ending.status,
        against_status=against.ending.status,
        reasons=tuple(dict.fromkeys((*stack.ending.reasons, *against.ending.reasons))),
        seconds=sum(run.seconds for run in runs),
    )


def _outcome(
    stack: ExperimentRuns,
    against: ExperimentRuns,
    loss: LossVerdict,
    judged: Judgement | None,
    floor: float,
) -> tuple[Outcome, str]:
    """What is said, and why."""
    if _skipped(stack, against):
        reasons = dict.fromkeys((*stack.planned.skipped, *against.planned.skipped))
        return "skipped", "; ".join(reasons)
    for side in (stack, against):
        if failure := _failure(side):
            return "failed", failure
    if loss.verdict == "different":
        return "regression", f"the loss of {_name(stack)} is different ({loss.reason})"
    if judged is None:
        rounds = len(set(stack.seconds_per_token) & set(against.seconds_per_token))
        reason = f"{rounds} of the {MINIMUM_ROUNDS} rounds that a verdict needs"
        return "inconclusive", f"{reason} (--rounds {MINIMUM_ROUNDS})"
    return judged.outcome, _sentence(stack, against, loss, judged, floor)


def _sentence(
    stack: ExperimentRuns,
    against: ExperimentRuns,
    loss: LossVerdict,
    judged: Judgement,
    floor: float,
) -> str:
    """The speed in words."""
    logs = paired_logs(against.seconds_per_token, stack.seconds_per_token)
    speed = log_interval(logs)
    assert speed is not None
    times = (
        f"{ratio(speed.median)} times as fast ({interval_text(speed, ratio)}, {len(logs)} rounds)"
    )
    names = f"{_name(stack)} is slower than {_name(against)}"
    if judged.outcome == "regression":
        return f"{names} by more than {percent(floor)}: {times}"
    open_end = f"{times}, at least {ratio(1 / (1 + judged.at_most))} times"
    if judged.outcome == "passed":
        trained = loss.verdict if loss.verdict == "equivalent" else f"not tested ({loss.reason})"
        return f"{names} by less than {percent(floor)}, if at all: {open_end}; loss {trained}"
    return f"it is open whether {names} by more than {percent(floor)}: {open_end}; " + (
        f"about {judged.rounds_needed - len(logs)} more rounds would settle it (--resume --rounds "
        f"{judged.rounds_needed}, or --max-rounds {judged.rounds_needed} from the start)"
        if judged.rounds_needed
        else f"even {MAXIMUM_ROUNDS} rounds would not settle it: look for what makes the machine "
        "noisy, or raise --floor"
    )


def _failure(side: ExperimentRuns) -> str:
    """Why a stack cannot be judged: one run that did not complete is enough. Empty if it can."""
    failed = [run for run in side.counted.values() if not run.status.completed]
    if not failed and side.usable:
        return ""
    status = failed[0].status if failed else side.ending.status
    why = "; ".join(failed[0].reasons if failed else side.ending.reasons)
    return f"a run of {_name(side)} ended as {status.value}: {why}"


def _skipped(stack: ExperimentRuns, against: ExperimentRuns) -> bool:
    return bool(stack.planned.skipped or against.planned.skipped)


def _looks(stack: ExperimentRuns, against: ExperimentRuns) -> int:
    """Sessions that added rounds."""
    return len(
        {session for session, _ in set(stack.seconds_per_token) & set(against.seconds_per_token)}
    )


def _enough(logs: Sequence[float]) -> bool:
    return len(logs) >= MINIMUM_ROUNDS


def _name(side: ExperimentRuns) -> str:
    experiment = side.planned.experiment
    return label(experiment.stack.name, experiment.sweep)
