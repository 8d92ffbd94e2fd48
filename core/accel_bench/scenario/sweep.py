"""Sweep of a scenario file: axes, points, exclusions, tags, and sizes that are `auto`."""

from __future__ import annotations

import itertools
import json
import math
import string
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.files import slug
from accel_bench.documents.load import Location
from accel_bench.documents.validate import known_keys
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import Exclusion, Scenario, ScenarioFile, Stack, StackEntry, Work
from accel_bench.scenario.settings import TagRule
from accel_bench.scenario.uses import Use

AUTO = "auto"
"""Value of a size that the program works out."""

LENGTH, MICRO_BATCH = "data.sequence_length", "train.micro_batch_size"
"""Dotted keys of sizes that may be `auto`."""

STAND_INS: Mapping[str, int] = {LENGTH: 512, MICRO_BATCH: 1}
"""Sizes that a plan assumes until the `auto` sizes are worked out."""

OF_THE_COMPARISON = frozenset(
    {
        "baseline",
        "description",
        "launcher",
        "measure",
        "measure.compare",
        "measure.prune",
        "measure.rounds",
        "measure.seed",
        "measure.timeout_seconds",
        "name",
        "slow",
    }
)
"""Keys that concern the whole comparison, so that they cannot be swept."""

EXCLUDED = "excluded: "
"""Prefix of the reason for skipping a point that the scenario itself excludes."""


def is_excluded(reasons: Sequence[str]) -> bool:
    """Return whether a point is skipped because of the scenario's own exclusions only."""
    return bool(reasons) and all(reason.startswith(EXCLUDED) for reason in reasons)


class Choice(Frozen):
    """Size that was computed for a key that is `auto`, with the reason."""

    key: str
    """Dotted key of the scenario."""

    value: int

    because: str
    """Explanation of the size, in a sentence."""


Choices: TypeAlias = Mapping[str, Mapping[str, Choice]]
"""Computed sizes by sweep point, as `Experiment.point` names it, and by dotted key."""


class Point(Frozen):
    """Stack at a point of the sweep, before plugins are activated."""

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
        """All plugin uses of the point: of the stack, the slots and the metrics."""
        slots = (getattr(self.scenario, slot) for slot in Scenario.SLOTS)
        return (*self.stack.uses, *slots, *self.scenario.metrics)

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """Dotted keys that are `auto` in the file and whose size is not computed yet."""
        return tuple(key for key, size in self.sizes.items() if size is None)

    def facts(self) -> dict[str, Any]:
        """Return the values that an exclusion can name: settings by dotted key, and the `stack`."""
        return {**dict(_by_key(self.scenario.model_dump(mode="json"))), "stack": self.stack.name}


