"""Device memory that an experiment needs, the largest batches that fit, and changes that help."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from accel_bench.catalog.hardware import list_hardware
from accel_bench.errors import AccelBenchError
from accel_bench.planning.plan import Planned
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.uses import NO_PLUGIN, slot_defaults
from accel_bench_advise.estimates.lower_bound import device_copies
from accel_bench_advise.estimates.schema import (
    Alternative,
    BatchShape,
    Bounds,
    Footprint,
    Limit,
    MemoryEstimate,
    Part,
)
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.target import Target

GIBI = 2**30

BESIDE_TENSORS: Mapping[str, tuple[float, float]] = {
    "cuda": (0.4 * GIBI, 1.0 * GIBI),
    "cpu": (0.3 * GIBI, 0.9 * GIBI),
}
"""Smallest and largest observed bytes of a process in addition to its tensors: a GPU's context and
kernels' workspaces, or a CPU's libraries."""

GAPS: Mapping[str, float] = {"cuda": 0.06, "cpu": 0.03}
"""Fraction of the tensors' bytes that allocator fragmentation adds at most."""

SEARCH_STEPS = 40
"""Maximum number of simulations of a search; linear memory needs three."""

BISECTS_AFTER = 6
"""Number of simulations after which a search bisects, since memory is not linear."""

MODEL_PARTS = ("weights", "quantized weights", "gradients", "optimizer state")
"""Parts of memory that parallel strategies may divide; each rank holds the other parts whole."""

LENGTH_STEP = 64
"""Step in tokens of the search for the longest sequence length."""

LONGEST_BATCH, LONGEST_LENGTH = 65_536, 1_048_576
"""Upper ends of the searches, in samples and tokens."""


CHANGE_WHAT_LASTS = ("model.dtype", "adapter.use")
"""Settings that change the memory of weights and optimizer state."""

SIMULATED_ACCUMULATION = 2
"""Number of micro-batches that are simulated per step; further ones add only their token ids."""


class MemoryEstimator(NamedTuple):
    """Estimator of the memory of experiments on one device."""

    simulator: Simulator
    target: Target

    def footprint(self, planned: Planned, **other: int) -> Footprint:
        """Return the memory and work of one optimizer step of an experiment.

        `other` replaces sizes of the experiment's batch shape by name, such as `micro_batch_size`.
        Raises AccelBenchError if the step cannot be simulated.
        """
        return self.simulator.footprint(planned.experiment, self.target.kind, **other)

    def memory(self, planned: Planned, **other: int) -> MemoryEstimate:
        """Return the memory estimate of one device; all ranks on a CPU share one memory.

        `other` replaces sizes of the batch shape, as for `footprint`.
        """
        scenario, target = planned.experiment.scenario, self.target
        footprint = self.footprint(planned, **other)
        copies = device_copies(scenario, planned.active.answers("parallelize_model"))
        ranks = scenario.resources.devices if target.kind == "cpu" else 1
        return memory_estimate(footprint, copies, target.kind, target.memory_bytes, ranks)

    def need(self, planned: Planned, **other: int) -> float:
        """Return the upper end of the estimated bytes that a step needs on one device.

        `other` replaces sizes of the batch shape, as for `footprint`.
        """
        return self.memory(planned, **other).needed_bytes.high

    def largest_batch(self, planned: Planned, limit: int = LONGEST_BATCH) -> Limit:
        """Return the largest micro-batch up to `limit` whose upper memory estimate fits the device.

        The sequence length is unchanged.
        """
        return self._largest(planned, "micro_batch_size", 1, limit)

    def longest(self, planned: Planned) -> Limit | None:
        """Return the longest sequence length whose upper memory estimate fits, samples unchanged.

        None for data without `data.sequence_length`, such as images.
        """
        half = planned.experiment.scenario.data.sequence_length // 2 or 2
        other = self.footprint(planned, sequence_length=half)
        if self.footprint(planned).operations == other.operations:
            return None
        learned = self.simulator.model(planned.experiment).longest_learned
        limit = learned or LONGEST_LENGTH
        longest = self._largest(planned, "sequence_length", min(LENGTH_STEP, limit), limit)
        at_end = learned is not None and longest.bounded_by == "search"
        return longest.model_copy(update={"bounded_by": "model"}) if at_end else longest

    def _largest(self, planned: Planned, key: str, step: int, limit: int) -> Limit:
        return largest_that_fits(
            lambda value: self.need(planned, **{key: value}),
            float(self.target.memory_bytes or 0),
            getattr(BatchShape.of(planned.experiment.scenario), key),
            step,
            limit,
        )


