"""Sweep points of a scenario file, their exclusions, and their sizes that are `auto` in the
file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.scenario.models import Exclusion, Scenario, ScenarioFile, Stack
from accel_bench.scenario.overrides import look_up
from accel_bench.scenario.uses import Use

AUTO = "auto"
"""Value of a size that the program works out."""

LENGTH, MICRO_BATCH = "data.sequence_length", "train.micro_batch_size"
"""Dotted keys that may be `auto`."""

STAND_INS: Mapping[str, int] = {LENGTH: 512, MICRO_BATCH: 1}
"""Sizes that a plan assumes until the `auto` sizes are worked out."""

EXCLUDED = "excluded: "
"""Prefix of the reason for skipping a point that the scenario itself excludes."""


def is_excluded(reasons: Sequence[str]) -> bool:
    """Return whether a point is skipped because of the scenario's own exclusions only."""
    return bool(reasons) and all(reason.startswith(EXCLUDED) for reason in reasons)


class Choice(Frozen):
    """A size that the program worked out, with the reason."""

    key: str
    """Dotted key of the scenario."""

    value: int

    because: str
    """Explanation of the size, in a sentence."""


Choices: TypeAlias = Mapping[str, Mapping[str, Choice]]
"""Worked-out sizes by sweep point, as `Experiment.point` names it, and by dotted key."""


class Point(Frozen):
    """One stack at one point of the sweep, before plugins are activated."""

    scenario: Scenario
    stack: Stack

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    tag: str = ""
    """Name of the point, made from its values; empty if nothing is swept."""

    provisional: bool = False
    """True if `resources.data_parallel` is provisional: the batch is too small for one group per
    device, and the parallel plugin gives the final number."""

    sizes: dict[str, Choice | None] = Field(default_factory=dict)
    """Sizes of the point's `auto` keys; null for a size that is not worked out."""

    excluded: tuple[str, ...] = ()
    """Reasons of the exclusions that apply."""

    @property
    def uses(self) -> tuple[Use, ...]:
        """Return all plugin uses of the stack, the slots and the metrics."""
        slots = (getattr(self.scenario, slot) for slot in Scenario.SLOTS)
        return (*self.stack.uses, *slots, *self.scenario.metrics)

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """Return the keys that are `auto` in the file, and not worked out."""
        return tuple(key for key, size in self.sizes.items() if size is None)

    def facts(self) -> dict[str, Any]:
        """Return the values that an exclusion can name: every key of the scenario, and `stack`."""
        return {**self.scenario.model_dump(mode="json"), "stack": self.stack.name}


def sweep_points(file: ScenarioFile) -> Iterator[dict[str, Any]]:
    """Yield all combinations of swept values in written order; the keys of `zip` are one axis."""
    axes = [[{key: value} for value in values] for key, values in file.sweep.items()]
    if file.zip:
        rows = zip(*file.zip.values(), strict=True)
        axes.append([dict(zip(file.zip, row, strict=True)) for row in rows])
    for parts in itertools.product(*axes):
        yield {key: value for part in parts for key, value in part.items()}


def swept_by(file: ScenarioFile, sweep: Mapping[str, Any]) -> bool:
    """Return whether the values are those of one sweep point of the file."""
    if {*sweep} != {*file.sweep, *file.zip}:
        return False
    rows = zip(*file.zip.values(), strict=True)
    linked = tuple(sweep[key] for key in file.zip)
    return (not file.zip or linked in rows) and all(
        sweep[key] in values for key, values in file.sweep.items()
    )


def count_points(file: ScenarioFile) -> int:
    """Return the number of sweep points times stacks, without creating them."""
    axes = [len(values) for values in file.sweep.values()]
    axes += [len(next(iter(file.zip.values())))] if file.zip else []
    return math.prod(axes) * len(file.stacks)


def at(sweep: dict[str, Any]) -> str:
    """Return ` at key=value, ...` for a message; empty without a sweep."""
    return " at " + ", ".join(f"{key}={value}" for key, value in sweep.items()) if sweep else ""


def applies(rule: Exclusion, facts: dict[str, Any]) -> bool:
    """Return whether every key of an exclusion's rule has the rule's value, or one of them."""
    return all(
        look_up(facts, key)[1] in (value if isinstance(value, list) else [value])
        for key, value in rule.when.items()
    )
