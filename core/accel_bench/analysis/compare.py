"""Comparison of two stored experiments: with a verdict if their runs are paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from accel_bench.analysis.aggregate import (
    ExperimentRuns,
    PlannedSummary,
    beside_baseline,
    collect_runs,
    shared_steps,
)
from accel_bench.analysis.checks.comparability import (
    Comparability,
    Difference,
    comparability,
    of_comparable,
)
from accel_bench.analysis.checks.noise import of_same_load
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import (
    StackComparison,
    TrainingComparison,
    of_same_training,
    training_not_compared,
)
from accel_bench.analysis.experiment_figures import figures
from accel_bench.analysis.quantity import Quantity, compared_by
from accel_bench.analysis.schema import Document, ExperimentFigures
from accel_bench.analysis.statistics.verdict import (
    UNPAIRED,
    Comparison,
    RoundKey,
    compare,
)
from accel_bench.result import Result

Value = TypeVar("Value")

HISTORY = "no round of one session holds both: a stored reference is history, not a gate"
"""Reason for no verdict on unpaired runs."""


class Operand(ExperimentFigures):
    """Speed, memory, losses and origin of one of the two compared experiments."""

    scenario: str
    """Name of the scenario."""

    sessions: tuple[str, ...]
    """Sessions in which the experiment ran, oldest first."""

    hosts: tuple[str, ...]
    """Names of the machines on which the experiment ran."""


class ExperimentComparison(StackComparison, Document):
    """Document of `accel-bench compare`: experiment B compared with A."""

    a: Operand
    """Experiment that B is compared with."""

    b: Operand
    """Experiment that is compared with A."""

    comparable: bool
    """True if all differences that matter are declared by the stacks."""

    declared: tuple[Difference, ...]
    """Differences that the two stacks declare."""

    differing: tuple[Difference, ...]
    """Differences that no stack declares."""

    paired: bool
    """True if some round of one session has runs of both."""

    @property
    def quantity(self) -> Quantity:
        """Compared quantity of experiment B."""
        return self.b.quantity


def compare_stored(
    a: Sequence[Result], b: Sequence[Result], quantity: str | None = None
) -> ExperimentComparison:
    """Compare the runs of experiment B with the runs of A, at least one each.

    `quantity` names the compared figure; by default the scenarios name it.
    """
    if quantity is not None:
        a, b = ([compared_by(run, quantity) for run in runs] for runs in (a, b))
    # All stored rounds count, however many were planned.
    left, right = (collect_runs(PlannedSummary(experiment=s[0].experiment), s, 0) for s in (a, b))
    allowed = comparability(list(left.counted.values()), list(right.counted.values()))
    paired = bool(set(left.speeds) & set(right.speeds))
    steps = shared_steps([left, right])
    training = _training(left, right, allowed, paired)
    speed = _speed(left, right, paired)
    return ExperimentComparison(
        **dict(judged_rows(speed, (left, right), training, allowed if paired else Comparability())),
        **dict(training),
        a=_operand(left, steps),
        b=_operand(beside_baseline(right, left), steps),
        comparable=allowed.comparable,
        declared=allowed.declared,
        differing=allowed.differing,
        paired=paired,
    )


def judged_rows(
    found: Comparison,
    rows: tuple[ExperimentRuns, ExperimentRuns],
    training: TrainingComparison,
    allowed: Comparability,
) -> Comparison:
    """Return the comparison `found`, its verdict replaced by a reason if quantities or loads of
    `rows` (baseline, stack), `training`, or undeclared differences in `allowed` forbid one."""
    base, row = rows
    if reason := row.not_comparable_with(base):
        found = Comparison(rounds=found.rounds, looks=found.looks, verdict_reason=reason)
    found = of_same_training(found, training)
    if row.quantity.moved_by_load:
        found = of_same_load(found, base.completed, row.completed)
    return of_comparable(found, allowed)


def _speed(left: ExperimentRuns, right: ExperimentRuns, paired: bool) -> Comparison:
    """Compare the quantities of two experiments; unpaired runs get a ratio without a verdict."""
    before, after = left.quantity.costs, right.quantity.costs
    if unused := _unusable(left, right):
        return Comparison(verdict_reason=unused)
    if not paired:
        failed = [
            f"{name} {side.how_it_ended}"
            for name, side in (("A", left), ("B", right))
            if not side.speeds
        ]
        return compare(before, after, UNPAIRED).without_verdict(", ".join(failed) or HISTORY)
    return compare(before, after)


def _training(
    left: ExperimentRuns, right: ExperimentRuns, allowed: Comparability, paired: bool
) -> TrainingComparison:
    """Compare two experiments' training; without `paired` rounds, pair comparable runs in order."""
    if unused := _unusable(left, right):
        return training_not_compared(unused)
    if not allowed.comparable:
        return training_not_compared("not comparable")
    if paired:
        return compare_training(left.completed, right.completed)
    return compare_training(numbered(left.completed), numbered(right.completed))


def _unusable(left: ExperimentRuns, right: ExperimentRuns) -> str:
    sides = (("A", left), ("B", right))
    unused = [(name, side) for name, side in sides if side.failed_audit or side.imported]
    return ", ".join(f"{name} {side.how_it_ended}" for name, side in unused)


def numbered(runs: Mapping[RoundKey, Value]) -> dict[RoundKey, Value]:
    """Return runs with an index as key in place of session and round, to pair them in order."""
    return {("", number): run for number, run in enumerate(runs.values())}


def _operand(side: ExperimentRuns, steps: int) -> Operand:
    """Return the figures and origin of one compared experiment; all runs share `steps` steps."""
    runs = list(side.counted.values())
    hosts = (run.machine.host for run in runs if run.machine)
    return Operand(
        **dict(figures(side, steps)),
        scenario=side.planned.experiment.scenario.name,
        sessions=tuple(dict.fromkeys(run.session for run in runs)),
        hosts=tuple(dict.fromkeys(host for host in hosts if host)),
    )
