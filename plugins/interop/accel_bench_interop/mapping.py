"""The tables by which another program's settings become ours: data files, one for each program."""

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
"""Likeness from which an unknown key is taken for a misspelt one."""

Placed: TypeAlias = dict[str, tuple[Any, str]]
"""Values by key, each with its place: the file and the line."""


class Rule(Frozen):
    """What becomes of one key."""

    to: str = ""
    """Option of the plugin, or dotted key of a scenario."""

    values: dict[str, JsonValue] | None = None
    """What each value becomes; a mapping holds options by name. Others have no counterpart."""

    listed: bool = False
    """True if a text is a list of words."""

    dropped: str = ""
    """Why it is left out."""


class Stanza(Frozen):
    """What becomes of one part of a configuration: a use of a plugin."""

    use: str
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options that it always has."""

    keys: dict[str, Rule] = Field(default_factory=dict)


class Mapped(Frozen):
    """A whole table."""

    stanzas: dict[str, Stanza] = Field(default_factory=dict)
    """By dotted path, in the order in which plugins act."""

    arguments: dict[str, Rule] = Field(default_factory=dict)
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that hold where no argument says otherwise, by dotted key."""

    parallel: dict[str, str] = Field(default_factory=dict)

    families: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Settings of the families of models that there is one task for, by dotted key."""


@dataclass
class Findings:
    """What a conversion has to say, each a sentence with the file and the line."""

    wrong: list[str] = field(default_factory=list)
    """Names that are misspelt, and those that lead nowhere."""

    changed: list[str] = field(default_factory=list)
    """What has no counterpart."""

    dropped: dict[str, list[str]] = field(default_factory=dict)
    """Keys that were left out, by reason."""

    def lines(self) -> list[str]:
        """Return every finding once: what is wrong, what has no counterpart, what is left out."""
        left_out = [f"left out: {', '.join(k)} ({why})" for why, k in self.dropped.items()]
        return list(dict.fromkeys([*self.wrong, *self.changed, *left_out]))

    def drop(self, key: str, reason: str) -> None:
        """Add a key that was left out."""
        keys = self.dropped.setdefault(reason, [])
        if key not in keys:
            keys.append(key)


def read_mapping(name: str) -> Mapped:
    """Read a shipped table."""
    document = load_file(TABLES / f"{name}.yaml")
    return validate(Mapped, document.data, document.where, ScenarioError)


def spelled(name: str, known: Collection[str], where: str, findings: Findings) -> str | None:
    """Return a name as it is known, None for an unknown one; a misspelt one is reported."""
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, 2, CLOSE)
    if len(close) != 1 and (len(close) < 2 or _tied(name, close)):
        findings.wrong.append(f"{where}: nothing is called {name!r}{did_you_mean(name, known)}")
        return None
    findings.wrong.append(f"{where}: {name!r} is misspelt, and was taken for {close[0]!r}")
    return close[0]


def _tied(name: str, close: list[str]) -> bool:
    first, second = (difflib.SequenceMatcher(None, name, one).ratio() for one in close)
    return first == second


def respelled(
    document: ParsedFile,
    location: Location,
    given: Mapping[str, Any],
    known: Collection[str],
    findings: Findings,
) -> Placed:
    """Return the values at a location by the names that are known, each with its place."""
    found = {}
    for written, value in given.items():
        where = document.where((*location, written))
        if name := spelled(written, known, where, findings):
            found[name] = value, where
    return found


def apply_rules(
    given: Placed, rules: Mapping[str, Rule], findings: Findings
) -> dict[str, JsonValue]:
    """Return what keys become: options, or settings by dotted key."""
    found: dict[str, JsonValue] = {}
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
            found |= becomes if isinstance(becomes, dict) else {rule.to: becomes}
        elif value is not None:
            words = [*value.split()] if rule.listed and isinstance(value, str) else None
            found[rule.to] = value if words is None else [*words]
    return found


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
