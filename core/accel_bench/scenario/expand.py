"""From a draft to points: every combination of sweep values and stacks, resolved and validated."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.load import Location
from accel_bench.documents.validate import known_keys, validate
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.scenario.draft import Draft, check_depth, set_path
from accel_bench.scenario.environment import check_environment
from accel_bench.scenario.ladder import with_ladder
from accel_bench.scenario.models import (
    Exclusion,
    Scenario,
    ScenarioFile,
    Stack,
    StackEntry,
    Work,
)

OF_THE_COMPARISON = frozenset(
    {
        "baseline",
        "description",
        "launcher",
        "measure",
        "measure.rounds",
        "measure.seed",
        "measure.timeout_seconds",
        "name",
        "slow",
    }
)
"""Keys that make no experiment another one, so that none of them is swept."""


class Point(Frozen):
    """One stack at one point of the sweep, before plugins have had their say."""

    scenario: Scenario
    """The resolved work."""

    stack: Stack
    """The stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    excluded: tuple[str, ...] = ()
    """Why the file does not want this point run."""


def check_file(draft: Draft, allow_environment: bool = False) -> ScenarioFile:
    """Validate the file as a whole. Raises ScenarioError with file, line and column.

    The baseline is written down, so that it stays the same when stacks are left out; the stacks of
    a ladder are spelt out.
    """
    draft = with_ladder(draft)
    file = validate(ScenarioFile, draft.data, draft.where, ScenarioError)
    file = file.model_copy(update={"baseline": file.baseline_name()})
    if file.baseline not in file.stacks:
        hint = did_you_mean(file.baseline_name(), file.stacks)
        raise ScenarioError(
            f"{draft.where(('baseline',))}: no stack is called {file.baseline!r}{hint}"
        )
    lengths = {len(values) for values in file.zip.values()}
    if len(lengths) > 1:
        raise ScenarioError(
            f"{draft.where(('zip',))}: keys that move together need equally many values"
        )
    for kind, key in [*(("sweep", key) for key in file.sweep), *(("zip", key) for key in file.zip)]:
        _check_axis(draft, file, kind, key)
    for number, rule in enumerate(file.exclude):
        _check_exclusion(draft, file, number, rule)
    check_environment(file.environment, draft.where, allow_environment)
    return file


def count_points(file: ScenarioFile) -> int:
    """Number of points times stacks, without making them."""
    axes = [len(values) for values in file.sweep.values()]
    axes += [len(next(iter(file.zip.values())))] if file.zip else []
    return math.prod(axes) * len(file.stacks)


def expand(
    draft: Draft, file: ScenarioFile, device: str, allow_environment: bool = False
) -> Iterator[Point]:
    """Yield the points in written order: sweep points outermost, within each the stacks.

    `device` is what `resources.device: auto` means here. Raises ScenarioError for a point that is
    not valid, and for an environment variable that a sweep or a stack may not set.
    """
    for sweep in _sweep_points(file):
        for name in file.stacks:
            yield _point(draft, file, name, sweep, device, allow_environment)


def refuse_idle_exclusions(draft: Draft, file: ScenarioFile, points: Sequence[Point]) -> None:
    """Refuse a rule with a key that no point has: it could never apply. Raises ScenarioError."""
    facts = [_facts(point.scenario, point.stack.name) for point in points]
    for number, rule in enumerate(file.exclude):
        for key in rule.when:
            if not any(_look_up(fact, key)[0] for fact in facts):
                where = draft.where(("exclude", number))
                raise ScenarioError(
                    f"{where}: no experiment of this scenario has the key {key!r}; "
                    "an option that keeps its default must be written out to be asked for"
                )


def _check_axis(draft: Draft, file: ScenarioFile, kind: str, key: str) -> None:
    """Refuse an axis without values, and one that is also set."""
    where = draft.where((kind, key))
    if not getattr(file, kind)[key]:
        raise ScenarioError(f"{where}: {key!r} has no values to sweep over")
    if kind == "zip" and key in file.sweep:
        raise ScenarioError(f"{where}: {key!r} is in `sweep` and in `zip`; one of them is enough")
    first = key.split(".", maxsplit=1)[0]
    if first not in ("stacks", *Work.model_fields):
        hint = did_you_mean(first, Work.model_fields)
        raise ScenarioError(f"{where}: unknown key {key!r}{hint}")
    if key in OF_THE_COMPARISON or key.startswith("launcher."):
        raise ScenarioError(f"{where}: {key!r} cannot be swept: it belongs to the whole comparison")
    if draft.get(key) is not None:
        set_at = draft.where(tuple(key.split(".")))
        raise ScenarioError(
            f"{where}: {key!r} is swept, and also set at {set_at}; remove one of them"
        )


