"""Outcome of the gate, which tests that a stack is not slower than another by more than a floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pydantic import Field

from accel_bench.analysis.aggregate import (
    ExperimentRuns,
    PlannedSummary,
    beside_baseline,
    collect_runs,
)
from accel_bench.analysis.checks.comparability import comparability_of_rounds
from accel_bench.analysis.checks.noise import load_notes
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import (
    StackComparison,
    TrainingComparison,
    of_same_training,
    training_not_compared,
)
from accel_bench.analysis.quantity import Quantity
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.sequential import (
    GATE_CODES,
    Judgement,
    Outcome,
    judge_comparison,
)
from accel_bench.analysis.statistics.verdict import (
    MAXIMUM_ROUNDS,
    MINIMUM_ROUNDS,
    Comparison,
    Policy,
    compare,
)
from accel_bench.analysis.wording import interval_text, percent, ratio, with_reason
from accel_bench.documents.base import JsonValue
from accel_bench.result import Result, Status

WORST_FIRST: tuple[Outcome, ...] = ("failed", "regression", "inconclusive", "passed", "skipped")
"""Outcomes from worst to best; the worst outcome of all sweep points is the gate's."""


Pair: TypeAlias = tuple[ExperimentRuns, ExperimentRuns]
"""Runs of the stack and of the reference stack at a sweep point."""


class GatePoint(StackComparison):
    """Comparison of the tested stack with the reference stack at one sweep point, over all rounds
    except rounds that confirm an alarm."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    tag: str = ""
    """Name of the sweep point; empty without a sweep."""

    outcome: Outcome
    """Outcome of the tested stack at the sweep point."""

    reason: str
    """Reason for the outcome, in a sentence."""

    stack_id: str
    """Id of the stack's experiment."""

    against_id: str
    """Id of the reference stack's experiment."""

    quantity: Quantity = Field(default_factory=Quantity)
    """Compared quantity."""

    slower_by: float | None = None
    """Estimated relative increase of the cost, such as the time per token: 0.01 is 1 % slower, and
    a negative value is faster."""

    slower_by_at_most: float | None = None
    """Upper bound of `slower_by`, at the level of this interim analysis; null below two rounds."""

    more_rounds: int | None = None
    """Number of rounds to add to reach `rounds_needed`."""

    confirmed: bool | None = None
    """True if new rounds in fresh processes confirm a slow-down; null without an alarm."""

    confirmation_rounds: int = 0
    """Number of new rounds that both stacks completed."""

    confirmation_ratio: Interval | None = None
    """Speed ratio in the new rounds alone."""

    error_rate: float | None = None
    """Maximum probability that an equally fast stack ends as a confirmed slow-down."""

    status: Status
    """Status of the stack's runs."""

    against_status: Status
    """Status of the reference stack's runs."""

    reasons: tuple[str, ...] = ()
    """Reasons for a status other than `ok`."""

    seconds: float = 0.0
    """Wall-clock seconds of all runs of both stacks."""

    @property
    def slower(self) -> bool:
        """True if the stack looks slower; a different training or output alone does not count."""
        return self.outcome == "regression" and not self.not_the_same


class GateReport(Document):
    """The JSON document of `accel-bench gate`."""

    scenario: str
    """Name of the scenario."""

    stack: str
    """Name of the tested stack."""

    against: str
    """Name of the reference stack."""

    floor: float
    """Allowed relative slow-down; 0.01 is 1 %."""

    outcome: Outcome
    """Worst outcome of all sweep points."""

    exit_code: int
    """Exit code of `accel-bench gate`."""

    points: tuple[GatePoint, ...]
    """Sweep points in the order of the plan."""

    noise: tuple[str, ...] = ()
    """Other activity on the host during the measurement."""


def judge_gate(
    stack: str,
    against: str,
    floor: float,
    planned: Sequence[PlannedSummary],
    results: Sequence[Result],
) -> GateReport:
    """Return the gate's report on every sweep point of a plan that has both stacks.

    `floor` is the allowed relative slow-down, `planned` are the plan's experiments with both
    stacks, and `results` their runs.
    """
    pairs = pairs_of((stack, against), planned, results)
    points = judge_pairs(pairs, floor)
    outcome = worst_outcome(points)
    return GateReport(
        scenario=planned[0].experiment.scenario.name,
        stack=stack,
        against=against,
        floor=floor,
        outcome=outcome,
        exit_code=GATE_CODES[outcome],
        points=points,
        noise=load_notes([run for pair in pairs for row in pair for run in row.completed.values()]),
    )


def pairs_of(
    names: tuple[str, str], planned: Sequence[PlannedSummary], results: Sequence[Result]
) -> list[Pair]:
    """Return the runs of both stacks at each sweep point. `names` are the tested stack and the
    reference stack."""
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
    """Return the judgement of each pair of stacks.

    `floor` is the allowed relative slow-down, and `looks_before` the number of earlier interim
    analyses, which used other rounds.
    """
    compared = sum(not _skipped(*pair) for pair in pairs)
    return tuple(_judge_point(*pair, floor, compared, looks_before) for pair in pairs)


def worst_outcome(points: Sequence[GatePoint]) -> Outcome:
    """Return the worst outcome of the sweep points, which is the outcome of the gate."""
    return min((point.outcome for point in points), key=WORST_FIRST.index)


