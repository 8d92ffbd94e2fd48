"""Learning curve of a run, and its losses on held-out samples as metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from accel_bench.result import Metric, RankResult, Result, Sample

CORE = "evaluate"
"""Name of a scenario's section, used as the plugin's name in metrics of held-out losses."""


class Reached(NamedTuple):
    """Point of a learning curve: resources used up to a step, and the loss there."""

    steps: int
    """Optimizer steps so far, warm-up included."""

    tokens: int
    """Real tokens of all ranks so far."""

    seconds: float
    """Seconds of these steps on the slowest rank, without start-up and evaluations."""

    loss: float | None
    """Loss at the point; null if it is not finite or was not read."""


def training_curve(run: Result) -> list[Reached]:
    """Return the curve of the training loss, with a point for each step.

    Steps of warm-up, discarded windows and the learning curve are included. The curve ends before a
    step that was not stored, and it is empty if a rank has no window.
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
        curve.append(Reached(step + 1, tokens, seconds, _sum([steps[step].loss for steps in data])))
    return curve


def validation_curve(run: Result) -> list[Reached]:
    """Return the curve of the loss on held-out samples, with a point for each evaluation."""
    curves = [rank.learning.evaluations for rank in run.data_ranks if rank.learning]
    if not curves or len(curves) < len(run.data_ranks):
        return []
    used = {point.steps: point for point in training_curve(run)}
    used[0] = Reached(0, 0, 0.0, None)
    curve = []
    for evaluations in zip(*curves, strict=False):
        step = evaluations[0].step
        if step in used and all(part.step == step for part in evaluations):
            curve.append(used[step]._replace(loss=_sum([part.loss for part in evaluations])))
    return curve


def learning_metrics(run: Result) -> Iterator[Metric]:
    """Yield the loss on held-out samples before training and at the last evaluation, if evaluated.

    The metrics' better direction is `neither`, since rounds with the same seed have equal losses.
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
    later = rank.learning.steps if rank.learning else ()
    return {sample.step: sample for sample in (*rank.window.all_steps, *later)}


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known and len(known) == len(parts) else None
