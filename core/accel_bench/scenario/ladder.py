"""The ablation ladder: from a list of items to stacks that differ from one another by one item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.experiment import canonical_json
from accel_bench.scenario.ladder_items import Item, read_items
from accel_bench.scenario.models import LadderPlace, StackEntry
from accel_bench.scenario.uses import Use

BASELINE = "baseline"
"""The stack on which a ladder stands, where the file names no other one."""


@dataclass(frozen=True)
class _Stack:
    """What the holding of some items comes to."""

    uses: tuple[Use, ...]
    settings: dict[str, Any]

    @property
    def content(self) -> str:
        """Equal for stacks that are the same."""
        return canonical_json([[use.model_dump() for use in self.uses], self.settings])

    def entry(self, description: str) -> dict[str, Any]:
        """As a file spells it out."""
        uses = [use.model_dump(mode="json") for use in self.uses]
        return {"set": self.settings, "use": uses, "description": description}


def with_ladder(draft: Draft) -> Draft:
    """The draft with the stacks of its ladder spelt out; itself where there is nothing to do.

    The written baseline comes first, then its rungs (`1+A`, `2+B`, ...), then everything without
    one item (`all-A`, ...), then the other stacks of the file. What comes to the same is made once.
    Raises ScenarioError that names file, line and item.
    """
    written = draft.data.get("stacks") or {}
    items = read_items(draft)
    if draft.ladder is not None or not items or not isinstance(written, dict):
        return draft
    bottom = _bottom(draft, written)
    entry = validate(
        StackEntry,
        written.get(bottom, {}),
        lambda rest: draft.where(("stacks", bottom, *rest)),
        ScenarioError,
    )
    _refuse_what_is_there(draft, entry, items)
    made = _make(bottom, entry, items)
    places = {**draft.places, **_places(draft, items, made)}
    stacks: dict[str, Any] = {}
    for name, (stack, _) in made.items():
        if name in written and name != bottom:
            raise ScenarioError(
                f"{draft.where(('stacks', name))}: the ladder makes a stack {name!r} of its own; "
                "give this one another name"
            )
        stacks[name] = stack.entry(entry.description if name == bottom else "")
    stacks |= {name: stack for name, stack in written.items() if name != bottom}
    labels = tuple(item.label for item in items)
    ladder = {name: LadderPlace(items=labels, holds=held) for name, (_, held) in made.items()}
    return replace(draft, data={**draft.data, "stacks": stacks}, places=places, ladder=ladder)


def _bottom(draft: Draft, written: dict[str, Any]) -> str:
    """The stack that the ladder stands on: the named baseline, else the one called `baseline`."""
    named = draft.data.get("baseline")
    if isinstance(named, str) and named not in written and named != BASELINE:
        raise ScenarioError(
            f"{draft.where(('baseline',))}: the ladder stands on the baseline, and `stacks` has no "
            f"{named!r}{did_you_mean(named, written)}"
        )
    return named if isinstance(named, str) else BASELINE


def _refuse_what_is_there(draft: Draft, entry: StackEntry, items: Sequence[Item]) -> None:
    """Refuse an item that the work or the baseline has already: its rung would add nothing."""
    options = {use.use: use.options for use in entry.use}
    for item in items:
        plugin, option = item.switch or ("", "")
        if options.get(plugin, {}).get(option) is True:
            raise _adds_nothing(item, "the baseline switches it on already")
        same = all(
            canonical_json(entry.set.get(key, draft.get(key))) == canonical_json(value)
            for key, value in item.settings
        )
        if same and not item.uses and not _set_by_another(item, items):
            raise _adds_nothing(item, "the scenario sets that already")


def _set_by_another(item: Item, items: Sequence[Item]) -> bool:
    """Whether another item changes what this one sets."""
    keys = {key for key, _ in item.settings}
    others = {key for other in items if other is not item for key, _ in other.settings}
    return not keys.isdisjoint(others)


def _make(
    bottom: str, entry: StackEntry, items: Sequence[Item]
) -> dict[str, tuple[_Stack, tuple[tuple[int, ...], ...]]]:
    """Stacks by name, each with the sets of items that it stands for; the baseline first."""
    everything = tuple(range(len(items)))
    found: dict[str, tuple[_Stack, tuple[tuple[int, ...], ...]]] = {}
    names: dict[str, str] = {}
    for count in range(len(items) + 1):
        stack = _stack(entry, items, everything[:count])
        item = items[count - 1]
        if count and stack.content in names:
            raise _adds_nothing(item, f"{names[stack.content]!r} is the same stack")
        name = f"{count}+{item.label}" if count else bottom
        if count and name == bottom:
            raise _taken(item, bottom)
        names[stack.content] = name
        found[name] = stack, (everything[:count],)
    for number, item in enumerate(items):
        held = (*everything[:number], *everything[number + 1 :])
        stack = _stack(entry, items, held)
        name = names.setdefault(stack.content, f"all-{item.label}")
        if name == bottom and stack.content != found[bottom][0].content:
            raise _taken(item, bottom)
        known = found[name][1] if name in found else ()
        found[name] = stack, known if held in known else (*known, held)
    return found


def _stack(entry: StackEntry, items: Sequence[Item], held: Sequence[int]) -> _Stack:
    """What the baseline and some of the items come to.

    A plugin stands where it comes first in the whole ladder, so that leaving an item out moves
    nothing; what comes later adds options to it. Later settings replace earlier ones.
    """
    order = dict.fromkeys(use.use for use in [*entry.use, *(u for i in items for u in i.uses)])
    options: dict[str, dict[str, Any]] = {use.use: dict(use.options) for use in entry.use}
    settings = dict(entry.set)
    for number in held:
        settings.update(items[number].settings)
        for use in items[number].uses:
            options.setdefault(use.use, {}).update(use.options)
    for plugin, option in (item.switch for item in items if item.switch):
        if plugin in options:
            options[plugin].setdefault(option, False)
    uses = tuple(Use(use=name, options=options[name]) for name in order if name in options)
    return _Stack(uses, settings)


def _places(
    draft: Draft, items: Sequence[Item], made: dict[str, tuple[_Stack, tuple[tuple[int, ...], ...]]]
) -> dict[tuple[str | int, ...], str]:
    """Where each stack of the ladder, its plugins and its settings come from."""
    places: dict[tuple[str | int, ...], str] = {}
    for number, (name, (stack, held)) in enumerate(made.items()):
        if not number:
            continue
        missing = [item for n, item in enumerate(items) if n not in held[0]]
        rung = number <= len(items)
        places["stacks", name] = items[number - 1].place if rung else missing[0].place
        for index, use in enumerate(stack.uses):
            by = [i.place for i in items if use.use in (u.use for u in i.uses)]
            places["stacks", name, "use", index] = by[0] if by else places["stacks", name]
        for key in stack.settings:
            setters = [items[n].place for n in held[0] if key in dict(items[n].settings)]
            places["stacks", name, "set", key] = setters[-1] if setters else places["stacks", name]
    return places


def _taken(item: Item, name: str) -> ScenarioError:
    return ScenarioError(
        f"{item.place}: the ladder makes a stack {name!r} of its own, and the baseline has that "
        "name; give the baseline another"
    )


def _adds_nothing(item: Item, why: str) -> ScenarioError:
    return ScenarioError(f"{item.place}: ladder item {item.text!r} adds nothing: {why}")