def _check_exclusion(draft: Draft, file: ScenarioFile, number: int, rule: Exclusion) -> None:
    """Refuse a rule that can never apply because it misspells a setting or a stack.

    A plugin's options are not known here: what stands in a slot or a free mapping is let through.
    """
    where = draft.where(("exclude", number))
    stacks = rule.when.get("stack", [])
    for name in stacks if isinstance(stacks, list) else [stacks]:
        if name not in file.stacks:
            hint = did_you_mean(str(name), file.stacks)
            raise ScenarioError(f"{where}: no stack is called {name!r}{hint}")
    for key in rule.when:
        *parents, last = key.split(".")
        known = known_keys(Scenario, parents) + ([] if parents else ["stack"])
        free = parents and parents[0] in (*Work.SLOTS, "environment")
        if not free and last not in known:
            raise ScenarioError(f"{where}: unknown key {key!r}{did_you_mean(last, known)}")


def _sweep_points(file: ScenarioFile) -> Iterator[dict[str, Any]]:
    """All combinations of the axes; the keys of `zip` are one axis."""
    axes = [[{key: value} for value in values] for key, values in file.sweep.items()]
    if file.zip:
        rows = zip(*file.zip.values(), strict=True)
        axes.append([dict(zip(file.zip, row, strict=True)) for row in rows])
    for parts in itertools.product(*axes):
        yield {key: value for part in parts for key, value in part.items()}


def _point(  # noqa: PLR0913, PLR0917 - where, what, and what is allowed
    draft: Draft,
    file: ScenarioFile,
    name: str,
    sweep: dict[str, Any],
    device: str,
    allow_environment: bool,
) -> Point:
    """Fold sweep values and the stack's settings into the work, and validate what comes out."""
    here = Draft(draft.source, copy.deepcopy(draft.data), dict(draft.places), draft.folder)
    for key, value in sweep.items():
        here.set(key, value, draft.where(("sweep", key)))
    here = with_ladder(here)
    context = f" (stack {name!r}{_at(sweep)})"
    if here.ladder is not None and name not in here.data["stacks"]:
        raise ScenarioError(
            f"{draft.where(('ladder',))}: the ladder makes no stack {name!r}{_at(sweep)}; sweep "
            "over something else than what its baseline and its items share"
        )
    entry = validate(
        StackEntry, here.data.get("stacks", {}).get(name, {}), here.where, ScenarioError
    )
    work = {key: value for key, value in here.data.items() if key in Work.model_fields}
    for key, value in entry.set.items():
        _check_stack_key(here, name, key)
        check_depth(key)
        set_path(work, key.split("."), value)
    where = _in_stack(here, name, entry)
    scenario = _on_device(validate(Scenario, work, where, ScenarioError, context), device)
    changed = scenario.environment.items() - file.environment.items()
    check_environment(dict(changed), where, allow_environment)
    stack = Stack(
        name=_checked_name(here, name),
        uses=entry.use,
        settings=entry.set,
        ladder=(here.ladder or {}).get(name),
    )
    return Point(
        scenario=scenario, stack=stack, sweep=sweep, excluded=_exclusions(file, scenario, name)
    )


def _on_device(scenario: Scenario, device: str) -> Scenario:
    """Write down what `auto` means."""
    if scenario.resources.device != "auto":
        return scenario
    resources = scenario.resources.model_copy(update={"device": device})
    return scenario.model_copy(update={"resources": resources})


def _in_stack(draft: Draft, name: str, entry: StackEntry) -> Any:
    """Look a place up among what the stack sets first."""

    def where(location: Location) -> str:
        key = ".".join(str(part) for part in location)
        if key in entry.set:
            return draft.where(("stacks", name, "set", key))
        return draft.where(location)

    return where


def _at(sweep: dict[str, Any]) -> str:
    """` at key=value, ...`, or nothing."""
    return " at " + ", ".join(f"{key}={value}" for key, value in sweep.items()) if sweep else ""


def _checked_name(draft: Draft, name: str) -> str:
    """Refuse a name that cannot be a folder's."""
    where = draft.where(("stacks", name))
    return validate(Stack, {"name": name}, lambda _: where, ScenarioError).name


def _check_stack_key(draft: Draft, name: str, key: str) -> None:
    """A stack may change the work, but not how all stacks are measured."""
    if key.split(".", maxsplit=1)[0] in ("measure", "name", "stacks", "sweep"):
        where = draft.where(("stacks", name))
        raise ScenarioError(
            f"{where}: a stack cannot set {key!r}; that belongs to the whole comparison"
        )


def _exclusions(file: ScenarioFile, scenario: Scenario, stack: str) -> tuple[str, ...]:
    """Reasons of the exclusions that this point meets."""
    facts = _facts(scenario, stack)
    return tuple(rule.because for rule in file.exclude if _meets(facts, rule.when))


def _facts(scenario: Scenario, stack: str) -> dict[str, Any]:
    """What a rule can ask for: every key of the scenario, and the stack's name."""
    return {**scenario.model_dump(mode="json"), "stack": stack}


def _meets(facts: dict[str, Any], when: dict[str, Any]) -> bool:
    """Whether every key has the value, or one of the values, of the rule."""
    for key, wanted in when.items():
        _, value = _look_up(facts, key)
        if value not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


def _look_up(facts: dict[str, Any], key: str) -> tuple[bool, Any]:
    """Whether there is such a key, and its value."""
    value: Any = facts
    for part in key.split("."):
        if not (isinstance(value, dict) and part in value):
            return False, None
        value = value[part]
    return True, value
