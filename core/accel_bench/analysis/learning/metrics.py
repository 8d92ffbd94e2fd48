"""The loss on held-out samples as metrics of a run, beside those of plugins."""

from __future__ import annotations

from collections.abc import Iterator

from accel_bench.analysis.learning.curves import validation_curve
from accel_bench.result import Metric, Result

CORE = "evaluate"
"""Stands in the place of a plugin: the section of the scenario that asks for them."""


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
