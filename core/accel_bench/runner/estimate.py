"""Estimate the experiments of a plan for a device: does it fit, how fast, for how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from accel_bench.analysis.estimates.memory import (
    fit_of,
    largest_that_fits,
    memory_estimate,
    on_one_device,
)
from accel_bench.analysis.estimates.schema import (
    Alternative,
    BatchShape,
    CostEstimate,
    Estimate,
    Footprint,
    Limit,
    MemoryEstimate,
    Span,
    SpeedEstimate,
)
from accel_bench.analysis.estimates.speed import (
    roofline,
    speed_estimate,
)
from accel_bench.analysis.metrics.cost import (
    HourlyRate,
    instances_needed,
    table_tariff,
    usd_for_tokens,
    usd_per_million_tokens,
)
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.wording import label
from accel_bench.catalog.hardware import NamedHardware, find_hardware, list_hardware
from accel_bench.catalog.prices import Price, PriceEntry
from accel_bench.errors import AccelBenchError
from accel_bench.planning.limits import device_copies
from accel_bench.planning.plan import Planned
from accel_bench.result import Result
from accel_bench.runner.estimate_answer import answer_of, changes_of, notes_of, shape_of, with_batch
from accel_bench.runner.estimate_target import Target
from accel_bench.runner.simulator import Simulator
from accel_bench.scenario.models import Scenario

LENGTH_STEP = 64
"""Tokens between the lengths among which the longest is looked for."""

LONGEST_BATCH, LONGEST_LENGTH = 65_536, 1_048_576
"""Where the searches end."""

MOST_CALIBRATIONS = 2
"""Stored experiments that a speed is calibrated by; each has to be simulated too."""

Replan = Callable[[Planned, dict[str, Any]], Planned]
"""Plans an experiment again with other settings; raises AccelBenchError where that cannot be."""


@dataclass(frozen=True)
class Estimator:
    """Estimates experiments for one device."""

    simulator: Simulator
    target: Target
    stored: Sequence[Result]
    prices: Sequence[PriceEntry]
    for_tokens: float | None
    replan: Replan
    limits: bool = True
    """Whether the largest batch and the longest context are looked for: some more simulations."""

    def estimate(self, planned: Planned) -> Estimate:
        """Return the estimate of an experiment; one that cannot be simulated says why."""
        experiment = planned.experiment
        scenario = experiment.scenario
        blank = Estimate(
            scenario=scenario.name,
            experiment_id=experiment.id,
            stack=experiment.stack.name,
            sweep=experiment.sweep,
            gpu=self.target.name,
            devices=scenario.world_size,
            shape=shape_of(scenario),
        )
        if planned.skipped:
            return blank.model_copy(update={"problem": "; ".join(planned.skipped)})
        try:
            return blank.model_copy(update=self._figures(planned))
        except AccelBenchError as error:
            return blank.model_copy(update={"problem": str(error)})

    def _figures(self, planned: Planned) -> dict[str, Any]:
        scenario = planned.experiment.scenario
        shape = shape_of(scenario)
        footprint = self._footprint(planned, shape)
        model = self.simulator.model(planned.experiment)
        memory = self._memory(planned, shape)
        speed = self._speed(planned, footprint)
        nearest = self._nearest(planned) if memory.fit == "does not fit" else None
        name = label(planned.experiment.stack.name, planned.experiment.sweep)
        figures = {
            "parameters": model.parameters,
            "trained_parameters": model.trained_parameters,
            "memory": memory,
            "speed": speed,
            "hours": self._hours(speed),
            "cost": self._cost(scenario, speed),
            "nearest": nearest,
            "notes": tuple(notes_of(planned, shape, model.longest_published)),
        }
        if self.limits and memory.device_bytes is not None:
            figures["largest_micro_batch_size"] = self._largest_batch(planned)
            figures["longest_sequence_length"] = self._longest(planned)
        answer = answer_of(name, shape, self.target.name, memory, nearest)
        return {**figures, "answer": answer}

    def _footprint(self, planned: Planned, shape: BatchShape) -> Footprint:
        return self.simulator.footprint(planned.experiment, shape, self.target.kind)

    def _memory(self, planned: Planned, shape: BatchShape) -> MemoryEstimate:
        """Return what one device holds; on a CPU, which ranks share, what all of them do."""
        scenario = planned.experiment.scenario
        footprint = self._footprint(planned, shape)
        copies = device_copies(scenario, planned.active.answers("parallelize_model"))
        ranks = scenario.resources.devices if self.target.kind == "cpu" else 1
        parts = on_one_device(footprint, copies, ranks)
        return memory_estimate(footprint, parts, self.target.kind, self.target.memory_bytes)

    def _largest_batch(self, planned: Planned) -> Limit:
        shape = shape_of(planned.experiment.scenario)
        return self._largest(planned, "micro_batch_size", shape, limit=LONGEST_BATCH)

    def _longest(self, planned: Planned) -> Limit:
        shape = shape_of(planned.experiment.scenario)
        learned = self.simulator.model(planned.experiment).longest_learned
        limit = learned or LONGEST_LENGTH
        found = self._largest(planned, "sequence_length", shape, min(LENGTH_STEP, limit), limit)
        at_end = learned is not None and found.bounded_by == "search"
        return found.model_copy(update={"bounded_by": "model"}) if at_end else found

    def _largest(
        self, planned: Planned, key: str, shape: BatchShape, step: int = 1, limit: int = 1
    ) -> Limit:
        def need(value: int) -> float:
            return self._memory(planned, shape.model_copy(update={key: value})).needed_bytes.high

        capacity = float(self.target.memory_bytes or 0)
        return largest_that_fits(need, capacity, getattr(shape, key), step, limit)

    def _speed(self, planned: Planned, footprint: Footprint) -> SpeedEstimate | None:
        """Return the speed of all devices, calibrated where such a device has been measured."""
        scenario = planned.experiment.scenario
        peaks = self.target.peaks(scenario)
        seconds = roofline(footprint, peaks) if peaks else None
        if peaks is None or seconds is None:
            return None
        found = list(self._slowdowns(scenario))
        return speed_estimate(
            seconds,
            _tokens_of_a_step(scenario) * scenario.data_parallel,
            peaks.source,
            [slowdown for _, slowdown in found],
            [name for name, _ in found],
        )

    def _slowdowns(self, scenario: Scenario) -> Iterator[tuple[str, float]]:
        """Yield stored experiments on such a device, with measured seconds over the roofline's."""
        alike: dict[str, Result] = {}
        for result in reversed(self.stored):
            if self._is_alike(result, scenario) and len(alike) < MOST_CALIBRATIONS:
                alike.setdefault(result.experiment.id, result)
        for name, result in alike.items():
            with suppress(AccelBenchError):
                yield name, self._slowdown(result)

    def _slowdown(self, result: Result) -> float:
        scenario, measured = result.experiment.scenario, run_throughput(result)
        peaks = self.target.peaks(scenario)
        footprint = self.simulator.footprint(
            result.experiment, shape_of(scenario), self.target.kind
        )
        seconds = roofline(footprint, peaks) if peaks else None
        if seconds is None or measured is None:
            raise AccelBenchError("there is nothing to compare")
        tokens = _tokens_of_a_step(scenario)
        return tokens / measured.tokens_per_second_per_device / seconds.low

    def _is_alike(self, result: Result, scenario: Scenario) -> bool:
        """Return whether a completed run used such a device, in the same dtype, on one device."""
        other = result.experiment.scenario
        if not result.status.completed or not result.ranks or other.world_size > 1:
            return False
        device = result.ranks[0].device
        if device is None or (other.compute_dtype, device.type) != (
            scenario.compute_dtype,
            self.target.kind,
        ):
            return False
        if device.type == "cpu":
            return result.machine is not None and result.machine.host == self.target.machine.host
        hardware = find_hardware(device.name)
        return hardware is not None and hardware == self.target.hardware

    def _hours(self, speed: SpeedEstimate | None) -> Span | None:
        if speed is None or self.for_tokens is None:
            return None
        return speed.tokens_per_second.inverted(self.for_tokens / 3600)

    def _cost(self, scenario: Scenario, speed: SpeedEstimate | None) -> CostEstimate | None:
        """Return the cost on the cheapest machine of the table that has such devices."""
        rates = list(self._rates(scenario)) if speed and self.target.hardware else []
        if speed is None or not rates:
            return None
        machines, rate = min(rates, key=lambda found: found[0] * found[1].usd_per_hour)
        a_million = Span(
            low=usd_per_million_tokens(rate.usd_per_hour, machines, speed.tokens_per_second.high),
            high=usd_per_million_tokens(rate.usd_per_hour, machines, speed.tokens_per_second.low),
        )
        stale = f", {rate.age_days} days old" if rate.stale else ""
        many = f"{machines} x " if machines > 1 else ""
        return CostEstimate(
            usd_per_hour=rate.usd_per_hour * machines,
            price=f"{many}{rate.provider} {rate.instance}, on demand, {rate.date}{stale}",
            usd_per_million_tokens=a_million,
            usd=a_million.times(usd_for_tokens(1.0, self.for_tokens)) if self.for_tokens else None,
        )

    def _rates(self, scenario: Scenario) -> Iterator[tuple[int, HourlyRate]]:
        """Yield machines needed and their price, for each price of such a device."""
        assert self.target.hardware is not None
        for entry in self.prices:
            price = entry.price
            if _is_price_of(price, self.target.hardware) and (
                rate := table_tariff(price, date.today())
            ):
                nodes = scenario.resources.nodes
                yield instances_needed(scenario.world_size, nodes, price.devices), rate

    def _nearest(self, planned: Planned) -> Alternative | None:
        """Return the first change that fits, in the order in which to try them."""
        for changed in changes_of(planned.experiment.scenario):
            with suppress(AccelBenchError):
                if found := self._fitting(planned, changed):
                    return found
        need = self._memory(planned, shape_of(planned.experiment.scenario)).needed_bytes
        larger = [
            (row.memory_bytes, name)
            for name, row in list_hardware().items()
            if fit_of(need, row.memory_bytes) == "fits"
        ]
        if self.target.kind == "cpu" or not larger:
            return None
        return Alternative(settings={}, gpu=min(larger)[1], needed_bytes=need)

    def _fitting(self, planned: Planned, changed: dict[str, Any]) -> Alternative | None:
        """Return a change with the largest micro-batch with which it fits; None for none."""
        other = self.replan(planned, changed) if changed else planned
        if other.skipped:
            return None
        scenario = other.experiment.scenario
        shape = shape_of(scenario)
        memory = self._memory(other, shape)
        if memory.fit != "fits":
            largest = self._largest(
                other, "micro_batch_size", shape, limit=max(1, shape.micro_batch_size - 1)
            )
            if not largest.value:
                return None
            changed = {**changed, **with_batch(scenario.train, largest.value)}
            shape = shape.model_copy(update={"micro_batch_size": largest.value})
            memory = self._memory(other, shape)
        return Alternative(settings=changed, gpu=self.target.name, needed_bytes=memory.needed_bytes)


def _tokens_of_a_step(scenario: Scenario) -> int:
    train = scenario.train
    samples = train.micro_batch_size * train.gradient_accumulation
    return samples * scenario.data.sequence_length


def _is_price_of(price: Price, hardware: NamedHardware) -> bool:
    return price.device == hardware.name or hardware.hardware.is_called(price.device)
