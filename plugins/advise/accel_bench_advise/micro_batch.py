"""The largest micro-batch that is estimated to fit every stack, and for how long that holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accel_bench.analysis.wording import size
from accel_bench.documents.base import Frozen
from accel_bench.errors import ScenarioError
from accel_bench.machine.info import Machine
from accel_bench.machine.probe import read_state
from accel_bench.planning.plan import Plan, Planned
from accel_bench.plugins.active import task_of
from accel_bench.scenario.sweep import MICRO_BATCH, Choice
from accel_bench_advise.estimates.memory import MemoryEstimator
from accel_bench_advise.estimates.target import Target, target_of

LARGEST = 1024
"""Samples of a micro-batch at which the search ends: larger ones gain nothing."""


class EstimatedBatch(Frozen):
    """The largest micro-batch that is estimated to fit, and with how much memory it is that."""

    value: int

    because: str
    """How it came about, in a sentence."""

    least_bytes: float = 0.0
    """What the stack that needs most needs of it."""

    most_bytes: float | None = None
    """What that of twice the size needs; None where the search ends before."""

    def holds(self, memory_bytes: float | None) -> bool:
        """Return whether the estimate is the same with so much memory; None: it is not known."""
        if memory_bytes is None:
            return True
        return self.least_bytes <= memory_bytes < (self.most_bytes or math.inf)


class KeptBatch(Frozen):
    """A micro-batch that was worked out, and the estimate that it began with."""

    choice: Choice
    estimated: EstimatedBatch


def device_now(machine: Machine) -> Target:
    """Return the device, with the memory that there is for a run: on a CPU what is free."""
    target = target_of(machine, None)
    if target.kind != "cpu":
        return target
    free = read_state(False).cpu.memory_available_bytes
    return target._replace(memory_bytes=min(machine.memory_bytes, free))


def estimated_batch(
    estimator: MemoryEstimator, stacks: Sequence[Planned], every: Sequence[int | None], search: int
) -> EstimatedBatch:
    """Return the largest power of two that is estimated to fit in every stack.

    `every` is the largest micro-batch of each stack; None for one that cannot be estimated. Raises
    ScenarioError where none can.
    """
    found = [one for one in every if one is not None]
    if not found:
        raise ScenarioError(f"{MICRO_BATCH}: auto: no stack can be estimated; give a number")
    value = power_of_two(min(found))
    known = [stack for stack, one in zip(stacks, every, strict=True) if one is not None]
    needs = [
        max(estimator.need(planned, micro_batch_size=each) for planned in known)
        for each in (value, 2 * value)
        if each <= search
    ]
    fits = f"every stack that can be estimated fits {size(estimator.target.memory_bytes or 0)}"
    ends = value == search
    return EstimatedBatch(
        value=value,
        because=f"{fits}, and the search ends here"
        if ends
        else f"the largest power of two with which {fits}",
        least_bytes=needs[0],
        most_bytes=None if ends else needs[1],
    )


def refuse_dependent(stacks: Sequence[Planned]) -> None:
    """Raise ScenarioError where the size of a micro-batch is part of what is trained."""
    task = task_of(stacks[0].active) if stacks else None
    if task is not None and task.batch_dependent:
        raise ScenarioError(
            f"{MICRO_BATCH}: auto: the loss of task {task.name!r} depends on which samples share a "
            "micro-batch, so that its size is no free choice but part of the training: give a "
            "number"
        )


def range_of(plan: Plan, planned: Planned) -> int:
    """Return the largest micro-batch to look for: a power of two that divides what is given."""
    scenario = planned.experiment.scenario
    given = plan.file.train.model_fields_set | {
        key.removeprefix("train.") for key in planned.experiment.sweep
    }
    if "global_batch_size" not in given:
        return LARGEST
    samples = scenario.train.global_batch_size // scenario.data_parallel
    return min(LARGEST, samples & -samples)


def power_of_two(value: int) -> int:
    """Return the largest power of two up to a value of 1 or more."""
    return 1 << (value.bit_length() - 1)
