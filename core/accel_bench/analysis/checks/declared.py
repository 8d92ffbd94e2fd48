"""Declared differences of two stacks: tolerances of plugins, and settings of the training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from accel_bench.analysis.wording import plain_value
from accel_bench.documents.canonical import canonical_json
from accel_bench.result import Result
from accel_bench.scenario.models import Scenario, Work

OTHER_TRAINING = (
    "adapter.use",
    "data.seed",
    "data.use",
    "model.id",
    "model.overrides",
    "model.revision",
    "model.weights",
    "train.learning_rate",
    "train.max_grad_norm",
    "train.seed",
)
"""Settings whose difference changes the training, whatever tolerance a plugin declares.

All options of the adapter and of the data belong to them, except `SAME_TRAINING`.
"""

OF_EARLIER_ROWS = "a plugin"
"""Placeholder for the unnamed plugin behind a tolerance in results of earlier versions."""

SAME_TRAINING = frozenset({"adapter.autocast_adapter_dtype", "data.padding"})
"""Options of adapter and data that change layout and storage, but not the training."""


def in_letters(runs: Iterable[Result]) -> bool:
    """Return whether any run stored its answers as letters, without token ids."""
    outputs = (rank.answers for run in runs for rank in run.ranks)
    return any(output is not None and output.unit == "letters" for output in outputs)


def declared_tolerances(of: str, baseline: Result, stack: Result) -> dict[str, float]:
    """Return the tolerances of the figure `of` (`loss`, `update` or `output`) by name of the
    plugin. Plugins that both runs use with the same options are left out."""
    declared = _of_one_side(of, baseline, stack)
    for name, tolerance in _of_one_side(of, stack, baseline).items():
        declared[name] = max(tolerance, declared.get(name, 0.0))
    return declared


def _of_one_side(of: str, run: Result, other: Result) -> dict[str, float]:
    """Return the tolerances of the figure `of` by plugin, for plugins of `run` that `other` lacks
    or uses with other options."""
    alone = plugins_of_one_side(run, other) | {OF_EARLIER_ROWS}
    return {name: value for name, value in _tolerances(of, run).items() if name in alone}


def _tolerances(of: str, run: Result) -> Mapping[str, float]:
    """Return a run's tolerances of a figure by plugin; none for `output` stored as letters."""
    if of == "loss":
        earlier = {} if run.loss_tolerance is None else {OF_EARLIER_ROWS: run.loss_tolerance}
        return run.loss_tolerances or earlier
    if of == "output":
        return {} if in_letters([run]) else run.output_tolerances
    return run.update_tolerances


def plugins_of_one_side(run: Result, other: Result) -> set[str]:
    """Return the names of `run`'s plugins that `other` lacks or uses with other options."""
    return {name for name, _ in _uses(run) - _uses(other)}


def other_optimizers(baseline: Result, stack: Result) -> list[str]:
    """Return the plugins that only one run uses and that declare a different optimizer."""
    pairs = ((baseline, stack), (stack, baseline))
    return [
        name
        for run, other in pairs
        for name in run.other_optimizers
        if name in plugins_of_one_side(run, other)
    ]


def _uses(run: Result) -> set[tuple[str, str]]:
    scenario = run.experiment.scenario
    slots = (getattr(scenario, slot) for slot in Work.SLOTS)
    uses = (*run.experiment.stack.uses, *slots, *scenario.metrics)
    return {(use.use, canonical_json(use.options)) for use in uses}


def other_training(baseline: Result, stack: Result) -> str:
    """Return the first difference in a setting of the training, such as `train.seed is 1 in the
    place of 0`; an empty text without a difference."""
    old, new = (_training(run.experiment.scenario) for run in (baseline, stack))
    for key in (*old, *new):
        if old.get(key) != new.get(key):
            now, then = (plain_value(side[key]) if key in side else "unset" for side in (new, old))
            return f"{key} is {now} in the place of {then}"
    return ""


def _training(scenario: Scenario) -> dict[str, Any]:
    """Return the settings that decide what is trained, by dotted key."""
    options = {
        f"{slot}.{name}": value
        for slot in ("adapter", "data")
        for name, value in getattr(scenario, slot).options.items()
        if f"{slot}.{name}" not in SAME_TRAINING
    }
    return {key: attrgetter(key)(scenario) for key in OTHER_TRAINING} | options
