"""Read files safely: limits, no tags, aliases or duplicate keys, a place for every key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

from accel_bench.documents.canonical import MAXIMUM_NUMBER
from accel_bench.documents.document import (
    MAXIMUM_DEPTH,
    MAXIMUM_DIGITS,
    Document,
    Location,
    check_plain,
    kind,
    place,
)
from accel_bench.documents.files import read_text
from accel_bench.documents.load_toml import load_toml
from accel_bench.errors import ScenarioError

__all__ = [
    "SUFFIXES",
    "Document",
    "Location",
    "load_file",
    "load_json",
    "load_yaml",
    "parse_value",
]

MAXIMUM_BYTES = 256 * 1024
"""A scenario is written by a person; nothing that large is one."""

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
"""Endings of the files that can be read."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)")
_PAIR = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w")
_WORDS = {
    **dict.fromkeys(("true", "True"), True),
    **dict.fromkeys(("false", "False"), False),
    **dict.fromkeys(("null", "~", ""), None),
}


def load_file(path: Path) -> Document:
    """Parse a file of SUFFIXES whose top level is a mapping.

    Raises ScenarioError that names file, line and column.
    """
    if path.suffix not in SUFFIXES:
        raise ScenarioError(f"{path}: a scenario file ends in .yaml, .yml, .toml or .json")
    text = read_text(path, MAXIMUM_BYTES, ScenarioError, ", which no scenario is")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ScenarioError(f"{path}:{line}:1: holds a NUL character; save it as UTF-8 text")
    parse = {".toml": load_toml, ".json": load_json}.get(path.suffix, load_yaml)
    return parse(text, str(path))


def load_yaml(text: str, source: str) -> Document:
    """Parse YAML text whose top level is a mapping; an empty one is an empty mapping."""
    marks: dict[Location, tuple[int, int]] = {}
    data = _Builder(text, source, marks).build()
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ScenarioError(f"{source}:1:1: expected keys and values, found {kind(data)}")
    return Document(source, data, marks)


def load_json(text: str, source: str) -> Document:
    """Parse JSON; the standard library gives no places, so the text is read as YAML for these."""
    try:
        data = json.loads(text if text.strip() else "{}", parse_int=_integer)
    except json.JSONDecodeError as error:
        raise ScenarioError(
            f"{source}:{error.lineno}:{error.colno}: {error.msg}; JSON has texts in double quotes, "
            "no comma behind the last item, and no comments"
        ) from error
    except RecursionError as error:
        raise ScenarioError(f"{source}: nested too deeply") from error
    if not isinstance(data, dict):
        raise ScenarioError(f"{source}:1:1: expected keys and values, found {kind(data)}")
    document = Document(source, data, load_yaml(_as_yaml(text), source).marks)
    check_plain(document, data, ())
    return document


def _integer(digits: str) -> int:
    # So many are refused with their place; int() itself refuses thousands without one.
    return int(digits[: MAXIMUM_DIGITS + 2])


def _as_yaml(text: str) -> str:
    """Return valid JSON as YAML has it: no tabs, and no character as two escapes."""
    return _PAIR.sub(lambda found: str(json.loads(f'"{found[0]}"')), text.replace("\t", " "))


def parse_value(text: str, source: str) -> Any:
    """Parse one YAML value, as `--set key=value` gives it."""
    if len(text) > MAXIMUM_BYTES:
        raise ScenarioError(f"{source}: the value is longer than {MAXIMUM_BYTES} bytes")
    return _Builder(text, source, {}).build()


class _Builder:
    """Build plain values from YAML's events, each checked before its children are read."""

    def __init__(self, text: str, source: str, marks: dict[Location, tuple[int, int]]) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events = yaml.parse(text, Loader=loader)
        self._text = text
        self._source = source
        self._marks = marks

    def build(self) -> Any:
        """Return the only document's value; None when there is none."""
        try:
            return self._document()
        except yaml.MarkedYAMLError as error:
            self._fail(error.problem_mark, error.problem or "not valid YAML")
        except yaml.reader.ReaderError as error:
            line, column = place(self._text, self._text.find(chr(error.character)))
            raise ScenarioError(f"{self._source}:{line}:{column}: {error.reason}") from error
        except UnicodeEncodeError as error:
            raise ScenarioError(f"{self._source}: not Unicode text") from error

    def _document(self) -> Any:
        value, seen = None, False
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if seen:
                    self._fail(event.start_mark, "a second document; a file holds one scenario")
                seen = True
            elif isinstance(event, yaml.NodeEvent):
                value = self._value(event, ())
        return value

    def _value(self, event: Any, location: Location) -> Any:
        if event.anchor is not None:
            what = "aliases (*name)" if isinstance(event, yaml.AliasEvent) else "anchors (&name)"
            problem = f"{what} are not allowed; use `extends` to share settings"
            self._fail(event.start_mark, problem)
        if event.tag is not None and event.tag != "!":
            self._fail(event.start_mark, f"the tag {event.tag} is not allowed; values are plain")
        if len(location) > MAXIMUM_DEPTH:
            self._fail(event.start_mark, f"nested deeper than {MAXIMUM_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(location)
        return self._mapping(location)

    def _sequence(self, location: Location) -> list[Any]:
        items: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            here = (*location, len(items))
            self._mark(here, event)
            items.append(self._value(event, here))
        return items

    def _mapping(self, location: Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event)
            here = (*location, key)
            if key in found:
                first = self._marks[here]
                self._fail(
                    event.start_mark,
                    f"the key {key!r} stands here a second time (first in line {first[0]})",
                )
            self._mark(here, event)
            found[key] = self._value(next(self._events), here)
        return found

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            self._fail(event.start_mark, "a key must be a plain word")
        return self._characters(event)

    def _characters(self, event: Any) -> str:
        # An escape can still put a NUL into it.
        if "\0" in event.value:
            self._fail(event.start_mark, "holds a NUL character")
        return str(event.value)

    def _scalar(self, event: Any) -> Any:
        text = self._characters(event)
        if event.style or event.tag == "!":
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            if (digits := len(text.lstrip("+-"))) > MAXIMUM_DIGITS:
                self._fail(event.start_mark, f"an integer of {digits} digits")
            return int(text)
        if _NOT_A_NUMBER.fullmatch(text):
            self._fail(event.start_mark, f"{text} is not a number that can be worked with")
        if _FLOAT.fullmatch(text):
            if abs(value := float(text)) >= MAXIMUM_NUMBER:
                self._fail(event.start_mark, f"{text[:30]} is too large")
            return value
        return text

    def _mark(self, location: Location, event: Any) -> None:
        self._marks[location] = (event.start_mark.line + 1, event.start_mark.column + 1)

    def _fail(self, mark: Any, problem: str) -> NoReturn:
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise ScenarioError(f"{self._source}{place}: {problem}")
