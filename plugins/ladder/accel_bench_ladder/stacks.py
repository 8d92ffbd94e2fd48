"""Expansion of an ablation ladder: from a list of items, stacks that differ by one item."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.load import Location
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import BASELINE, LadderPosition, StackEntry
from accel_bench.scenario.sweep import at
from accel_bench.scenario.uses import Use
from accel_bench_ladder.items import Item, read_items
from accel_bench_ladder.plugin_checks import check_switches, find_plugins

Subset = tuple[int, ...]
"""Subset of a ladder's items, by their numbers from 0."""


@dataclass(frozen=True)
class Ladder:
    """Items that are added to a baseline one by one, and the items of each resulting stack."""

    baseline: str
    """Name of the baseline stack, which all other stacks extend."""

    entry: StackEntry
    """Entry of the baseline stack in the file."""

    items: tuple[Item, ...]

    subsets: dict[str, tuple[Subset, ...]]
    """Items of each stack, the baseline first; several subsets if they make the same stack."""

    @property
    def names(self) -> Collection[str]:
        """Names of all stacks except the baseline."""
        return self.subsets.keys() - {self.baseline}

    def place(self, stack: str) -> LadderPosition | None:
        """Return the ladder's items and those that a stack has; None for a stack not on it."""
        if stack not in self.subsets:
            return None
        labels = tuple(item.label for item in self.items)
        return LadderPosition(items=labels, holds=self.subsets[stack])

    def stacks(self, baseline: StackEntry) -> dict[str, StackEntry]:
        """Return the ladder's stacks by name, each made of `baseline` and the stack's items."""
        return {name: _stack(baseline, self.items, held[0]) for name, held in self.subsets.items()}

    def stacks_at(self, draft: Draft, sweep: dict[str, Any]) -> Mapping[str, StackEntry]:
        """Return the ladder's stacks at a sweep point by name; empty if the sweep changes no stack.

        `sweep` has the values of the swept keys. Raises ScenarioError if an item changes nothing at
        this sweep point, or two stacks become equal.
        """
        baseline = draft.stack(self.baseline)
        self.refuse_idle_items(baseline, draft.get)
        if not any(key.startswith("stacks.") for key in sweep):
            return {}
        stacks = self.stacks(baseline)
        if len({content_of(stack) for stack in stacks.values()}) < len(stacks):
            raise ScenarioError(
                f"{draft.where(('ladder',))}: two stacks of the ladder are the same{at(sweep)}; "
                "sweep over something else than what its baseline and its items share"
            )
        return stacks

    def check_plugins(self, chosen: Collection[str]) -> None:
        """Raise PluginError if an item of the stacks `chosen` names an unknown plugin or option."""
        numbers = {number for name in chosen for number in self.subsets.get(name, ((),))[0]}
        held = [self.items[number] for number in sorted(numbers)]
        find_plugins(held)
        check_switches(self.items, held, {use.use for use in self.entry.use})

    def refuse_idle_items(self, baseline: StackEntry, get: Callable[[str], Any]) -> None:
        """Raise ScenarioError if an item sets only what the scenario or the baseline sets already.

        `get` returns the scenario's value of a dotted key.
        """
        options = {use.use: use.options for use in baseline.use}
        for item in self.items:
            plugin, option = item.switch or ("", "")
            if options.get(plugin, {}).get(option) is True:
                raise _adds_nothing(item, "the baseline switches it on already")
            same = all(
                canonical_json(baseline.set.get(key, get(key))) == canonical_json(value)
                for key, value in item.settings
            )
            if same and not item.uses and not self._set_by_another(item):
                raise _adds_nothing(item, "the scenario sets that already")

    def _set_by_another(self, item: Item) -> bool:
        keys = {key for key, _ in item.settings}
        others = {key for other in self.items if other is not item for key, _ in other.settings}
        return not keys.isdisjoint(others)


def expand_ladder(draft: Draft) -> Ladder | None:
    """Replace a draft's ladder by its stacks; return the ladder, or None if there is none.

    The baseline comes first, then stacks with one more item each (`1+A`, `2+B`, ...), then stacks
    without one item (`without-A`, ...), then the file's other stacks. Equal stacks are made once.
    Raises ScenarioError that names file, line and item.
    """
    written = draft.data.get("stacks") or {}
    items = read_items(draft)
    if not items or not isinstance(written, dict):
        return None
    name = _baseline(draft, written)
    baseline = draft.stack(name)
    ladder = Ladder(name, baseline, items, {})
    ladder.refuse_idle_items(baseline, draft.get)
    ladder.subsets.update(_subsets(name, baseline, items))
    for made in ladder.subsets:
        if made in written and made != name:
            raise ScenarioError(
                f"{draft.where(('stacks', made))}: the ladder makes a stack {made!r} of its own; "
                "give this one another name"
            )
    stacks = ladder.stacks(baseline)
    others = {other: stack for other, stack in written.items() if other != name}
    spelt_out = {made: stack.model_dump(mode="json") for made, stack in stacks.items()}
    draft.data["stacks"] = {**spelt_out, **others}
    draft.places.update(_places(ladder, stacks))
    return ladder


