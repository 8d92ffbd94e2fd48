"""Parts of a stack that `accelerate` cannot apply, so that the script must apply them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from accel_bench.errors import PluginError
from accel_bench.plugins.active import ActivePlugins
from accel_bench.scenario.models import Scenario

DONE = ("adapter", "model", "train.gradient_checkpointing", "train.matmul_precision")
"""Scenario keys that `accelerate` applies itself, with all keys below them."""

OF_A_RUN = ("evaluate", "launcher", "measure", "metrics", "task", "train.seed")
"""Scenario keys that mean nothing for a script: they concern the start and measurement of runs."""

TAKEN = {
    "build_optimizer": ("optimizer", "`.optimizer()` returns it"),
    "build_batches": (
        "batches",
        "`.batches(samples)` yields them, and `.collate` makes one micro-batch for a data loader, "
        "without what the plugin does across the micro-batches of a step",
    ),
    "build_evaluation_batches": ("evaluation batches", "a run alone has them"),
    "build_loss": ("loss", "`.loss(model, inputs, supervised_in_step)` computes it"),
}
"""Name of the part and an instruction for the script, by the hook that builds the part in a run."""

KNOWN = {
    "train.precision": "compute each forward pass within `.autocast()`",
    "train.micro_batch_size": "give the data loader this size",
    "train.gradient_accumulation": "add up the gradients of so many micro-batches",
    "train.max_grad_norm": "clip the gradients before each optimizer step",
    "train.learning_rate": "`.optimizer()` begins with it",
    "optimizer": "`.optimizer()` returns it",
    "data.sequence_length": "cut or pad the samples to it",
    "data.packing": "join the samples, and cut them into rows of data.sequence_length",
    "environment": "set it before torch is imported",
    "resources.threads": "call torch.set_num_threads",
}
"""Instructions for applying a setting in a script, by scenario key."""


@dataclass(frozen=True)
class Outside:
    """Part of a stack that the script must apply itself, or take from the accelerated model."""

    name: str
    """Name of the part: `optimizer`, `batches`, or a dotted key of the scenario."""

    by: str
    """Plugin that applies the part in a run, or `the stack` or `the scenario` for a setting."""

    way: str
    """Instruction how the script applies the part."""

    value: Any = None
    """Value of the scenario key; None also if the part belongs to a plugin."""

    def __str__(self) -> str:
        said = "null" if self.value is None else self.value
        value = f" = {said}" if "." in self.name else ""
        return f"{self.name}{value} ({self.by}): {self.way}"


def parts_outside(
    active: ActivePlugins,
    scenario: Scenario,
    settings: Collection[str],
    written: Collection[str],
    given: bool,
) -> Iterator[Outside]:
    """Yield the parts of a stack that a script must apply itself, with instructions.

    `settings` are the dotted keys that the stack sets, `written` those of the scenario. `given` is
    True if the script gives a module. Raises PluginError if a plugin of the stack drives the steps
    itself, or if a module is given and a plugin of the stack loads the model.
    """
    engine, loader = active.answers("build_engine"), active.answers("load_model")
    if engine is not None and engine.slot is None:
        raise PluginError(
            f"{engine.name} drives the optimizer steps itself, and here the script does: train "
            "with that library's own program"
        )
    if given and loader is not None and loader.slot is None:
        raise PluginError(
            f"{loader.name} loads the model itself, since it changes the weights on the way: give "
            "the model's local directory or hub id in place of the module"
        )
    for hook, (name, way) in TAKEN.items():
        plugin = active.answers(hook)
        if plugin is not None and plugin.slot is None:
            yield Outside(name, plugin.name, way)
    yield from _settings(scenario, settings, written)
    yield from _ranks(active, scenario)


def _settings(
    scenario: Scenario, by_stack: Collection[str], written: Collection[str]
) -> Iterator[Outside]:
    """Yield the settings that a script must apply itself: all settings of the stack, by the dotted
    keys `by_stack`, and the settings `written` in the scenario that have an effect."""
    for key in dict.fromkeys([*by_stack, *written]):
        value, by = _value(scenario, key), "the scenario"
        if key in by_stack:
            by = "the stack"
        elif value is None or (key == "train.precision" and value == "as-is"):
            continue
        if not _is_done(key, value, scenario):
            yield Outside(key, by, _way(key, value), value)


def _is_done(key: str, value: Any, scenario: Scenario) -> bool:
    """Return whether the script need not apply a scenario key: `accelerate` or a plugin applies it,
    it concerns only runs, or it is an environment variable that has the value already."""
    section, _, name = key.partition(".")
    if section == "environment":
        return os.environ.get(name) == value
    by_plugin = key == "train.precision" and scenario.train.keeps_master_weights
    return by_plugin or _is_below(key, (*DONE, *OF_A_RUN))


def _ranks(active: ActivePlugins, scenario: Scenario) -> Iterator[Outside]:
    """Yield an instruction to average the gradients over the ranks. Nothing is yielded for a single
    rank, or if a plugin averages the gradients."""
    if scenario.world_size > 1 and active.answers("parallelize_model") is None:
        way = "wrap the model in DistributedDataParallel, as trainers do by themselves"
        yield Outside("parallel", "the scenario", way)


def _way(key: str, value: Any) -> str:
    if value is None:
        return "leave it out"
    ways = (way for known, way in KNOWN.items() if _is_below(key, (known,)))
    return next(ways, "set it in the script")


def _is_below(key: str, keys: Collection[str]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in keys)


def _value(scenario: Scenario, key: str) -> Any:
    """Return the value of a dotted scenario key, or None if the scenario has no such key."""
    value: Any = scenario.model_dump(mode="json")
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
