"""Search for the nearest change with which an experiment fits a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from accel_bench.analysis.estimates.memory import fit_of
from accel_bench.analysis.estimates.schema import Alternative
from accel_bench.catalog.hardware import list_hardware
from accel_bench.errors import AccelBenchError
from accel_bench.planning.plan import Planned
from accel_bench.runner.estimate_answer import changes_of, shape_of
from accel_bench.runner.estimate_memory import MemoryEstimator

Replan = Callable[[Planned, dict[str, Any]], Planned]
"""Plans an experiment again with other settings; raises AccelBenchError where that cannot be."""

SIMULATED_ACCUMULATION = 2
"""Micro-batches of a step that are simulated: each after the second adds its token ids alone."""


class NearestSearch(NamedTuple):
    """Looks for the nearest change that fits."""

    estimator: MemoryEstimator
    replan: Replan

    def nearest(self, planned: Planned) -> Alternative | None:
        """Return the first change that fits, in the order in which to try them."""
        for changed in changes_of(planned.experiment.scenario):
            if found := self._trial(planned, changed) or self._smaller(planned, changed):
                return found
        return self._larger_device(planned)

    def _trial(self, planned: Planned, changed: dict[str, Any]) -> Alternative | None:
        """Return the change, planned and simulated as it will be given, where it fits."""
        with suppress(AccelBenchError):
            other = self.replan(planned, changed) if changed else planned
            shape = shape_of(other.experiment.scenario)
            if not other.skipped:
                memory = self.estimator.memory(_with_few_micro_batches(other), shape)
                if changed and memory.fit == "fits":
                    name = self.estimator.target.name
                    return Alternative(settings=changed, gpu=name, needed_bytes=memory.needed_bytes)
        return None

    def _smaller(self, planned: Planned, changed: dict[str, Any]) -> Alternative | None:
        """Return the change with the largest micro-batch that fits, of as many samples a step."""
        train = planned.experiment.scenario.train
        samples = train.micro_batch_size * train.gradient_accumulation
        batches = [size for size in range(1, train.micro_batch_size) if samples % size == 0]
        best, first, end = None, 0, len(batches)
        while first < end:
            middle = (first + end) // 2
            size = batches[middle]
            smaller = {
                "train.micro_batch_size": size,
                "train.gradient_accumulation": samples // size,
            }
            if found := self._trial(planned, {**changed, **smaller}):
                best, first = found, middle + 1
            else:
                end = middle
        return best

    def _larger_device(self, planned: Planned) -> Alternative | None:
        """Return the smallest device of the table that holds the experiment as it is."""
        shape = shape_of(planned.experiment.scenario)
        need = self.estimator.memory(planned, shape).needed_bytes
        larger = [
            (row.memory_bytes, name)
            for name, row in list_hardware().items()
            if fit_of(need, row.memory_bytes) == "fits"
        ]
        if self.estimator.target.kind == "cpu" or not larger:
            return None
        return Alternative(settings={}, gpu=min(larger)[1], needed_bytes=need)


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
