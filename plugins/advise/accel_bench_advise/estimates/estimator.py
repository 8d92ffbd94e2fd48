"""Estimate memory, speed and cost of a scenario's experiments on a device."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

from accel_bench.analysis.wording import count, label_of, settings, size
from accel_bench.catalog.hardware import NamedHardware
from accel_bench.documents.base import JsonValue
from accel_bench.errors import AccelBenchError
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, Planned, PlanRequest, make_plan
from accel_bench.result import Result
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.uses import TOKENS, slot_defaults
from accel_bench_advise.estimates.memory import MemoryEstimator, NearestSearch
from accel_bench_advise.estimates.schema import (
    FITS,
    Alternative,
    BatchShape,
    Estimate,
    LengthSummary,
    MemoryEstimate,
)
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.speed import SpeedEstimator
from accel_bench_advise.estimates.target import Target, estimate_cost, machine_with, target_of
from accel_bench_advise.price_table import PriceEntry

PLANNING = Lock()
"""Lock of planning: several devices or models may be estimated concurrently."""

MOST_DEVICES = 1024
"""Number of devices of the assumed machine, large enough for every scenario."""

NO_STEP = (
    "a step of training is estimated, and mode inference has none: estimate a scenario of the same "
    "model that trains"
)
"""Reason why scenarios of inference have no estimate."""


class DeviceEstimate(NamedTuple):
    """Estimate of a scenario's baseline on a device, and the estimator that made it."""

    estimate: Estimate
    estimator: Estimator
    settings: dict[str, JsonValue]
    """Changed settings with which the baseline fits; empty if it fits unchanged."""


@dataclass(frozen=True)
class Estimator:
    """Estimator of a scenario's experiments on one device; its copies share one `simulator`."""

    simulator: Simulator
    draft: Draft
    request: PlanRequest
    machine: Machine
    stored: Sequence[Result]
    prices: Sequence[PriceEntry]

    training: float | LengthSummary | None
    """Amount to train on: tokens with padding, or a summary of sample lengths."""

    chosen: NamedHardware | None = None
    """Device in the table of devices; None for this machine's device."""

    limits: bool = False
    """True to search the largest batch and the longest context too, by more simulations."""

    @property
    def target(self) -> Target:
        """Device that the estimate is for: its memory, peaks and machine."""
        return target_of(self.machine, self.chosen)

    def plan(self, changed: Mapping[str, Any] = {}) -> Plan:
        """Return the plan of the scenario on a machine with the device.

        `changed` are settings by dotted key that override the scenario's.
        """
        request = replace(
            self.request,
            overrides=(*self.request.overrides, *changed.items()),
            force=True,
            oversubscribe=True,
            build_environments=False,
        )
        there = self.machine
        if self.chosen is not None:
            there = machine_with(there, self.chosen, MOST_DEVICES)
        # What a plugin prints is no part of the document; standard output is that of all threads.
        with PLANNING, redirect_stdout(sys.stderr):
            return make_plan(self.draft, there, request)

    def baseline(self) -> DeviceEstimate:
        """Return the estimate of the baseline, or of the first stack if there is no baseline.

        If it does not fit but would with a few changed settings, those are set and it is estimated
        again. Raises AccelBenchError for a scenario that cannot be planned for the device.
        """
        estimate, changed = self.estimate(_baseline(self.plan())), {}
        if estimate.nearest and (changed := estimate.nearest.settings):
            estimate = self.estimate(_baseline(self.plan(changed)))
        return DeviceEstimate(estimate, self, changed)

    def estimate(self, planned: Planned) -> Estimate:
        """Return the estimate of an experiment, with a `problem` if it cannot be simulated."""
        experiment = planned.experiment
        scenario = experiment.scenario
        blank = Estimate(
            scenario=scenario.name,
            experiment_id=experiment.id,
            stack=experiment.stack.name,
            sweep=experiment.sweep,
            tag=experiment.tag,
            gpu=self.target.name,
            devices=scenario.world_size,
            shape=BatchShape.of(scenario),
            counts=scenario.counts,
        )
        figures: dict[str, Any]
        if planned.skipped or scenario.generates:
            figures = {"problem": "; ".join(planned.skipped) or NO_STEP}
        else:
            if sys.stderr.isatty():  # it takes seconds
                what = f"{label_of(experiment)} of {scenario.model.id}"
                print(f"simulating {what}", file=sys.stderr)
            try:
                figures = self._figures(planned)
            except AccelBenchError as error:
                figures = {"problem": str(error)}
        return blank.model_copy(update=figures)

    def _figures(self, planned: Planned) -> dict[str, Any]:
        """Return the fields of `Estimate`, by name, that simulating an experiment gives."""
        experiment, target = planned.experiment, self.target
        memories = MemoryEstimator(self.simulator, target)
        memory = memories.memory(planned)
        model = self.simulator.model(experiment)
        lacks = memory.fit == "does not hold"
        nearest = NearestSearch(memories, self._replan).nearest(planned) if lacks else None
        speeds = SpeedEstimator(self.simulator, target, self.stored)
        speed = speeds.speed(experiment, memories.footprint(planned))
        tokens = self._tokens(planned)
        figures = {
            "parameters": model.parameters,
            "trained_parameters": model.trained_parameters,
            "memory": memory,
            "nearest": nearest,
            "notes": tuple(notes_of(planned, model.longest_published)),
            "for_tokens": tokens,
            "speed": speed,
            "hours": speed.tokens_per_second.inverted(tokens / 3600) if speed and tokens else None,
            "cost": estimate_cost(experiment.scenario, speed, target.hardware, self.prices, tokens),
        }
        if self.limits and memory.device_bytes is not None:
            figures["largest_micro_batch_size"] = memories.largest_batch(planned)
            figures["longest_sequence_length"] = memories.longest(planned)
        what = named_batch(label_of(experiment), planned)
        return {**figures, "answer": answer_of(what, target.name, memory, nearest)}

    def _replan(self, planned: Planned, changed: dict[str, Any]) -> Planned:
        """Return the experiment of the same stack and sweep point after planning with `changed`.

        `changed` are settings by dotted key. Raises AccelBenchError without such an experiment.
        """
        experiment = planned.experiment
        kept = {key: value for key, value in experiment.sweep.items() if key not in changed}
        for other in self.plan(changed).planned:
            same = other.experiment.stack.name == experiment.stack.name
            if same and other.experiment.sweep == kept:
                return other
        raise AccelBenchError("no such experiment with these settings")

    def _tokens(self, planned: Planned) -> float | None:
        """Return the tokens of the training, padding included; None if the job's size is unknown.

        Samples that are not packed are padded to the sequence length.
        """
        if not isinstance(self.training, LengthSummary):
            return self.training
        data = planned.active.answers("load_data")
        if data is not None and getattr(data.instance.options, "packing", False):
            return float(self.training.tokens)
        return float(self.training.samples * planned.experiment.scenario.data.sequence_length)