def _baseline(draft: Draft, written: dict[str, Any]) -> str:
    """Return the name of the ladder's baseline, which the file sets; else `baseline`.

    `written` are the stacks in the file. Raises ScenarioError if the set name is not among them.
    """
    named = draft.data.get("baseline")
    if isinstance(named, str) and named not in written and named != BASELINE:
        raise ScenarioError(
            f"{draft.where(('baseline',))}: the ladder stands on the baseline, and `stacks` has no "
            f"{named!r}{did_you_mean(named, written)}"
        )
    return named if isinstance(named, str) else BASELINE


def _subsets(
    name: str, baseline: StackEntry, items: Sequence[Item]
) -> dict[str, tuple[Subset, ...]]:
    """Return by stack the subsets of items with which the ladder makes this stack.

    `name` is the baseline's name. Raises ScenarioError for an item that adds nothing, and for a
    stack with the baseline's name.
    """
    everything = tuple(range(len(items)))
    rungs = [(item, f"{n + 1}+{item.label}", everything[: n + 1]) for n, item in enumerate(items)]
    rests = [
        (item, f"without-{item.label}", (*everything[:n], *everything[n + 1 :]))
        for n, item in enumerate(items)
    ]
    subsets: dict[str, tuple[Subset, ...]] = {name: ((),)}
    names = {content_of(_stack(baseline, items, ())): name}
    for rung in (*rungs, *rests):
        item, made, held = rung
        content = content_of(_stack(baseline, items, held))
        if content in names and rung in rungs:
            raise _adds_nothing(item, f"{names[content]!r} is the same stack")
        if content not in names and made == name:
            raise ScenarioError(
                f"{item.place}: the ladder makes a stack {name!r} of its own, and the baseline has "
                "that name; give the baseline another"
            )
        stack = names.setdefault(content, made)
        subsets[stack] = tuple(dict.fromkeys((*subsets.get(stack, ()), held)))
    return subsets


def content_of(stack: StackEntry) -> str:
    """Return a stack's settings and plugins as text, which is equal for stacks that do the same."""
    return canonical_json(stack.model_dump(mode="json", exclude={"description"}))


def _stack(baseline: StackEntry, items: Sequence[Item], held: Subset) -> StackEntry:
    """Return the baseline with the items numbered `held`; a later item's settings win."""
    # A plugin stands where it comes first in the whole ladder: leaving an item out moves nothing.
    order = dict.fromkeys(use.use for use in [*baseline.use, *(u for i in items for u in i.uses)])
    options: dict[str, dict[str, Any]] = {use.use: dict(use.options) for use in baseline.use}
    settings = dict(baseline.set)
    for number in held:
        settings.update(items[number].settings)
        for use in items[number].uses:
            options.setdefault(use.use, {}).update(use.options)
    for plugin, option in (item.switch for item in items if item.switch):
        if plugin in options:
            options[plugin].setdefault(option, False)
    uses = tuple(Use(use=name, options=options[name]) for name in order if name in options)
    return StackEntry(set=settings, use=uses, description="" if held else baseline.description)


def _places(ladder: Ladder, stacks: dict[str, StackEntry]) -> dict[Location, str]:
    """Return the locations in the file, for messages, of stacks and their plugins and settings."""
    items, places = ladder.items, dict[Location, str]()
    for number, (name, (held, *_)) in enumerate(ladder.subsets.items()):
        if number == 0:
            continue
        rung = number <= len(items)
        missing = next((n for n in range(len(items)) if n not in held), 0)
        own = items[number - 1 if rung else missing].place
        places["stacks", name] = own
        for index, use in enumerate(stacks[name].use):
            by = (item.place for item in items if use.use in (u.use for u in item.uses))
            places["stacks", name, "use", index] = next(by, own)
        for key in stacks[name].set:
            setters = [items[n].place for n in held if key in dict(items[n].settings)]
            places["stacks", name, "set", key] = setters[-1] if setters else own
    return places


def _adds_nothing(item: Item, why: str) -> ScenarioError:
    return ScenarioError(f"{item.place}: ladder item {item.text!r} adds nothing: {why}")
