"""Rules: settings of another program that stand for options here, read in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue

OPTION = re.compile(r"^\{([\w.]+)(?:\|(.+))?\}$")
"""Pattern of a value that is an option's: `{r}`, or `{target_modules|,}` for a joined list."""

PLACE = re.compile(r"\{([\w.]+)\}")
"""Pattern of an option's place in a note."""

ITEM = re.compile(r"\.\d+$")
"""Pattern of the place of an item in an option that is a list, as in `betas.0`."""


class Expression(str):
    """Expression of Python that a rule gives as a value, written `=FullAC.Config()`; an option's
    value is never one."""


class Rule(Frozen):
    """Settings of another program under a condition on options."""

    when: dict[str, JsonValue] = Field(default_factory=dict)
    """Options with their values; a list holds alternatives. All must match."""

    unless: dict[str, JsonValue] = Field(default_factory=dict)
    """Options with values of which none may match."""

    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the program by dotted key; `{option}` is the value of an option."""

    note: str = ""
    """Difference that remains between the two programs, in a sentence."""

    def holds(self, options: Mapping[str, Any]) -> bool:
        """Return whether the rule applies to options; one that is not there matches nothing."""
        return all(
            key in options and _is_one(options[key], one) for key, one in self.when.items()
        ) and (
            not any(
                key in options and _is_one(options[key], one) for key, one in self.unless.items()
            )
        )

    @property
    def fixed(self) -> dict[str, JsonValue]:
        """Settings whose value is no option's, by which the rule is recognized."""
        return {key: value for key, value in self.set.items() if not [*_options_in(value)]}

    @property
    def options(self) -> frozenset[str]:
        """Options that the rule speaks of."""
        names = {*self.when, *self.unless, *_options_in(self.set), *PLACE.findall(self.note)}
        return frozenset(names | {ITEM.sub("", name) for name in names})


@dataclass
class Translation:
    """Options as settings of another program."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted key."""

    notes: list[str] = field(default_factory=list)
    """Differences that remain."""

    covered: set[str] = field(default_factory=set)
    """Options that the settings or notes speak of."""


def translate(rules: Iterable[Rule], options: Mapping[str, Any]) -> Translation:
    """Return the settings of all rules that hold; a later rule replaces an earlier one's value."""
    found = Translation()
    for rule in rules:
        if not rule.holds(options):
            continue
        filled = {key: _filled(value, options) for key, value in rule.set.items()}
        found.settings |= {key: value for key, value in filled.items() if value is not None}
        if rule.note:
            found.notes.append(PLACE.sub(lambda one: str(_option(options, one[1])), rule.note))
        found.covered |= rule.options
    return found


def recognize(
    rules: Iterable[Rule], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """Return the options that settings by dotted key state, and the keys that state them.

    A rule is recognized by its fixed settings; one without any, or whose options another rule has
    given another value, adds what it can.
    """
    options: dict[str, Any] = {}
    used: set[str] = set()
    for rule in sorted(rules, key=lambda one: not one.fixed):
        if any(key not in settings or settings[key] != value for key, value in rule.fixed.items()):
            continue
        present = {
            key for key, one in rule.set.items() if key in settings and _fits(one, settings[key])
        }
        if not present:
            continue
        stated = {k: v for k, v in rule.when.items() if not isinstance(v, list)}
        for key in present:
            stated |= dict(_read(rule.set[key], settings[key]))
        if any(options.get(key, value) != value for key, value in stated.items()):
            continue
        if any(_is_one(stated.get(k, options.get(k)), v) for k, v in rule.unless.items()):
            continue
        options |= stated
        used |= present
    return _with_lists(options), used


def _is_one(value: Any, wanted: JsonValue) -> bool:
    """Return whether a value is the wanted one, or one of a list."""
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


def _options_in(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str) and (found := OPTION.match(value)):
        yield found[1]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _options_in(one)


def _option(options: Mapping[str, Any], name: str) -> Any:
    """Return an option, or an item of one: `betas.0`. None if there is none."""
    if name in options or not ITEM.search(name):
        return options.get(name)
    items = options.get(ITEM.sub("", name))
    place = int(name.rpartition(".")[2])
    return items[place] if isinstance(items, list | tuple) and place < len(items) else None


def _with_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with their items joined to lists; a list that lacks an item is left out."""
    lists: dict[str, dict[int, Any]] = {}
    for name, value in options.items():
        if ITEM.search(name):
            lists.setdefault(ITEM.sub("", name), {})[int(name.rpartition(".")[2])] = value
    whole = {
        name: [items.get(place) for place in range(len(items))] for name, items in lists.items()
    }
    plain = {name: value for name, value in options.items() if not ITEM.search(name)}
    return plain | {name: items for name, items in whole.items() if None not in items}


def _filled(value: JsonValue, options: Mapping[str, Any]) -> Any:
    """Return a value with options in their places; None if an option has none."""
    if isinstance(value, dict):
        filled = {key: _filled(one, options) for key, one in value.items()}
        return {key: one for key, one in filled.items() if one is not None}
    if isinstance(value, list):
        return [_filled(one, options) for one in value]
    if isinstance(value, str) and value.startswith("="):
        return Expression(value[1:])
    if not (isinstance(value, str) and (found := OPTION.match(value))):
        return value
    given = _option(options, found[1])
    if found[2] and isinstance(given, list | tuple):
        return found[2].join(map(str, given))
    return [*given] if isinstance(given, tuple) else given


def _fits(value: JsonValue, given: Any) -> bool:
    """Return whether a setting is a rule's value, whatever stands in the places of options."""
    if isinstance(value, str) and OPTION.match(value):
        return True
    if isinstance(value, dict):
        return isinstance(given, dict) and all(
            _fits(one, given[key]) if key in given else [*_options_in(one)] != []
            for key, one in value.items()
        )
    if isinstance(value, list):
        same = isinstance(given, list) and len(value) == len(given)
        return same and all(map(_fits, value, given))
    return bool(value == given)


def _read(value: JsonValue, given: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options that a setting states."""
    if isinstance(value, str) and (found := OPTION.match(value)):
        yield found[1], given.split(found[2]) if found[2] and isinstance(given, str) else given
    elif isinstance(value, dict) and isinstance(given, dict):
        for key in value.keys() & given.keys():
            yield from _read(value[key], given[key])
    elif isinstance(value, list) and isinstance(given, list):
        for one, other in zip(value, given, strict=False):
            yield from _read(one, other)
