"""Rules that translate options of a scenario or plugin to settings of another program, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue

OPTION = re.compile(r"^\{([\w.]+)(?:\|(.+))?\}$")
"""Pattern of a placeholder for an option's value: `{r}`, or `{target_modules|,}` for a list joined
by commas. A program's own braces are doubled: `{{instruction}}`."""

PLACE = re.compile(r"\{([\w.]+)\}")
"""Pattern of a placeholder for an option's value in a note."""

ITEM = re.compile(r"\.\d+$")
"""Pattern of the suffix that names an item of a list option, as in `betas.0`."""


class Expression(str):
    """Python expression as the value of a setting, written `=FullAC.Config()` in a rule; never made
    from an option."""


class Rule(Frozen):
    """Settings of another program that correspond, under conditions, to options of a plugin.

    In rules on a scenario, the options are dotted keys of the scenario.
    """

    when: dict[str, JsonValue] = Field(default_factory=dict)
    """Required values of options, all of which must match; a list holds alternatives, and `*` in a
    text stands for any letters. `prompt.0` is the first item of an option, null if it is no list.
    """

    unless: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of options that must not match."""

    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the program by dotted key; `{option}` is the value of an option."""

    note: str = ""
    """Difference that remains between the two programs, in a sentence."""

    def holds(self, options: Mapping[str, Any]) -> bool:
        """Return whether `options` match all conditions in `when` and none in `unless`; a missing
        option matches none."""
        return all(_matches(options, key, value) for key, value in self.when.items()) and not any(
            _matches(options, key, value) for key, value in self.unless.items()
        )

    @property
    def fixed(self) -> dict[str, JsonValue]:
        """Settings without placeholders, by which the rule is recognized in a configuration."""
        fixed = {key: value for key, value in self.set.items() if not [*options_in(value)]}
        return {key: _filled(value, {}) for key, value in fixed.items()}

    @property
    def options(self) -> frozenset[str]:
        """Names of the options in the rule's conditions, settings and note."""
        names = {*self.when, *self.unless, *options_in(self.set), *PLACE.findall(self.note)}
        return frozenset(names | {ITEM.sub("", name) for name in names})


@dataclass
class Translation:
    """Result of translating options: settings of another program, and remaining differences."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted key."""

    notes: list[str] = field(default_factory=list)
    """Sentences on remaining differences."""

    covered: set[str] = field(default_factory=set)
    """Names of the options that the settings or notes mention."""


def translate(rules: Iterable[Rule], options: Mapping[str, Any]) -> Translation:
    """Return settings, notes and covered options of all rules whose conditions hold.

    A later rule replaces values of an earlier rule.
    """
    result = Translation()
    for rule in rules:
        if not rule.holds(options):
            continue
        filled = {key: _filled(value, options) for key, value in rule.set.items()}
        said = (key for key, value in filled.items() if value is not None or rule.set[key] is None)
        result.settings |= {key: filled[key] for key in said}
        if rule.note:
            result.notes.append(PLACE.sub(lambda match: str(_option(options, match[1])), rule.note))
        result.covered |= rule.options
    return result


