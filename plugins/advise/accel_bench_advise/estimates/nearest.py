"""Search for the nearest change with which an experiment fits a device."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from accel_bench.catalog.hardware import list_hardware
from accel_bench.errors import AccelBenchError
from accel_bench.planning.plan import Planned
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.uses import NO_PLUGIN, slot_defaults
from accel_bench_advise.estimates.memory import MemoryEstimator
from accel_bench_advise.estimates.schema import Alternative, MemoryEstimate, Part

Replan = Callable[[Planned, dict[str, Any]], Planned]
"""Plans an experiment again with other settings; raises AccelBenchError where that cannot be."""

CHANGE_WHAT_LASTS = ("model.dtype", "adapter.use")
"""Settings that change how much weights and optimizer state take."""

SIMULATED_ACCUMULATION = 2
"""Micro-batches of a step that are simulated: each after the second adds its token ids alone."""


class NearestSearch(NamedTuple):
    """Looks for the nearest change that fits."""

    estimator: MemoryEstimator
    replan: Replan

    def nearest(self, planned: Planned) -> Alternative | None:
        """Return the first change that fits, in the order in which to try them.

        Where weights and optimizer state alone exceed the device, neither checkpointing nor a
        smaller batch is simulated.
        """
        too_large: list[tuple[Any, ...]] = []
        for changed in _changes_of(planned.experiment.scenario):
            lasting = tuple(changed.get(key) for key in CHANGE_WHAT_LASTS)
            if lasting in too_large:
                continue
            if changed and (found := self._trial(planned, changed)):
                return found
            memory = self._memory(planned, changed)
            if memory and _lasting_bytes(memory) > (memory.device_bytes or math.inf):
                too_large.append(lasting)
            elif found := self._smaller(planned, changed):
                return found
        return self._larger_device(planned)

    def _memory(self, planned: Planned, changed: dict[str, Any]) -> MemoryEstimate | None:
        """Return the memory of a change, planned and simulated as it will be given; None where it
        cannot be."""
        with suppress(AccelBenchError):
            other = self.replan(planned, changed) if changed else planned
            if not other.skipped:
                return self.estimator.memory(_with_few_micro_batches(other) if changed else other)
        return None

    def _trial(self, planned: Planned, changed: dict[str, Any]) -> Alternative | None:
        """Return the change where it fits."""
        memory = self._memory(planned, changed)
        if memory is None or memory.fit != "fits":
            return None
        name = self.estimator.target.name
        return Alternative(settings=changed, gpu=name, needed_bytes=memory.needed_bytes)

    def _smaller(self, planned: Planned, changed: dict[str, Any]) -> Alternative | None:
        """Return the change with the largest micro-batch that fits, of as many samples a step."""
        train = planned.experiment.scenario.train
        samples = train.micro_batch_size * train.gradient_accumulation
        smaller = [
            {
                **changed,
                "train.micro_batch_size": size,
                "train.gradient_accumulation": samples // size,
            }
            for size in range(1, train.micro_batch_size)
            if samples % size == 0
        ]
        fitting = bisect_left(smaller, True, key=lambda one: self._trial(planned, one) is None)
        return self._trial(planned, smaller[fitting - 1]) if fitting else None

    def _larger_device(self, planned: Planned) -> Alternative | None:
        """Return the smallest device of the table that holds the experiment as it is."""
        need = self.estimator.memory(planned).needed_bytes
        larger = [
            (row.memory_bytes, name)
            for name, row in list_hardware().items()
            if need.fit(row.memory_bytes) == "fits"
        ]
        if self.estimator.target.kind == "cpu" or not larger:
            return None
        return Alternative(settings={}, gpu=min(larger)[1], needed_bytes=need)


def _changes_of(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield what to try, the least change to the training first; each includes those before it."""
    changed: dict[str, Any] = {}
    yield changed
    if not scenario.train.gradient_checkpointing:
        changed = {**changed, "train.gradient_checkpointing": True}
        yield changed
    if scenario.model.dtype == "float32" and scenario.train.precision == "as-is":
        changed = {**changed, "model.dtype": "bfloat16"}
        yield changed
    if scenario.adapter.use == NO_PLUGIN:
        yield {**changed, "adapter.use": slot_defaults().needed_adapter}


def _lasting_bytes(memory: MemoryEstimate) -> float:
    """Return the bytes that a device holds from step to step, whatever the batch."""
    kinds: tuple[Part, ...] = ("weights", "quantized weights", "optimizer state")
    return sum(memory.parts.get(kind, 0.0) for kind in kinds)


def _with_few_micro_batches(planned: Planned) -> Planned:
    """Return an experiment of the same memory whose step is simulated sooner."""
    scenario = planned.experiment.scenario
    train = scenario.train
    if train.gradient_accumulation <= SIMULATED_ACCUMULATION:
        return planned
    samples = train.micro_batch_size * SIMULATED_ACCUMULATION * scenario.data_parallel
    fewer = {"gradient_accumulation": SIMULATED_ACCUMULATION, "global_batch_size": samples}
    shorter = scenario.model_copy(update={"train": train.model_copy(update=fewer)})
    return replace(planned, experiment=planned.experiment.model_copy(update={"scenario": shorter}))