class NearestSearch(NamedTuple):
    """Search for the smallest change of settings or device with which an experiment fits."""

    estimator: MemoryEstimator

    replan: Callable[[Planned, dict[str, Any]], Planned]
    """Function that plans an experiment with other settings; raises AccelBenchError."""

    def nearest(self, planned: Planned) -> Alternative | None:
        """Return the first change in order of preference with which an experiment fits.

        If weights and optimizer state alone exceed the device, neither checkpointing nor a smaller
        batch is simulated. None if no change and no other device makes it fit.
        """
        too_large: list[tuple[Any, ...]] = []
        for changed in _changes_of(planned.experiment.scenario):
            lasting = tuple(changed.get(key) for key in CHANGE_WHAT_LASTS)
            if lasting in too_large:
                continue
            if changed and (alternative := self._trial(planned, changed)):
                return alternative
            memory = self._memory(planned, changed)
            if memory and _lasting_bytes(memory) > (memory.device_bytes or math.inf):
                too_large.append(lasting)
            elif alternative := self._smaller(planned, changed):
                return alternative
        return self._larger_device(planned)

    def _memory(self, planned: Planned, changed: dict[str, Any]) -> MemoryEstimate | None:
        """Return the memory of an experiment with the settings `changed` by dotted key.

        None if it cannot be planned or simulated.
        """
        with suppress(AccelBenchError):
            other = self.replan(planned, changed) if changed else planned
            if not other.skipped:
                return self.estimator.memory(_with_few_micro_batches(other) if changed else other)
        return None

    def _trial(self, planned: Planned, changed: dict[str, Any]) -> Alternative | None:
        """Return `changed` as an alternative if the experiment fits with it, else None."""
        memory = self._memory(planned, changed)
        if memory is None or memory.fit != "holds":
            return None
        name = self.estimator.target.name
        return Alternative(settings=changed, gpu=name, needed_bytes=memory.needed_bytes)

    def _smaller(self, planned: Planned, changed: dict[str, Any]) -> Alternative | None:
        """Return `changed` plus the largest smaller micro-batch that fits; None if none fits.

        Gradient accumulation grows, so that a step keeps its number of samples.
        """
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
        fitting = bisect_left(
            smaller, True, key=lambda change: self._trial(planned, change) is None
        )
        return self._trial(planned, smaller[fitting - 1]) if fitting else None

    def _larger_device(self, planned: Planned) -> Alternative | None:
        """Return the smallest device of the table on which the experiment fits.

        None if it fits on no device, or if the estimate is for a CPU.
        """
        need = self.estimator.memory(planned).needed_bytes
        larger = [
            (row.memory_bytes, name)
            for name, row in list_hardware().items()
            if need.within(row.memory_bytes) == "holds"
        ]
        if self.estimator.target.kind == "cpu" or not larger:
            return None
        return Alternative(settings={}, gpu=min(larger)[1], needed_bytes=need)


