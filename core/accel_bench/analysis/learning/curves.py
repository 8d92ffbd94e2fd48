"""The learning curve of one run, step by step, and the losses on held-out samples as metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from accel_bench.analysis.checks.convergence import smoothed
from accel_bench.result import Metric, RankResult, Result, Sample

CORE = "evaluate"
"""Stands in the place of a plugin: the section of the scenario that asks for them."""


class Reached(NamedTuple):
    """What training had used after some steps, and its loss there."""

    steps: int
    """Optimizer steps, those of the warm-up included."""

    tokens: int
    """Real tokens of all ranks."""

    seconds: float
    """Seconds of these steps, of the slowest rank: neither start-up nor evaluations."""

    loss: float | None
    """Null where it is not finite, or was not read."""


class Amounts(NamedTuple):
    """What it took to reach a loss; whole steps and tokens are interpolated too."""

    steps: float
    tokens: float
    seconds: float


def training_curve(run: Result) -> list[Reached]:
    """Return the curve of the training loss, a point for each step.

    Warm-up, discarded windows and the steps of the learning curve train too. It ends before a step
    that was not kept, and is empty where a rank has no window.
    """
    if any(rank.window is None for rank in run.ranks):
        return []
    ranks = [_steps_of(rank) for rank in run.ranks]
    data = [steps for rank, steps in zip(run.ranks, ranks, strict=True) if rank in run.data_ranks]
    curve, seconds, tokens = [], 0.0, 0
    for step in range(min((max(steps, default=-1) + 1 for steps in ranks), default=0)):
        if not all(step in steps for steps in ranks):
            break
        seconds += max(steps[step].seconds for steps in ranks)
        tokens += sum(steps[step].real_tokens for steps in data)
        curve.append(Reached(step + 1, tokens, seconds, _sum([one[step].loss for one in data])))
    return curve


def validation_curve(run: Result) -> list[Reached]:
    """Return the curve of the loss on held-out samples, a point for each evaluation."""
    curves = [rank.learning.evaluations for rank in run.data_ranks if rank.learning]
    if not curves or len(curves) < len(run.data_ranks):
        return []
    used = {one.steps: one for one in training_curve(run)}
    used[0] = Reached(0, 0, 0.0, None)
    found = []
    for evaluations in zip(*curves, strict=False):
        step = evaluations[0].step
        if step in used and all(one.step == step for one in evaluations):
            found.append(used[step]._replace(loss=_sum([one.loss for one in evaluations])))
    return found


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


def learning_metrics(run: Result) -> Iterator[Metric]:
    """Yield the loss before training and after the last evaluation; nothing without evaluations.

    Neither of two losses is called the better one here: rounds of one seed share theirs.
    """
    curve = validation_curve(run)
    if not curve:
        return
    for name, point in (
        ("validation_loss_before_training", curve[0]),
        ("validation_loss", curve[-1]),
    ):
        reason = "" if point.loss is not None else f"not finite after {point.steps} steps"
        yield Metric(
            name=name, value=point.loss, unit="1", scope="global", plugin=CORE, reason=reason
        )


def _steps_of(rank: RankResult) -> Mapping[int, Sample]:
    assert rank.window is not None
    window, later = rank.window, rank.learning.steps if rank.learning else ()
    every: Iterator[Sample] = iter((*window.warmup, *window.discarded, *window.samples, *later))
    return {sample.step: sample for sample in every}


def _sum(parts: Sequence[float | None]) -> float | None:
    """Return the sum over ranks; None where a part is not known, or not finite."""
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known and len(known) == len(parts) else None