def recognize(
    rules: Iterable[Rule], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """Return the options that a program's settings express, and the keys of those settings.

    `settings` are by dotted key. A rule applies if `settings` have all its fixed settings. Rules
    without fixed settings are applied last. A rule is skipped if it contradicts itself or the
    options of an earlier rule. Of a condition's alternatives the first is taken, unless one of them
    is known. A condition with `*` decides only what is written, and is ignored.
    """
    options: dict[str, Any] = {}
    used: set[str] = set()
    for rule in sorted(rules, key=lambda rule: not rule.fixed):
        if any(key not in settings or settings[key] != value for key, value in rule.fixed.items()):
            continue
        present = {
            key for key, value in rule.set.items() if key in settings and fits(value, settings[key])
        }
        if not present:
            continue
        known = dict(options)
        stated = [pair for key in present for pair in _read(rule.set[key], settings[key])]
        if any(known.setdefault(key, value) != value for key, value in stated):
            continue
        when = {key: value for key, value in rule.when.items() if not _has_pattern(value)}
        for key, value in when.items():
            known.setdefault(key, value[0] if isinstance(value, list) else value)
        if any(not _is_one(known[key], value) for key, value in when.items()):
            continue
        if any(_is_one(known.get(key), value) for key, value in rule.unless.items()):
            continue
        options = known
        used |= present
    return _with_lists(options), used


def _matches(options: Mapping[str, Any], key: str, wanted: JsonValue) -> bool:
    """Return whether the option `key`, such as `betas.0`, has a wanted value (or one of a list)."""
    known = key in options or ITEM.sub("", key) in options
    return known and _is_one(_option(options, key), wanted)


def _is_one(value: Any, wanted: JsonValue) -> bool:
    """Return whether a value is the wanted value, matches its `*`, or is one of a list of these."""
    if isinstance(wanted, list):
        return any(_is_one(value, one) for one in wanted)
    if isinstance(value, str) and _has_pattern(wanted):
        return fnmatchcase(value, str(wanted))
    return bool(value == wanted)


def _has_pattern(wanted: JsonValue) -> bool:
    return any("*" in str(one) for one in (wanted if isinstance(wanted, list) else [wanted]))


def options_in(value: JsonValue) -> Iterator[str]:
    """Yield the names in the placeholders of a rule's value, such as `betas.0`."""
    if isinstance(value, str) and (match := OPTION.match(value)):
        yield match[1]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from options_in(item)


def _option(options: Mapping[str, Any], name: str) -> Any:
    """Return the value of an option, or of an item such as `betas.0`, or None if it is missing."""
    if name in options or not ITEM.search(name):
        return options.get(name)
    items = options.get(ITEM.sub("", name))
    place = int(name.rpartition(".")[2])
    return items[place] if isinstance(items, list | tuple) and place < len(items) else None


def _with_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with items such as `betas.0` joined to lists; incomplete lists are dropped."""
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
    """Return a rule's value with options in place of placeholders; None if an option is missing."""
    if isinstance(value, dict):
        filled = {key: _filled(item, options) for key, item in value.items()}
        return {key: item for key, item in filled.items() if item is not None}
    if isinstance(value, list):
        return [_filled(item, options) for item in value]
    if isinstance(value, str) and value.startswith("="):
        return Expression(value[1:])
    if not (isinstance(value, str) and (match := OPTION.match(value))):
        return _plain(value)
    given = _option(options, match[1])
    if match[2] and isinstance(given, list | tuple):
        return match[2].join(map(str, given))
    return [*given] if isinstance(given, tuple) else given


def _plain(value: JsonValue) -> JsonValue:
    """Return a rule's value with `{{` and `}}` replaced by single braces."""
    return value.replace("{{", "{").replace("}}", "}") if isinstance(value, str) else value


def unread(value: JsonValue, given: Any, path: str) -> Iterator[str]:
    """Yield paths of keys in a setting's value `given` that are not in the `value` of a rule.

    `path` is the path of the setting itself.
    """
    if isinstance(value, dict) and isinstance(given, dict):
        for key, item in given.items():
            if key in value:
                yield from unread(value[key], item, f"{path}.{key}")
            elif item is not None:
                yield f"{path}.{key}"
    elif isinstance(value, list) and isinstance(given, list):
        for place, (item, other) in enumerate(zip(value, given, strict=False)):
            yield from unread(item, other, f"{path}[{place}]")


def fits(value: JsonValue, given: Any) -> bool:
    """Return whether a setting's value `given` in a file matches a rule's `value`.

    A placeholder in `value` matches anything.
    """
    if isinstance(value, str) and OPTION.match(value):
        return True
    if isinstance(value, dict):
        return isinstance(given, dict) and all(
            fits(item, given[key]) if key in given else [*options_in(item)] != []
            for key, item in value.items()
        )
    if isinstance(value, list):
        same = isinstance(given, list) and len(value) == len(given)
        return same and all(map(fits, value, given))
    return bool(_plain(value) == given)


def _read(value: JsonValue, given: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the options that a setting's value `given` in a file states.

    The placeholders in the rule's `value` tell where the options are.
    """
    if isinstance(value, str) and (match := OPTION.match(value)):
        listed = match[2] and isinstance(given, str)
        yield match[1], [word.strip() for word in given.split(match[2])] if listed else given
    elif isinstance(value, dict) and isinstance(given, dict):
        for key in value.keys() & given.keys():
            yield from _read(value[key], given[key])
    elif isinstance(value, list) and isinstance(given, list):
        for item, other in zip(value, given, strict=False):
            yield from _read(item, other)
