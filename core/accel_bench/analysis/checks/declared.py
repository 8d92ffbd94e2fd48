"""What do two stacks declare as their difference? Tolerances of plugins, and other training."""

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
"""Settings with which something else is trained: no plugin's tolerance makes that equivalent.

So do all options of the adapter and of the data, except those of `SAME_TRAINING`.
"""

OF_EARLIER_ROWS = "a plugin"
"""Name of whoever declares what a row of an earlier version allows; it is of one side."""

SAME_TRAINING = frozenset({"adapter.autocast_adapter_dtype", "data.padding"})
"""Options that change how the same weights are stored and the same samples are laid out."""


def in_letters(runs: Iterable[Result]) -> bool:
    """Return whether answers of any of the runs are kept as letters, without token ids."""
    answers = (rank.answers for run in runs for rank in run.ranks)
    return any(one is not None and one.unit == "letters" for one in answers)


def declared_tolerances(of: str, baseline: Result, stack: Result) -> dict[str, float]:
    """Return the tolerances of the plugins in which two runs differ, by the plugin's name.

    A plugin that both use alike changes nothing between them, and excuses nothing.
    """
    declared = _of_one_side(of, baseline, stack)
    for name, tolerance in _of_one_side(of, stack, baseline).items():
        declared[name] = max(tolerance, declared.get(name, 0.0))
    return declared


def _of_one_side(of: str, run: Result, other: Result) -> dict[str, float]:
    """Return the tolerances of a run's plugins that the other one does not use alike."""
    alone = plugins_of_one_side(run, other) | {OF_EARLIER_ROWS}
    return {name: value for name, value in _tolerances(of, run).items() if name in alone}


def _tolerances(of: str, run: Result) -> Mapping[str, float]:
    """Return what each plugin of a run allows by design: nothing for answers in letters."""
    if of == "loss":
        earlier = {} if run.loss_tolerance is None else {OF_EARLIER_ROWS: run.loss_tolerance}
        return run.loss_tolerances or earlier
    if of == "output":
        return {} if in_letters([run]) else run.output_tolerances
    return run.update_tolerances


def plugins_of_one_side(run: Result, other: Result) -> set[str]:
    """Return the names of a run's plugins that the other one does not use alike."""
    return {name for name, _ in _uses(run) - _uses(other)}


def other_optimizers(baseline: Result, stack: Result) -> list[str]:
    """Return the plugins of one side alone that declare another optimizer."""
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
    """Return the first setting with which something else is trained; empty without one."""
    old, new = (_training(run.experiment.scenario) for run in (baseline, stack))
    for key in (*old, *new):
        if old.get(key) != new.get(key):
            now, then = (plain_value(one[key]) if key in one else "unset" for one in (new, old))
            return f"{key} is {now} in the place of {then}"
    return ""


def _training(scenario: Scenario) -> dict[str, Any]:
    """Return what decides what is trained, by dotted key."""
    options = {
        f"{slot}.{name}": value
        for slot in ("adapter", "data")
        for name, value in getattr(scenario, slot).options.items()
        if f"{slot}.{name}" not in SAME_TRAINING
    }
    return {key: attrgetter(key)(scenario) for key in OTHER_TRAINING} | options
