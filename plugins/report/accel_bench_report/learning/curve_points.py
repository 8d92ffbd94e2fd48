"""Where the learning curve of a run stands after some steps, and what it took to reach a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from accel_bench.analysis.checks.convergence import smoothed
from accel_bench.analysis.learning.curves import Reached, training_curve, validation_curve
from accel_bench.result import Result


class Amounts(NamedTuple):
    """What it took to reach a loss; whole steps and tokens are interpolated too."""

    steps: float
    tokens: float
    seconds: float


def learning_curve(run: Result) -> list[Reached]:
    """Return the validation curve, or that of the training loss, smoothed, without evaluations."""
    if found := validation_curve(run):
        return found
    curve = training_curve(run)
    known = [one.loss for one in curve if one.loss is not None]
    if len(known) < len(curve):
        return curve
    return [one._replace(loss=x) for one, x in zip(curve, smoothed(known), strict=True)]


def amounts_to(curve: Sequence[Reached], loss: float) -> Amounts | None:
    """Return what training used until its loss was first no more than `loss`.

    Between two points of the curve it is interpolated linearly; None where that was not reached.
    """
    first = next(iter(curve), None)
    if first is not None and first.loss is not None and first.loss <= loss:
        return Amounts(first.steps, first.tokens, first.seconds)
    for before, after in pairwise(curve):
        if after.loss is None or after.loss > loss:
            continue
        above = math.inf if before.loss is None else before.loss
        part = 1.0 if math.isinf(above) else (above - loss) / (above - after.loss)
        ends = zip(before[:3], after[:3], strict=True)
        return Amounts(*(low + part * (high - low) for low, high in ends))
    return None


def reached_after(curve: Sequence[Reached], steps: int) -> Reached | None:
    """Return the curve after so many steps, interpolated linearly between two points.

    None before its first point and after its last.
    """
    around = points_around(curve, steps)
    if around is None:
        return None
    before, after = around
    if before.steps == after.steps:
        return before
    part = (steps - before.steps) / (after.steps - before.steps)
    tokens, seconds = (
        low + part * (high - low) for low, high in zip(before[1:3], after[1:3], strict=True)
    )
    loss = None
    if before.loss is not None and after.loss is not None:
        loss = before.loss + part * (after.loss - before.loss)
    return Reached(steps, round(tokens), seconds, loss)


def points_around(curve: Sequence[Reached], steps: int) -> tuple[Reached, Reached] | None:
    """Return the points next to so many steps, one of them twice where it lies there.

    None before the first point and after the last.
    """
    before = next((one for one in reversed(curve) if one.steps <= steps), None)
    after = next((one for one in curve if one.steps >= steps), None)
    return None if before is None or after is None else (before, after)
