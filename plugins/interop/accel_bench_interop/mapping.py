"""Tables that map another program's settings to accel-bench's, one data file per program."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.load import Location, ParsedFile, load_file
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, did_you_mean

TABLES = Path(__file__).with_name("tables")

CLOSE = 0.8
"""Similarity from which an unknown key counts as misspelt."""

Placed: TypeAlias = dict[str, tuple[Any, str]]
"""Values by key, each with file and line."""


class KeyMapping(Frozen):
    """Mapping of one key of another program to an option or setting."""

    to: str = ""
    """Option of the plugin, or dotted key of a scenario."""

    values: dict[str, JsonValue] | None = None
    """New value by the key's value; a mapping sets options by name. Other values are left out."""

    listed: bool = False
    """True to split a text into a list of words."""

    dropped: str = ""
    """Reason why the key is ignored; empty if it is not."""


class Stanza(Frozen):
    """Mapping of one part of another program's configuration to a plugin and its options."""

    use: str
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options that are always set."""

    keys: dict[str, KeyMapping] = Field(default_factory=dict)


class MappingTable(Frozen):
    """Mappings of all known settings of one program."""

    stanzas: dict[str, Stanza] = Field(default_factory=dict)
    """Stanzas by dotted path, in the order of plugins in a stack."""

    arguments: dict[str, KeyMapping] = Field(default_factory=dict)
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Default settings, by dotted key."""

    parallel: dict[str, str] = Field(default_factory=dict)

    families: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Settings by dotted key, for each model family with a single task."""


@dataclass
class Findings:
    """Problems of a conversion, each a sentence with file and line."""

    wrong: list[str] = field(default_factory=list)
    """Misspelt and unknown names."""

    changed: list[str] = field(default_factory=list)
    """Settings without counterpart."""

    dropped: dict[str, list[str]] = field(default_factory=dict)
    """Ignored keys, by reason."""

    def lines(self) -> list[str]:
        """Return each finding once: errors, settings without counterpart, ignored keys."""
        left_out = [f"left out: {', '.join(k)} ({why})" for why, k in self.dropped.items()]
        return list(dict.fromkeys([*self.wrong, *self.changed, *left_out]))

    def drop(self, key: str, reason: str) -> None:
        """Add an ignored key with the reason."""
        keys = self.dropped.setdefault(reason, [])
        if key not in keys:
            keys.append(key)


def read_mapping(name: str) -> MappingTable:
    """Return the shipped mapping table of a program by name, such as `ipfs`."""
    document = load_file(TABLES / f"{name}.yaml")
    return validate(MappingTable, document.data, document.where, ScenarioError)


def spelled(name: str, known: Collection[str], where: str, findings: Findings) -> str | None:
    """Return `name` if it is known, the one known name that it misspells, or else None.

    A misspelt or unknown name is added to `findings`, with `where`, its file and line.
    """
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, 2, CLOSE)
    if len(close) != 1 and (len(close) < 2 or _tied(name, close)):
        findings.wrong.append(f"{where}: nothing is called {name!r}{did_you_mean(name, known)}")
        return None
    findings.wrong.append(f"{where}: {name!r} is misspelt, and was taken for {close[0]!r}")
    return close[0]


def _tied(name: str, close: list[str]) -> bool:
    first, second = (difflib.SequenceMatcher(None, name, match).ratio() for match in close)
    return first == second


def respelled(
    document: ParsedFile,
    location: Location,
    given: Mapping[str, Any],
    known: Collection[str],
    findings: Findings,
) -> Placed:
    """Return the values of `given` under correctly spelt keys, each with file and line.

    `given` is the part of the document at `location`. Misspelt keys, and unknown ones, which are
    left out, are added to `findings`.
    """
    placed = {}
    for written, value in given.items():
        where = document.where((*location, written))
        if name := spelled(written, known, where, findings):
            placed[name] = value, where
    return placed


def apply_rules(
    given: Placed, rules: Mapping[str, KeyMapping], findings: Findings
) -> dict[str, JsonValue]:
    """Return another program's values as a plugin's options by name, or settings by dotted key.

    `given` has the values by the program's keys, and `rules` the mapping of each key. Keys and
    values without a counterpart are added to `findings`.
    """
    mapped: dict[str, JsonValue] = {}
    for written, (value, where) in given.items():
        key = spelled(written, rules, where, findings)
        if key is None:
            continue
        rule = rules[key]
        if rule.dropped:
            findings.drop(key, rule.dropped)
        elif rule.values is not None and _word(value) not in rule.values:
            findings.changed.append(
                f"{where}: {key}: {value!r} has no counterpart here, and was left out"
            )
        elif rule.values is not None:
            becomes = rule.values[_word(value)]
            mapped |= becomes if isinstance(becomes, dict) else {rule.to: becomes}
        elif value is not None:
            words = [*value.split()] if rule.listed and isinstance(value, str) else None
            mapped[rule.to] = value if words is None else [*words]
    return mapped


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