def _by_key(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of each entry in nested mappings, inner mappings included."""
    for name, value in values.items():
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping):
            yield from _by_key(value, f"{prefix}{name}.")


def sweep_points(file: ScenarioFile) -> Iterator[dict[str, Any]]:
    """Yield each sweep point as values by dotted key, in the file's order; `zip` is one axis."""
    axes = [[{key: value} for value in values] for key, values in file.sweep.items()]
    if file.zip:
        rows = zip(*file.zip.values(), strict=True)
        axes.append([dict(zip(file.zip, row, strict=True)) for row in rows])
    for parts in itertools.product(*axes):
        yield {key: value for part in parts for key, value in part.items()}


def count_points(file: ScenarioFile) -> int:
    """Return the number of sweep points times stacks, without creating them."""
    axes = [len(values) for values in file.sweep.values()]
    axes += [len(next(iter(file.zip.values())))] if file.zip else []
    return math.prod(axes) * len(file.stacks)


def at(sweep: dict[str, Any]) -> str:
    """Return the text ` at key=value, ...` for messages; an empty text without swept keys."""
    return " at " + ", ".join(f"{key}={value}" for key, value in sweep.items()) if sweep else ""


def applies(rule: Exclusion, facts: dict[str, Any]) -> bool:
    """Return whether `facts`, values by dotted key, has excluded values for all keys of `rule`."""
    return all(
        facts.get(key) in (value if isinstance(value, list) else [value])
        for key, value in rule.when.items()
    )


def make_tag(rule: TagRule, point: Point) -> str:
    """Return the tag of a point, a short name that is safe as a folder name.

    The tag does not depend on the order of the keys. A rule can name every key of the point, its
    `world_size`, and the scenario's name as `preset`. The tag is empty without a rule or a sweep.
    Raises ScenarioError for a key that no experiment has.
    """
    if rule.off or not (rule.format or rule.keys or point.sweep):
        return ""
    facts = dict[str, Any]()
    if rule.format or rule.keys:
        names = {"preset": point.scenario.name, "world_size": point.scenario.world_size}
        facts = {**point.facts(), **names}
    if rule.format:
        text = "".join(_filled(rule.format, facts))
    else:
        named = {key: _fact(facts, key) for key in rule.keys or ()}
        text = _joined(named or point.sweep)
    return slug(text)


def automatic_tag(sweep: Mapping[str, JsonValue]) -> str:
    """Return the tag made of swept keys and values, in order of keys: `micro_batch_size_4-seed_1`.

    A key is shortened to its last word if that word is unique.
    """
    return slug(_joined(sweep)) if sweep else ""


def _joined(sweep: Mapping[str, JsonValue]) -> str:
    """Return sorted keys and values as text; a key is cut to its last word if that is unique."""
    names = {key: key.rpartition(".")[2] for key in sweep}
    last = Counter(names.values())
    return "-".join(
        f"{names[key] if last[names[key]] == 1 else key}_{_text(sweep[key])}"
        for key in sorted(sweep)
    )


def is_chosen(tag: str, sweep: Mapping[str, JsonValue]) -> bool:
    """Return whether the scenario's author chose a tag: it differs from the automatic tag."""
    return bool(tag) and tag != automatic_tag(sweep)


def _text(value: JsonValue) -> str:
    """Return a value as part of a tag; a mapping's keys are in alphabetical order."""
    if isinstance(value, dict):
        return "-".join(f"{key}_{_text(value[key])}" for key in sorted(value))
    if isinstance(value, list):
        return "-".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def _filled(form: str, facts: Mapping[str, Any]) -> Iterable[str]:
    """Yield the parts of the tag format `form`, whose keys in braces become their values in
    `facts`. Raises ScenarioError for an invalid format or an unknown key."""
    try:
        parts = list(string.Formatter().parse(form))
    except ValueError as error:
        raise ScenarioError(f"{form!r}: {error}; write a brace that is none twice") from error
    for literal, key, spec, conversion in parts:
        yield literal
        if spec or conversion:
            raise ScenarioError(f"{form!r}: write {{{key}}} alone, without `:` or `!` behind it")
        if key is not None:
            yield _text(_fact(facts, key))


def _fact(facts: Mapping[str, Any], key: str) -> JsonValue:
    if key not in facts:
        parent, _, last = key.rpartition(".")
        inside = facts.get(parent)
        names = inside if isinstance(inside, Mapping) else (k for k in facts if "." not in k)
        hint = did_you_mean(last, names)
        raise ScenarioError(f"no experiment of this scenario has the key {key!r}{hint}")
    fact: JsonValue = facts[key]
    return fact


def sweep_problems(
    file: ScenarioFile, written: Draft, made: Collection[str]
) -> Iterator[tuple[Location, str]]:
    """Yield the problems of swept keys and exclusions, each with its location in the file.
    `written` is the scenario as written; `made` are the names of stacks that a ladder makes."""
    if len({len(values) for values in file.zip.values()}) > 1:
        yield ("zip",), "keys that move together need equally many values"
    for kind, axes in (("sweep", file.sweep), ("zip", file.zip)):
        for key, values in axes.items():
            if not values:
                yield (kind, key), f"{key!r} has no values to sweep over"
            if kind == "zip" and key in file.sweep:
                problem = f"{key!r} is in `sweep` and in `zip`; one of them is enough"
                yield (kind, key), problem
            for problem in _problems_of_axis(key, written, made):
                yield (kind, key), problem
    for name, entry in file.stacks.items():
        for key in STAND_INS:
            if entry.set.get(key) == AUTO:
                yield (
                    ("stacks", name, "set", key),
                    f"{key}: auto is alike for every stack; set it in the work, or give stack "
                    f"{name!r} a number",
                )
    for number, rule in enumerate(file.exclude):
        for problem in _problems_of_exclusion(rule, file.stacks):
            yield ("exclude", number), problem


def _problems_of_axis(key: str, written: Draft, made: Collection[str]) -> Iterator[str]:
    """Yield reasons why a key cannot be swept; `made` are names of stacks that a ladder makes."""
    first, *rest = key.split(".")
    if first not in ("stacks", *Work.model_fields):
        yield f"unknown key {key!r}{did_you_mean(first, Work.model_fields)}"
    if key in OF_THE_COMPARISON or first == "launcher":
        yield f"{key!r} cannot be swept: it belongs to the whole comparison"
    if written.get(key) is not None:
        set_at = written.where((first, *rest))
        yield f"{key!r} is swept, and also set at {set_at}; remove one of them"
    if first == "stacks" and rest and rest[0] in made:
        yield f"{key!r} cannot be swept: what a ladder makes is changed in its items"


def _problems_of_exclusion(
    rule: Exclusion, known_stacks: Mapping[str, StackEntry]
) -> Iterator[str]:
    """Yield reasons why an exclusion can never apply, such as a misspelt setting or stack."""
    stacks = rule.when.get("stack", [])
    for name in stacks if isinstance(stacks, list) else [stacks]:
        if name not in known_stacks:
            yield f"no stack is called {name!r}{did_you_mean(str(name), known_stacks)}"
    for key in rule.when:
        *parents, last = key.split(".")
        known = known_keys(Scenario, parents) + ([] if parents else ["stack"])
        free = parents and parents[0] in (*Work.SLOTS, "environment")
        if not free and last not in known:
            yield f"unknown key {key!r}{did_you_mean(last, known)}"
