"""Effect of each item of an ablation ladder: of adding the item, and of leaving it out.

The effects are estimates with 95 % intervals, without verdicts: Holm's correction covers only
comparisons of stacks with the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from accel_bench.analysis.aggregate import ExperimentRuns, by_point
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import StackComparison, of_same_training
from accel_bench.analysis.metrics.memory import largest, peak_memory
from accel_bench.analysis.statistics.estimators import Interval, t_bound
from accel_bench.analysis.statistics.verdict import ESTIMATE, compare
from accel_bench.documents.base import Frozen, JsonValue

Held = tuple[int, ...]
"""Sorted indices of the ladder's items, from 0, that a stack has."""


class MemoryChange(Frozen):
    """Difference of two peak memories in bytes: mean over rounds, with a 95 % t interval."""

    bytes: float
    """Mean of the paired differences; negative for less memory."""

    low: float | None
    """Lower end of the interval; null with one round."""

    high: float | None
    """Upper end of the interval; null with one round."""


class LadderFigure(StackComparison):
    """Comparison of two stacks of a ladder that differ by one item, without a verdict."""

    stack: str | None
    """Name of the compared stack; null if the plan has no such stack."""

    against: str | None
    """Name of the stack that it is compared with; null if the plan has no such stack."""

    memory: MemoryChange | None = None
    """Difference of the stacks' peak memory; null if the two were measured by different methods."""


class LadderStep(Frozen):
    """Comparisons that show the effect of one item of the ladder, at one sweep point."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys at the sweep point."""

    tag: str = ""
    """Name of the sweep point; empty without a sweep."""

    number: int
    """Number of the item, from 1."""

    item: str
    """Label of the item."""

    ratio: Interval | None
    """Speed relative to the baseline of the stack with all items up to this item."""

    adds: LadderFigure
    """Comparison of the stack with all items up to this item, with the stack before this item."""

    left_out: LadderFigure
    """Comparison of the stack without this item, with the stack of all items; below 1 is slower."""


def ladder_steps(
    rows: Sequence[ExperimentRuns], ratios: Sequence[Interval | None]
) -> tuple[LadderStep, ...]:
    """Return the effects of each item at each sweep point; empty if no stack is on a ladder.

    `ratios` has for each of `rows` its speed relative to the baseline, None if it is unknown.
    """
    speeds = {id(row): speed for row, speed in zip(rows, ratios, strict=True)}
    on_ladder = (row for row in rows if row.planned.experiment.stack.ladder is not None)
    return tuple(step for point in by_point(on_ladder) for step in _steps(point, speeds))


def _steps(
    rows: Sequence[ExperimentRuns], speeds: Mapping[int, Interval | None]
) -> list[LadderStep]:
    """Return the effects of each item at one sweep point.

    `speeds` has the speed of each of `rows` relative to the baseline, by Python's `id` of the row.
    """
    by_items: dict[Held, ExperimentRuns] = {}
    labels: tuple[str, ...] = ()
    for row in rows:
        place = row.planned.experiment.stack.ladder
        assert place is not None
        labels = place.items
        by_items |= dict.fromkeys(place.holds, row)
    everything = tuple(range(len(labels)))
    steps = []
    for number, label in enumerate(labels):
        rung, less = everything[: number + 1], everything[:number] + everything[number + 1 :]
        step = LadderStep(
            sweep=rows[0].planned.experiment.sweep,
            tag=rows[0].planned.experiment.tag,
            number=number + 1,
            item=label,
            ratio=speeds.get(id(by_items.get(rung))),
            adds=_figure(by_items.get(rung), by_items.get(rung[:-1]), reverse_loss=False),
            left_out=_figure(by_items.get(less), by_items.get(everything), reverse_loss=True),
        )
        steps.append(step)
    return steps


def _figure(
    new: ExperimentRuns | None, old: ExperimentRuns | None, reverse_loss: bool
) -> LadderFigure:
    """Return the comparison of the stack `new` with the stack `old`; None is a missing stack.

    Losses are compared with the stack of fewer items: `new` if `reverse_loss`, else `old`.
    """
    stack, against = _name(new), _name(old)
    reason = _obstacle(new, old)
    if reason or new is None or old is None:
        return LadderFigure(stack=stack, against=against, verdict_reason=reason)
    # The stack with the item comes second: its plugins declare what is allowed.
    fewer, more = (new, old) if reverse_loss else (old, new)
    training = compare_training(fewer.completed, more.completed)
    speed = compare(old.quantity.costs, new.quantity.costs, ESTIMATE)
    return LadderFigure(
        stack=stack,
        against=against,
        **dict(training),
        **dict(of_same_training(speed, training)),
        memory=_memory(old, new),
    )


def _obstacle(new: ExperimentRuns | None, old: ExperimentRuns | None) -> str:
    """Return the reason why two stacks cannot be compared; an empty text if they can."""
    if new is None or old is None:
        return "one of the two stacks is not in the plan"
    if new is old:
        return "leaving it out changes nothing: a later item brings the same"
    for row in (new, old):
        if not row.usable:
            return f"{_name(row)} {row.how_it_ended}"
    if not set(new.speeds) & set(old.speeds):
        return "no round in which both completed"
    return new.not_comparable_with(old)


def _memory(old: ExperimentRuns, new: ExperimentRuns) -> MemoryChange | None:
    """Return the change of peak memory from `old` to `new` in bytes, paired by round.

    Returns None if the two were measured by different methods, or share no round.
    """
    kind, other = (peak_memory(list(row.completed.values()))[1] for row in (new, old))
    if kind is None or kind != other:
        return None
    shared = sorted(set(old.completed) & set(new.completed))
    peaks = [
        [largest(row.completed[key], "peak_memory", kind) for row in (old, new)] for key in shared
    ]
    changes = [after[0] - before[0] for before, after in peaks if before and after]
    if not changes:
        return None
    mean = fmean(changes)
    if len(changes) < 2:
        return MemoryChange(bytes=mean, low=None, high=None)
    half = t_bound(changes, 0.975)
    return MemoryChange(bytes=mean, low=mean - half, high=mean + half)


def _name(row: ExperimentRuns | None) -> str | None:
    return row.planned.experiment.stack.name if row else None