def memory_estimate(
    footprint: Footprint,
    copies: Callable[[str], float],
    device: str,
    device_bytes: int | None,
    ranks: int = 1,
) -> MemoryEstimate:
    """Return the memory estimate of a device that `ranks` ranks share.

    `copies(part)` is the number of replicas of a part of the model on one device. `device` is the
    device type, `cpu` or `cuda`, and `device_bytes` its memory; None if unknown.
    """
    parts: dict[Part, float] = {
        part: size * (copies(part.removeprefix("quantized ")) if part in MODEL_PARTS else ranks)
        for part, size in footprint.parts.items()
    }
    tensors = sum(parts.values())
    least, most = (ranks * beside for beside in BESIDE_TENSORS[device])
    needed = Bounds(low=tensors + least, high=tensors * (1 + GAPS[device]) + most)
    return MemoryEstimate(
        parts=parts,
        tensor_bytes=tensors,
        phase=footprint.phase,
        needed_bytes=needed,
        device_bytes=device_bytes,
        fit=needed.within(device_bytes),
    )


def largest_that_fits(
    need: Callable[[int], float], capacity: float, first: int, step: int = 1, limit: int = 2**20
) -> Limit:
    """Return the largest multiple of `step` up to `limit` whose `need` (bytes) is within
    `capacity`.

    `need` must grow at least linearly, as memory does with batch and length: the line through two
    fitting values bounds the search. `first` is the value to start from.
    """
    known: dict[int, float] = {0: -math.inf}
    limit -= limit % step
    guess = max(step, min(limit, first - first % step))
    for tried in range(SEARCH_STEPS):
        known[guess] = need(guess)
        fits = sorted(n for n in known if known[n] <= capacity)
        above = min((n for n in known if known[n] > capacity), default=limit + step)
        most = _most(fits[-2:], known, capacity, step)
        end = min(above - step, limit if most is None else max(most, fits[-1]))
        if end <= fits[-1]:
            by_limit = end == limit and above > limit
            return Limit(value=fits[-1], bounded_by="search" if by_limit else "memory")
        if tried >= BISECTS_AFTER or (most is None and above <= limit):
            guess = (fits[-1] + end) // 2 // step * step
        else:
            guess = end if most is not None else min(end, 2 * fits[-1])
        guess = max(guess, fits[-1] + step)
    return Limit(value=fits[-1], bounded_by="search")


def _most(fits: list[int], known: Mapping[int, float], capacity: float, step: int) -> int | None:
    """Return the multiple of `step` at which a line through two fitting values meets the capacity.

    `fits` are the two largest fitting values, and `known` the bytes needed by each tried value.
    None for fewer fitting values, or if both need the same bytes.
    """
    lower, upper = (fits * 2)[:2]
    rise = known[upper] - known[lower]
    if not 0 < rise < math.inf:  # one value only, or the optimizer's step is the peak of both
        return None
    more = (capacity - known[upper]) / rise * (upper - lower)
    return int((upper + min(more, 1e12)) // step * step)


def _changes_of(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield changed settings to try, by dotted key, the smallest change of the training first.

    The first mapping is empty, and each later one adds a setting to the one before.
    """
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
    """Return the bytes of weights and optimizer state, which do not depend on the batch."""
    kinds: tuple[Part, ...] = ("weights", "quantized weights", "optimizer state")
    return sum(memory.parts.get(kind, 0.0) for kind in kinds)


def _with_few_micro_batches(planned: Planned) -> Planned:
    """Return an experiment of equal memory that simulates faster: at most two micro-batches a
    step."""
    scenario = planned.experiment.scenario
    train = scenario.train
    if train.gradient_accumulation <= SIMULATED_ACCUMULATION:
        return planned
    samples = train.micro_batch_size * SIMULATED_ACCUMULATION * scenario.data_parallel
    fewer = {"gradient_accumulation": SIMULATED_ACCUMULATION, "global_batch_size": samples}
    shorter = scenario.model_copy(update={"train": train.model_copy(update=fewer)})
    return replace(planned, experiment=planned.experiment.model_copy(update={"scenario": shorter}))
