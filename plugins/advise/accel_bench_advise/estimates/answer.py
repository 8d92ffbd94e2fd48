"""What an estimate says in words, and which changes it tries where nothing fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accel_bench.analysis.wording import count, settings, size
from accel_bench.planning.plan import Planned
from accel_bench.plugins.active import task_of
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.uses import NO_PLUGIN, TOKENS, slot_defaults
from accel_bench_advise.estimates.schema import Alternative, BatchShape, MemoryEstimate, Span


def shape_of(scenario: Scenario) -> BatchShape:
    """Return the micro-batch of a scenario."""
    return BatchShape(
        micro_batch_size=scenario.train.micro_batch_size,
        sequence_length=scenario.data.sequence_length,
    )


def changes_of(scenario: Scenario) -> Iterator[dict[str, Any]]:
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


def notes_of(planned: Planned, shape: BatchShape, published: int | None) -> Iterator[str]:
    """Yield what the simulation leaves out of this experiment, a sentence each."""
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
    if published is not None and shape.sequence_length > published:
        yield f"the model was made for sequences of up to {published:,} tokens"


def counts_of(planned: Planned) -> str:
    """Return what the experiment's task counts."""
    task = task_of(planned.active)
    return TOKENS if task is None else task.counts


def named_batch(name: str, planned: Planned) -> str:
    """Return a stack's name with the micro-batch that it is estimated for."""
    shape = shape_of(planned.experiment.scenario)
    if counts_of(planned) != TOKENS:
        return f"{name} with {count(shape.micro_batch_size, 'sample')}"
    return f"{name} with {shape.micro_batch_size} x {shape.sequence_length:,} tokens"


def answer_of(what: str, device: str, memory: MemoryEstimate, nearest: Alternative | None) -> str:
    """Return whether `what` fits, in a sentence."""
    if memory.fit is None or memory.device_bytes is None:
        return f"{what} needs {_sizes(memory.needed_bytes)}; the device's memory is not known"
    verb = {"fits": "fits", "may fit": "may just fit", "does not fit": "does not fit"}[memory.fit]
    needs = f"it needs {_sizes(memory.needed_bytes)} of {size(memory.device_bytes)}"
    answer = f"{what} {verb} on {device}: {needs}."
    if memory.fit != "does not fit":
        return answer
    if nearest is None:
        return f"{answer} Nothing near it fits either: choose a smaller model.id."
    found = f"{_sizes(nearest.needed_bytes)}"
    if not nearest.settings:
        return f"{answer} The smallest device of the table that holds it is {nearest.gpu}."
    return f"{answer} The nearest that does: {settings(nearest.settings)} ({found})."


def _sizes(span: Span) -> str:
    low, high = size(span.low), size(span.high)
    return low if low == high else f"{low} to {high}"
