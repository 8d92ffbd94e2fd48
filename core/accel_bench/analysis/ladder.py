"""What each item of an ablation ladder adds to the rung before, and what leaving it out costs.

The figures are estimates over the same rounds as all others, with 95 % intervals. They get
no verdict: Holm's family is that of the stacks against the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from accel_bench.analysis.aggregate import ExperimentRuns, peak_memory
from accel_bench.analysis.checks.convergence import compare_losses
from accel_bench.analysis.metrics.memory import largest
from accel_bench.analysis.schema import LadderFigure, LadderStep, MemoryChange
from accel_bench.analysis.statistics.estimators import (
    Interval,
    log_interval,
    standard_error,
    t_quantile,
)
from accel_bench.analysis.statistics.verdict import RoundKey, paired_logs
from accel_bench.result import Result, Status

Held = tuple[int, ...]
"""Numbers of the items that a stack holds, from 0, in order."""


def ladder_steps(
    rows: Sequence[ExperimentRuns], ratios: Sequence[Interval | None]
) -> tuple[LadderStep, ...]:
    """A step for each item at each sweep point; none where no stack stands on a ladder.

    `ratios` are those of the rows to the baseline of their sweep point.
    """
    found: list[LadderStep] = []
    for point in dict.fromkeys(row.planned.experiment.point for row in rows):
        at = [(r, v) for r, v in zip(rows, ratios, strict=True) if _on_ladder(r, point)]
        found += _steps(at)
    return tuple(found)


def _on_ladder(row: ExperimentRuns, point: str) -> bool:
    """Whether a row is of this sweep point, and its stack of the ladder."""
    experiment = row.planned.experiment
    return experiment.point == point and experiment.stack.ladder is not None


def _steps(rows: Sequence[tuple[ExperimentRuns, Interval | None]]) -> list[LadderStep]:
    """The steps of one sweep point."""
    by_items: dict[Held, ExperimentRuns] = {}
    speeds: dict[Held, Interval | None] = {}
    labels: tuple[str, ...] = ()
    for row, speed in rows:
        place = row.planned.experiment.stack.ladder
        assert place is not None
        labels = place.items
        for held in place.holds:
            by_items[held], speeds[held] = row, speed
    everything = tuple(range(len(labels)))
    return [
        LadderStep(
            sweep=rows[0][0].planned.experiment.sweep,
            number=number + 1,
            item=label,
            ratio=speeds.get(everything[: number + 1]),
            adds=_adds(by_items, everything[: number + 1]),
            left_out=_left_out(by_items, everything, number),
        )
        for number, label in enumerate(labels)
    ]


def _adds(by_items: Mapping[Held, ExperimentRuns], rung: Held) -> LadderFigure:
    """A rung against the one before."""
    return _figure(by_items.get(rung), by_items.get(rung[:-1]), reverse_loss=False)


def _left_out(
    by_items: Mapping[Held, ExperimentRuns], everything: Held, number: int
) -> LadderFigure:
    """Everything without one item against everything."""
    less = everything[:number] + everything[number + 1 :]
    return _figure(by_items.get(less), by_items.get(everything), reverse_loss=True)


def _figure(
    new: ExperimentRuns | None, old: ExperimentRuns | None, reverse_loss: bool
) -> LadderFigure:
    """Hold one row against another; the loss against the row with fewer items."""
    reason = _obstacle(new, old)
    if reason or new is None or old is None:
        return LadderFigure(stack=_name(new), against=_name(old), reason=reason)
    logs = paired_logs(old.seconds_per_token, new.seconds_per_token)
    # The stack with the item comes second: its plugins declare what is allowed.
    fewer, more = (new, old) if reverse_loss else (old, new)
    loss = compare_losses(fewer.completed, more.completed)
    return LadderFigure(
        stack=_name(new),
        against=_name(old),
        rounds=len(logs),
        ratio=log_interval(logs),
        memory=_memory(old, new),
        loss_verdict=loss.verdict,
        loss_difference=loss.largest_difference,
        loss_tolerance=loss.tolerance,
        loss_reason=loss.reason,
    )


def _obstacle(new: ExperimentRuns | None, old: ExperimentRuns | None) -> str:
    """Why two rows cannot be compared; empty when they can."""
    if new is None or old is None:
        return "one of the two stacks is not in the plan"
    if new is old:
        return "leaving it out changes nothing: a later item brings the same"
    for row in (new, old):
        if not row.usable:
            status = row.ending.status
            how = "was skipped" if status is Status.SKIPPED else f"ended as {status.value}"
            return f"{_name(row)} {how}"
    if not set(new.speeds) & set(old.speeds):
        return "no round in which both completed"
    return ""


def _memory(old: ExperimentRuns, new: ExperimentRuns) -> MemoryChange | None:
    """Paired differences of the peaks that stand in the table."""
    kind, other = peak_memory(new.completed)[1], peak_memory(old.completed)[1]
    if kind is None or kind != other:
        return None
    changes = [
        after - before
        for key in sorted(set(old.completed) & set(new.completed))
        if (before := _peak(old.completed, key, kind)) is not None
        and (after := _peak(new.completed, key, kind)) is not None
    ]
    if not changes:
        return None
    mean = fmean(changes)
    if len(changes) < 2:
        return MemoryChange(bytes=mean, low=None, high=None)
    half = t_quantile(len(changes) - 1, 0.975) * standard_error(changes)
    return MemoryChange(bytes=mean, low=mean - half, high=mean + half)


def _peak(runs: Mapping[RoundKey, Result], key: RoundKey, kind: str) -> int | None:
    """Peak of one run: that of the rank that needed most."""
    found = largest(runs[key], "peak_memory", kind)
    return found[0] if found else None


def _name(row: ExperimentRuns | None) -> str | None:
    return row.planned.experiment.stack.name if row else None
