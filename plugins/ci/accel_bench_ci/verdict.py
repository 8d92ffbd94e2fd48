"""The gate: may a stack pass, being no slower than another by more than a floor allows?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from accel_bench.analysis.aggregate import (
    ExperimentRuns,
    PlannedSummary,
    beside_baseline,
    collect_runs,
)
from accel_bench.analysis.checks.comparability import comparability_of_rounds
from accel_bench.analysis.checks.noise import load_notes
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import TrainingComparison, training_not_compared
from accel_bench.analysis.metrics.offered_load import load_obstacle
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval, log_interval
from accel_bench.analysis.statistics.sequential import GATE_CODES, Judgement, judge_rounds
from accel_bench.analysis.statistics.verdict import (
    MAXIMUM_ROUNDS,
    MINIMUM_ROUNDS,
    count_looks,
    paired_logs,
)
from accel_bench.analysis.wording import interval_text, percent, ratio, with_reason
from accel_bench.documents.base import JsonValue
from accel_bench.result import Result, Status

Outcome: TypeAlias = Literal["passed", "regression", "inconclusive", "failed", "skipped"]
"""Outcomes of the gate."""

EXIT_CODES: Mapping[str, int] = {**GATE_CODES, "failed": 1, "skipped": 3}
"""Exit code of the program by outcome."""

WORST_FIRST: tuple[Outcome, ...] = ("failed", "regression", "inconclusive", "passed", "skipped")
"""Of several sweep points the worst outcome counts."""


Pair: TypeAlias = tuple[ExperimentRuns, ExperimentRuns]
"""The stack and the other one at a sweep point."""


class GatePoint(TrainingComparison):
    """One sweep point: the stack against the other one."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    tag: str = ""
    """Name of the sweep point; empty where nothing is swept."""

    outcome: Outcome
    """Outcome of the stack."""

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

    confirmed: bool | None = None
    """True if new rounds in fresh processes confirm a slow-down; null where there was none."""

    confirmation_rounds: int = 0
    """New rounds in which both completed."""

    confirmation_ratio: Interval | None = None
    """The speed ratio of the new rounds alone."""

    error_rate: float | None = None
    """How often what is as fast ends as a confirmed slow-down, at most."""

    status: Status
    """How the stack's experiment ended."""

    against_status: Status
    """How the other one's ended."""

    reasons: tuple[str, ...] = ()
    """Why either status is not `ok`."""

    seconds: float = 0.0
    """Wall-clock seconds of all runs of both."""

    @property
    def slower(self) -> bool:
        """True if the stack looks slower; a different training is no such alarm."""
        return self.outcome == "regression" and not self.not_the_same


class GateReport(Document):
    """The document of `accel-bench gate`."""

    scenario: str
    """Name of the scenario."""

    stack: str
    """The stack that is to pass."""

    against: str
    """The stack that it is compared with."""

    floor: float
    """Relative slow-down that is allowed; 0.01 is 1 %."""

    outcome: Outcome
    """The worst of all points."""

    exit_code: int
    """What the program exits with."""

    points: tuple[GatePoint, ...]
    """Every sweep point, in the order of the plan."""

    noise: tuple[str, ...] = ()
    """What else ran on the host meanwhile."""


def judge_gate(
    stack: str,
    against: str,
    floor: float,
    planned: Sequence[PlannedSummary],
    results: Sequence[Result],
) -> GateReport:
    """Judge every sweep point of a plan that holds the two stacks."""
    pairs = pairs_of((stack, against), planned, results)
    points = judge_pairs(pairs, floor)
    outcome = worst_outcome(points)
    return GateReport(
        scenario=planned[0].experiment.scenario.name,
        stack=stack,
        against=against,
        floor=floor,
        outcome=outcome,
        exit_code=EXIT_CODES[outcome],
        points=points,
        noise=load_notes([run for pair in pairs for row in pair for run in row.completed.values()]),
    )


def pairs_of(
    names: tuple[str, str], planned: Sequence[PlannedSummary], results: Sequence[Result]
) -> list[Pair]:
    """Return the runs of a stack and of the other one at each sweep point."""
    by_point: dict[str, dict[str, PlannedSummary]] = {}
    for plan in planned:
        by_point.setdefault(plan.experiment.point, {})[plan.experiment.stack.name] = plan
    stack, against = names
    return [
        (collect_runs(both[stack], results, 0), collect_runs(both[against], results, 0))
        for both in by_point.values()
    ]


def judge_pairs(
    pairs: Sequence[Pair], floor: float, looks_before: int = 0
) -> tuple[GatePoint, ...]:
    """Judge each pair; `looks_before`, at rounds that are not among these runs, make it harder to
    pass."""
    compared = sum(not _skipped(*pair) for pair in pairs)
    return tuple(_judge_point(*pair, floor, compared, looks_before) for pair in pairs)


def worst_outcome(points: Sequence[GatePoint]) -> Outcome:
    """Return the outcome that counts of several."""
    return min((point.outcome for point in points), key=WORST_FIRST.index)