def _judge_point(
    stack: ExperimentRuns, against: ExperimentRuns, floor: float, points: int, looks_before: int
) -> GatePoint:
    failed_audit = bool(stack.failed_audit or against.failed_audit)
    training = (
        training_not_compared("what is compared failed its self-audit")
        if failed_audit
        else compare_training(against.completed, stack.completed)
    )
    policy = Policy(floor=floor, points=max(points, 1))
    speed = compare(against.quantity.costs, stack.quantity.costs, policy)
    if failed_audit:
        speed = Comparison(rounds=speed.rounds, looks=speed.looks)
    judged = judge_comparison(speed, floor)
    outcome, reason = _outcome(stack, against, training, (speed, judged), floor)
    if outcome == "passed" and looks_before:
        later = policy._replace(looks=looks_before + speed.looks)
        again = compare(against.quantity.costs, stack.quantity.costs, later)
        outcome = judge_comparison(again, floor).outcome
    needed = judged.rounds_needed if speed.verdict != "not tested" else MINIMUM_ROUNDS
    needed = needed if outcome == "inconclusive" else None
    if outcome in ("failed", "skipped"):
        speed = speed.without_verdict(reason)
    tested = of_same_training(speed, training).model_copy(update={"rounds_needed": needed})
    runs = [*stack.counted.values(), *against.counted.values()]
    stack = beside_baseline(stack, against)
    return GatePoint(
        sweep=stack.planned.experiment.sweep,
        tag=stack.planned.experiment.tag,
        outcome=outcome,
        reason=reason,
        stack_id=stack.planned.experiment.id,
        quantity=stack.quantity.without_costs,
        against_id=against.planned.experiment.id,
        slower_by=judged.slower_by,
        slower_by_at_most=judged.at_most,
        more_rounds=needed - speed.rounds if needed else None,
        **dict(training),
        **dict(tested),
        status=stack.ending.status,
        against_status=against.ending.status,
        reasons=tuple(dict.fromkeys((*stack.ending.reasons, *against.ending.reasons))),
        seconds=sum(run.seconds for run in runs),
    )


def _outcome(
    stack: ExperimentRuns,
    against: ExperimentRuns,
    training: TrainingComparison,
    found: tuple[Comparison, Judgement],
    floor: float,
) -> tuple[Outcome, str]:
    """Return a sweep point's outcome and its reason.

    Missing runs are judged first, then the loss, then the speed. `found` has the comparison of
    speed and its judgement.
    """
    if _skipped(stack, against):
        reasons = dict.fromkeys((*stack.planned.skipped, *against.planned.skipped))
        return "skipped", "; ".join(reasons)
    if failure := _failure(stack) or _failure(against) or _refusal(stack, against, training):
        return "failed", failure
    if different := training.not_the_same:
        what = "output" if training.generated else "training"
        return "regression", f"the {what} of {stack.name} is {different}"
    speed, judged = found
    if speed.verdict == "not tested":
        reason = f"{speed.rounds} of the {MINIMUM_ROUNDS} rounds that a verdict needs"
        return "inconclusive", f"{reason} (--rounds {MINIMUM_ROUNDS})"
    return judged.outcome, _sentence((stack, against), training, speed, judged, floor)


def _sentence(
    pair: Pair,
    training: TrainingComparison,
    speed: Comparison,
    judged: Judgement,
    floor: float,
) -> str:
    assert speed.ratio is not None and judged.at_most is not None
    rounds, interval = speed.rounds, interval_text(speed.ratio, ratio)
    quantity, words = pair[0].quantity, pair[0].quantity.words
    times = f"{ratio(speed.ratio.median)} {words.times} ({interval}, {rounds} rounds){quantity.by}"
    stack, against = (row.name for row in pair)
    names = f"{stack} is {words.worse} than {against}"
    if judged.outcome == "regression":
        return f"{names} by more than {percent(floor)}: {times}"
    open_end = f"{times}, at least {ratio(1 / (1 + judged.at_most))} times"
    if judged.outcome == "passed":
        same = ", ".join(
            f"{what} {with_reason(word, why)}" for what, (word, why) in training.verdicts.items()
        )
        allowed = f"not {words.worse} than {against} by more than {percent(floor)}"
        return f"{stack} is {allowed}: {open_end}; {same}"
    return f"it is open whether {names} by more than {percent(floor)}: {open_end}; " + (
        f"about {judged.rounds_needed - rounds} more rounds would settle it (--resume --rounds "
        f"{judged.rounds_needed}, or --max-rounds {judged.rounds_needed} from the start)"
        if judged.rounds_needed
        else f"even {MAXIMUM_ROUNDS} rounds would not settle it: look for what makes the machine "
        "noisy, or raise --tolerance"
    )


def _refusal(stack: ExperimentRuns, against: ExperimentRuns, training: TrainingComparison) -> str:
    """Return the reason why two completed stacks cannot be compared, or an empty string."""
    if refusal := comparability_of_rounds(against.completed, stack.completed).refusal:
        return f"{stack.name} and {against.name} are {refusal}"
    if training.untested:
        what = "what it answers" if training.generated else f"how {stack.name} trained"
        return f"{training.untested}, so that nothing shows {what}"
    return stack.not_comparable_with(against)


def _failure(side: ExperimentRuns) -> str:
    """Return the reason why a stack cannot be judged, such as a failed run, or an empty string."""
    failed = [run for run in side.counted.values() if not run.status.completed]
    if not failed and side.usable:
        return ""
    if not failed and side.failed_audit:
        return f"{side.name} {side.how_it_ended}; `accel-bench results check` names the runs"
    status = failed[0].status if failed else side.ending.status
    why = "; ".join(failed[0].reasons if failed else side.ending.reasons)
    return f"a run of {side.name} ended as {status.value}: {why}"


def _skipped(stack: ExperimentRuns, against: ExperimentRuns) -> bool:
    return bool(stack.planned.skipped or against.planned.skipped)
