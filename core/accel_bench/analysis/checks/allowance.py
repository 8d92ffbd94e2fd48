"""How far may two trainings be apart? What plugins declare, and what no declaration excuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from accel_bench.analysis.wording import join_names, percent, plain_value
from accel_bench.documents.canonical import canonical_json
from accel_bench.effective import DROPOUT
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


class Limits(NamedTuple):
    """What is allowed for one kind of distance between two runs."""

    declared: Callable[[Result], Mapping[str, float]]
    """Returns what each plugin of a run allows by design."""

    usual: Callable[[Result, Result], float]
    """Returns what is allowed between a baseline and a stack where no plugin declares anything."""

    maximum: float
    """Largest declared tolerance, and largest distance, that a declaration excuses."""

    trusts_distance: bool
    """True if a distance below the maximum is excused although more is declared."""


class Allowance(NamedTuple):
    """How far two runs may be apart."""

    tolerance: float
    """Relative distance that is allowed."""

    usual: float
    """What is allowed where no plugin declares anything."""

    limits: Limits

    plugins: tuple[str, ...] = ()
    """Plugins that declare the tolerance; empty for the usual one."""

    other_training: str = ""
    """What else is trained, so that the runs are not equivalent however near."""

    @property
    def by_design(self) -> str:
        """Why no declaration excuses a distance beyond the usual one; empty where one does."""
        if self.other_training or self.tolerance <= self.limits.maximum:
            return self.other_training
        return f"{percent(self.limits.maximum)} is the most that counts as the same training"

    @property
    def words(self) -> str:
        """The tolerance and who declares it: `2 % allowed by bitsandbytes`."""
        return allowed_words(self.tolerance, self.plugins)

    def verdict(
        self, difference: float
    ) -> Literal["equivalent", "different", "different by design"]:
        """Return the word for a distance; a usual one needs no excuse, whatever is declared."""
        if difference > self.tolerance:
            return "different"
        by_design = self.other_training or difference > self.usual
        return "different by design" if by_design else "equivalent"

    def excuses(self, difference: float) -> bool:
        """Return whether a declaration makes up for a distance beyond the usual one."""
        if self.other_training or not self.usual < difference <= self.tolerance:
            return False
        trusted = self.limits.trusts_distance and difference <= self.limits.maximum
        return trusted or not self.by_design


def allowed_words(tolerance: float, plugins: Sequence[str]) -> str:
    """Return `2 % allowed by bitsandbytes`; without a plugin where none declares it."""
    by = f" by {join_names(plugins)}" if plugins else ""
    return f"{percent(tolerance)} allowed{by}"


def allowance(baseline: Result, stack: Result, limits: Limits) -> Allowance:
    """Return the largest tolerance of the plugins in which two runs differ, else the usual one.

    A plugin that both use alike changes nothing between them, and excuses nothing.
    """
    before, after = baseline.experiment.scenario, stack.experiment.scenario
    usual = limits.usual(baseline, stack)
    declared = _of_one_side(baseline, stack, limits)
    for name, tolerance in _of_one_side(stack, baseline, limits).items():
        declared[name] = max(tolerance, declared.get(name, 0.0))
    largest = max(declared.values(), default=usual)
    names = tuple(name for name, value in declared.items() if value == largest)
    other = _other_training(before, after)
    return Allowance(largest, usual, limits, names, other)


def _of_one_side(run: Result, other: Result, limits: Limits) -> dict[str, float]:
    """Return the tolerances of a run's plugins that the other one does not use alike."""
    alone = plugins_of_one_side(run, other) | {OF_EARLIER_ROWS}
    return {name: value for name, value in limits.declared(run).items() if name in alone}


def plugins_of_one_side(run: Result, other: Result) -> set[str]:
    """Return the names of a run's plugins that the other one does not use alike."""
    return {name for name, _ in _uses(run) - _uses(other)}


def _uses(run: Result) -> set[tuple[str, str]]:
    scenario = run.experiment.scenario
    slots = (getattr(scenario, slot) for slot in Work.SLOTS)
    uses = (*run.experiment.stack.uses, *slots, *scenario.metrics)
    return {(use.use, canonical_json(use.options)) for use in uses}


def excuse_of_draws(before: Result, after: Result) -> str:
    """Return the reason why random draws may explain a difference; empty if either run draws
    nothing.

    All draw from one seed, but other kernels, batches and paddings draw in another order, which no
    reading outside of the steps shows. Cheats lie among what that does to the distance of updates
    (docs/verdicts.md), so that the size of an update and a loss that is far off alone show them.
    """
    drawn = [run.ranks[0].effective.drawn for run in (before, after) if run.ranks]
    if len(drawn) < 2 or not all(drawn):
        return ""
    adapter = after.experiment.scenario.adapter.options
    where = "--set adapter.dropout=0" if adapter.get("dropout") else "model.overrides"
    without = f"; without it ({where}) it can be told" if drawn[-1] == DROPOUT else ""
    return f"{drawn[-1]} drawn in another order does that{without}"


def _other_training(before: Scenario, after: Scenario) -> str:
    """Return the first setting with which something else is trained; empty without one."""
    old, new = _training(before), _training(after)
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