def _baseline(plan: Plan) -> Planned:
    own = [planned for planned in plan.planned if planned.experiment.stack.name == plan.baseline]
    return (own or plan.planned)[0]


def notes_of(planned: Planned, published: int | None) -> Iterator[str]:
    """Yield the limitations of the simulation of this experiment, one sentence each.

    `published` is the longest sequence in tokens that the model was made for; None if unknown.
    """
    scenario = planned.experiment.scenario
    if compiler := planned.active.answers("compile_model"):
        yield f"estimated as if not compiled: {compiler.name} changes memory and speed"
    if scenario.world_size > 1:
        yield (
            "of several devices one is simulated: what they send to each other takes time and "
            "buffers that are not counted"
        )
    if scenario.data_parallel < scenario.world_size:
        yield (
            f"no speed and no money: devices that compute one batch together "
            f"({scenario.world_size} in {scenario.data_parallel} groups) are each simulated with "
            "the whole step; their activations are counted whole too"
        )
    if scenario.engine.use != slot_defaults().slots["engine"]:
        yield f"steps are simulated as the default engine's, not as {scenario.engine.use}'s"
    if published is not None and scenario.data.sequence_length > published:
        yield f"the model was made for sequences of up to {published:,} tokens"


def named_batch(name: str, planned: Planned) -> str:
    """Return text such as `lora with 8 x 1,024 tokens`: a stack's name with its micro-batch."""
    scenario = planned.experiment.scenario
    samples, length = scenario.train.micro_batch_size, scenario.data.sequence_length
    if scenario.counts != TOKENS:
        return f"{name} with {count(samples, 'sample')}"
    return f"{name} with {samples} x {length:,} tokens"


def answer_of(what: str, device: str, memory: MemoryEstimate, nearest: Alternative | None) -> str:
    """Return a sentence: whether an experiment fits a device, or with which least change it would.

    `what` names the stack with its batch, and `device` the device.
    """
    needed = memory.needed_bytes.text(size)
    if memory.fit is None or memory.device_bytes is None:
        return f"{what} needs {needed}; the device's memory is not known"
    verb = FITS[memory.fit].replace("may fit", "may just fit")
    sentence = f"{what} {verb} on {device}: it needs {needed} of {size(memory.device_bytes)}."
    if memory.fit != "does not hold":
        return sentence
    if nearest is None:
        return f"{sentence} Nothing near it fits either: choose a smaller model.id."
    if not nearest.settings:
        return f"{sentence} The smallest device of the table that holds it is {nearest.gpu}."
    amount = nearest.needed_bytes.text(size)
    return f"{sentence} The nearest that does: {settings(nearest.settings)} ({amount})."