def _judge_point(
    stack: ExperimentRuns, against: ExperimentRuns, floor: float, points: int, looks_before: int
) -> GatePoint:
    disowned = bool(stack.disowned or against.disowned)
    training = (
        training_not_compared("the self-audit disowns what is compared")
        if disowned
        else compare_training(against.completed, stack.completed)
    )
    logs = paired_logs(against.compared_seconds, stack.compared_seconds)
    looks = count_looks(against.speeds, stack.speeds)
    enough = len(logs) >= MINIMUM_ROUNDS and not disowned
    judged = judge_rounds(logs, floor, looks, points) if enough else None
    outcome, reason = _outcome(stack, against, training, judged, floor)
    if outcome == "passed" and looks_before:
        outcome = judge_rounds(logs, floor, looks_before + looks, points).outcome
    needed = judged.rounds_needed if judged else MINIMUM_ROUNDS
    needed = needed if outcome == "inconclusive" else None
    runs = [*stack.counted.values(), *against.counted.values()]
    stack = beside_baseline(stack, against)
    return GatePoint(
        sweep=stack.planned.experiment.sweep,
        tag=stack.planned.experiment.tag,
        outcome=outcome,
        reason=reason,
        stack_id=stack.planned.experiment.id,
        against_id=against.planned.experiment.id,
        rounds=len(logs),
        looks=looks,
        ratio=None if disowned else log_interval(logs),
        slower_by=judged.slower_by if judged else None,
        slower_by_at_most=judged.at_most if judged else None,
        rounds_needed=needed,
        more_rounds=needed - len(logs) if needed else None,
        **training.model_dump(),
        status=stack.ending.status,
        against_status=against.ending.status,
        reasons=tuple(dict.fromkeys((*stack.ending.reasons, *against.ending.reasons))),
        seconds=sum(run.seconds for run in runs),
    )


def _outcome(
    stack: ExperimentRuns,
    against: ExperimentRuns,
    training: TrainingComparison,
    judged: Judgement | None,
    floor: float,
) -> tuple[Outcome, str]:
    """Return the outcome and its reason: what was not run comes first, then the loss, the speed."""
    if _skipped(stack, against):
        reasons = dict.fromkeys((*stack.planned.skipped, *against.planned.skipped))
        return "skipped", "; ".join(reasons)
    if failure := _failure(stack) or _failure(against) or _refusal(stack, against, training):
        return "failed", failure
    if different := training.not_the_same:
        what = "output" if training.generated else "training"
        return "regression", f"the {what} of {stack.name} is {different}"
    if judged is None:
        rounds = len(set(stack.speeds) & set(against.speeds))
        reason = f"{rounds} of the {MINIMUM_ROUNDS} rounds that a verdict needs"
        return "inconclusive", f"{reason} (--rounds {MINIMUM_ROUNDS})"
    return judged.outcome, _sentence(stack, against, training, judged, floor)


def _sentence(
    stack: ExperimentRuns,
    against: ExperimentRuns,
    training: TrainingComparison,
    judged: Judgement,
    floor: float,
) -> str:
    logs = paired_logs(against.compared_seconds, stack.compared_seconds)
    speed, rounds = log_interval(logs), f"{len(logs)} rounds"
    assert speed is not None
    times = f"{ratio(speed.median)} times as fast ({interval_text(speed, ratio)}, {rounds})"
    names = f"{stack.name} is slower than {against.name}"
    if judged.outcome == "regression":
        return f"{names} by more than {percent(floor)}: {times}"
    open_end = f"{times}, at least {ratio(1 / (1 + judged.at_most))} times"
    if judged.outcome == "passed":
        same = ", ".join(
            f"{what} {with_reason(word, why)}" for what, (word, why) in training.verdicts.items()
        )
        return f"{names} by less than {percent(floor)}, if at all: {open_end}; {same}"
    return f"it is open whether {names} by more than {percent(floor)}: {open_end}; " + (
        f"about {judged.rounds_needed - len(logs)} more rounds would settle it (--resume --rounds "
        f"{judged.rounds_needed}, or --max-rounds {judged.rounds_needed} from the start)"
        if judged.rounds_needed
        else f"even {MAXIMUM_ROUNDS} rounds would not settle it: look for what makes the machine "
        "noisy, or raise --tolerance"
    )


def _refusal(stack: ExperimentRuns, against: ExperimentRuns, training: TrainingComparison) -> str:
    """Return why two stacks that completed are not compared; empty where they are."""
    if refusal := comparability_of_rounds(against.completed, stack.completed).refusal:
        return f"{stack.name} and {against.name} are {refusal}"
    if training.untested:
        what = "what it answers" if training.generated else f"how {stack.name} trained"
        return f"{training.untested}, so that nothing shows {what}"
    return load_obstacle(against.load, stack.load)


def _failure(side: ExperimentRuns) -> str:
    """Return why a stack cannot be judged: one run that did not complete is enough. Else empty."""
    failed = [run for run in side.counted.values() if not run.status.completed]
    if not failed and side.usable:
        return ""
    if not failed and side.disowned:
        return f"{side.name} {side.how_it_ended}; `accel-bench results check` names the runs"
    status = failed[0].status if failed else side.ending.status
    why = "; ".join(failed[0].reasons if failed else side.ending.reasons)
    return f"a run of {side.name} ended as {status.value}: {why}"


def _skipped(stack: ExperimentRuns, against: ExperimentRuns) -> bool:
    return bool(stack.planned.skipped or against.planned.skipped)
