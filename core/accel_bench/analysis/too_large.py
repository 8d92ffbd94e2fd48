"""Pruning of sweep points larger than a point at which the same stack ran out of memory."""

from __future__ import annotations

from collections.abc import Iterable

from accel_bench.analysis.wording import settings
from accel_bench.scenario.experiment import Experiment

GROWING = frozenset({"data.sequence_length", "inference.batch_size", "train.micro_batch_size"})
"""Swept keys whose larger values need more memory, all else being equal."""


def too_large(experiment: Experiment, out_of_memory: Iterable[Experiment]) -> str:
    """Return the reason to skip an experiment because a smaller one ran out of memory; empty
    without such an experiment, or if `measure.prune` is off."""
    if not experiment.scenario.measure.prune:
        return ""
    smaller = next((failed for failed in out_of_memory if _is_smaller(failed, experiment)), None)
    if smaller is None:
        return ""
    below = {key: value for key, value in smaller.sweep.items() if key in GROWING}
    return (
        f"{settings(below)} ran out of memory, and this needs more; measure.prune: false runs it "
        "all the same"
    )


def _is_smaller(one: Experiment, other: Experiment) -> bool:
    """Return whether two experiments differ only in sizes that are smaller in `one`."""
    if one.stack.name != other.stack.name or one.sweep.keys() != other.sweep.keys():
        return False
    pairs = {key: (value, other.sweep[key]) for key, value in one.sweep.items()}
    changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    return bool(changed) and all(
        key in GROWING and isinstance(low, int) and isinstance(high, int) and low < high
        for key, (low, high) in changed.items()
    )
