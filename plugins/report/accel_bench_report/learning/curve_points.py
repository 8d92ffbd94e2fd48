"""Learning curve of a run: its point at a step, and the steps, tokens and seconds until a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from accel_bench.analysis.checks.convergence import smoothed
from accel_bench.analysis.learning.curves import Reached, training_curve, validation_curve
from accel_bench.result import Result


class Amounts(NamedTuple):
    """Steps, tokens and seconds used until a loss was reached, interpolated."""

    steps: float
    tokens: float
    seconds: float


def learning_curve(run: Result) -> list[Reached]:
    """Return the validation curve of a run; without evaluations, its smoothed training loss."""
    if validation := validation_curve(run):
        return validation
    curve = training_curve(run)
    known = [point.loss for point in curve if point.loss is not None]
    if len(known) < len(curve):
        return curve
    return [point._replace(loss=x) for point, x in zip(curve, smoothed(known), strict=True)]


def amounts_to(curve: Sequence[Reached], loss: float) -> Amounts | None:
    """Return the steps, tokens and seconds until the loss was first at most `loss`.

    Points of the curve are interpolated linearly. None if that loss was not reached.
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
    """Return a curve's point after `steps` steps, interpolated linearly.

    None for steps before its first point or after its last.
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
    """Return a curve's last point up to `steps` steps, and its first point from there on.

    Both are the same point at an exact match. The result is None outside of the curve.
    """
    before = next((point for point in reversed(curve) if point.steps <= steps), None)
    after = next((point for point in curve if point.steps >= steps), None)
    return None if before is None or after is None else (before, after)
