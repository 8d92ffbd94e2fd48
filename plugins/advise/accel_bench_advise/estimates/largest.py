"""What a device has to hold for an experiment, and the largest shapes that it holds."""

from __future__ import annotations

from typing import NamedTuple

from accel_bench.planning.limits import device_copies
from accel_bench.planning.plan import Planned
from accel_bench_advise.estimates.answer import shape_of
from accel_bench_advise.estimates.memory import (
    largest_that_fits,
    memory_estimate,
    on_one_device,
)
from accel_bench_advise.estimates.schema import BatchShape, Footprint, Limit, MemoryEstimate
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.target import Target

LENGTH_STEP = 64
"""Tokens between the lengths among which the longest is looked for."""

LONGEST_BATCH, LONGEST_LENGTH = 65_536, 1_048_576
"""Batch and length at which the searches end."""


class MemoryEstimator(NamedTuple):
    """Estimates the memory of experiments on one device."""

    simulator: Simulator
    target: Target

    def footprint(self, planned: Planned, shape: BatchShape) -> Footprint:
        """Return what a step of that shape takes. Raises AccelBenchError where it is not known."""
        return self.simulator.footprint(planned.experiment, shape, self.target.kind)

    def memory(self, planned: Planned, shape: BatchShape) -> MemoryEstimate:
        """Return what one device holds; on a CPU, which ranks share, what all of them do."""
        scenario = planned.experiment.scenario
        footprint = self.footprint(planned, shape)
        copies = device_copies(scenario, planned.active.answers("parallelize_model"))
        ranks = scenario.resources.devices if self.target.kind == "cpu" else 1
        parts = on_one_device(footprint, copies, ranks)
        target = self.target
        return memory_estimate(footprint, parts, target.kind, target.memory_bytes, ranks)

    def largest_batch(self, planned: Planned, limit: int = LONGEST_BATCH) -> Limit:
        """Return the largest micro-batch that surely fits, at the experiment's length."""
        shape = shape_of(planned.experiment.scenario)
        return self._largest(planned, "micro_batch_size", shape, limit=limit)

    def need(self, planned: Planned, micro_batch_size: int) -> float:
        """Return the bytes that a device surely holds so many samples in."""
        shape = shape_of(planned.experiment.scenario)
        changed = shape.model_copy(update={"micro_batch_size": micro_batch_size})
        return self.memory(planned, changed).needed_bytes.high

    def longest(self, planned: Planned) -> Limit | None:
        """Return the longest sequences that surely fit, in the experiment's micro-batch.

        None where the samples do not go by `data.sequence_length`, as images do not.
        """
        shape = shape_of(planned.experiment.scenario)
        other = shape.model_copy(update={"sequence_length": shape.sequence_length // 2 or 2})
        steps = [self.footprint(planned, one).operations for one in (shape, other)]
        if steps[0] == steps[1]:
            return None
        learned = self.simulator.model(planned.experiment).longest_learned
        limit = learned or LONGEST_LENGTH
        found = self._largest(planned, "sequence_length", shape, min(LENGTH_STEP, limit), limit)
        at_end = learned is not None and found.bounded_by == "search"
        return found.model_copy(update={"bounded_by": "model"}) if at_end else found

    def _largest(
        self, planned: Planned, key: str, shape: BatchShape, step: int = 1, limit: int = 1
    ) -> Limit:
        def need(value: int) -> float:
            return self.memory(planned, shape.model_copy(update={key: value})).needed_bytes.high

        capacity = float(self.target.memory_bytes or 0)
        return largest_that_fits(need, capacity, getattr(shape, key), step, limit)
