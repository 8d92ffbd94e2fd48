"""Safe parsing of YAML, JSON and single values, without tags, aliases and duplicate keys."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from accel_bench.documents.canonical import MAXIMUM_NUMBER
from accel_bench.documents.files import read_text
from accel_bench.errors import ScenarioError

MAXIMUM_BYTES = 256 * 1024
"""Size limit of a file in bytes; files are written by people."""

MAXIMUM_DEPTH = 32
"""Largest depth of nesting."""

MAXIMUM_DIGITS = 30
"""Largest number of digits of an integer."""

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
"""Endings of readable files."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)")
_PAIR = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w")
_WORDS = {
    **dict.fromkeys(("true", "True"), True),
    **dict.fromkeys(("false", "False"), False),
    **dict.fromkeys(("null", "~", ""), None),
}


Location = tuple[str | int, ...]
"""Path of a value within a document: keys of mappings, indexes of lists."""


@dataclass(frozen=True)
class ParsedFile:
    """Parsed file with the line and column of every value."""

    source: str
    """Name of the file, or a description of the text's other origin."""

    data: dict[str, Any]
    """Content: mappings, lists, strings, numbers, booleans and None."""

    marks: dict[Location, tuple[int, int]] = field(default_factory=dict)
    """Line and column, from 1, of each key or list item."""

    def where(self, location: Location) -> str:
        """Return `file:line:column` of the value at a path, or of the nearest value around it."""
        for length in range(len(location), 0, -1):
            if mark := self.marks.get(tuple(location[:length])):
                return f"{self.source}:{mark[0]}:{mark[1]}"
        return self.source


def place(text: str, position: int) -> tuple[int, int]:
    """Return the line and column, from 1, of the character at index `position` in a text."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def kind(value: Any) -> str:
    """Return the name of a value's type for an error message, such as `a list`."""
    return {"list": "a list", "str": "text", "NoneType": "nothing"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )


def check_plain(document: ParsedFile, value: Any, location: Location) -> None:
    """Raise ScenarioError if `value` or a value inside it may not stand in a scenario, although
    TOML or JSON allow it: a date, infinity, an integer of many digits, deep nesting. `location` is
    the path of `value` in `document`; the message begins with the file and the line."""
    problem = None
    if len(location) > MAXIMUM_DEPTH:
        problem = f"nested deeper than {MAXIMUM_DEPTH} levels"
    elif isinstance(value, dict):
        for key, item in value.items():
            check_plain(document, key, (*location, key))
            check_plain(document, item, (*location, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_plain(document, item, (*location, index))
    elif not isinstance(value, str | int | float | None):
        problem = f"{kind(value)} is not a value of a scenario"
    elif isinstance(value, float) and not abs(value) < MAXIMUM_NUMBER:
        problem = f"{value} is not a number that can be worked with"
    elif isinstance(value, int) and abs(value) >= 10**MAXIMUM_DIGITS:
        problem = f"an integer of more than {MAXIMUM_DIGITS} digits"
    elif isinstance(value, str) and "\0" in value:
        problem = "holds a NUL character"
    elif isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        problem = "holds half a character; write it whole, not as an escape"
    if problem:
        raise ScenarioError(f"{document.where(location)}: {problem}")


def load_file(path: Path) -> ParsedFile:
    """Return the parsed content of a file whose name ends in one of SUFFIXES.

    Raises ScenarioError with file, line and column if the content is invalid or no mapping.
    """
    if path.suffix not in SUFFIXES:
        raise ScenarioError(f"{path}: a scenario file ends in .yaml, .yml, .toml or .json")
    text = read_text(path, MAXIMUM_BYTES, ScenarioError, ", which no scenario is")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ScenarioError(f"{path}:{line}:1: holds a NUL character; save it as UTF-8 text")
    from accel_bench.documents.load_toml import load_toml

    parse = {".toml": load_toml, ".json": load_json}.get(path.suffix, load_yaml)
    return parse(text, str(path))


def load_yaml(text: str, source: str) -> ParsedFile:
    """Return the mapping in a YAML text; it is empty for an empty text. Raises ScenarioError if the
    text is invalid or no mapping; `source` names the text in messages."""
    marks: dict[Location, tuple[int, int]] = {}
    data = _Builder(text, source, marks).build()
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ScenarioError(f"{source}:1:1: expected keys and values, found {kind(data)}")
    return ParsedFile(source, data, marks)


def load_json(text: str, source: str) -> ParsedFile:
    """Return the mapping in a JSON text, with the line and column of each key. Raises ScenarioError
    if the text is invalid or no mapping; `source` names the text in messages."""
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
    document = ParsedFile(source, data, load_yaml(_as_yaml(text), source).marks)
    check_plain(document, data, ())
    return document


def _integer(digits: str) -> int:
    # So many are refused with their place; int() itself refuses thousands without one.
    return int(digits[: MAXIMUM_DIGITS + 2])


def _as_yaml(text: str) -> str:
    """Return a JSON text as equivalent YAML: without tabs and without escaped surrogate pairs."""
    return _PAIR.sub(lambda match: str(json.loads(f'"{match[0]}"')), text.replace("\t", " "))


def parse_value(text: str, source: str) -> Any:
    """Return the value of a YAML text, such as VALUE in `--set key=VALUE`. Raises ScenarioError for
    invalid YAML; `source` names the text in messages."""
    if len(text) > MAXIMUM_BYTES:
        raise ScenarioError(f"{source}: the value is longer than {MAXIMUM_BYTES} bytes")
    return _Builder(text, source, {}).build()


class _Builder:
    """Builder of Python values from YAML's events; it checks a list before the items inside it."""

    def __init__(self, text: str, source: str, marks: dict[Location, tuple[int, int]]) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events = yaml.parse(text, Loader=loader)
        self._text = text
        self._source = source
        self._marks = marks

    def build(self) -> Any:
        """Return the value of the only YAML document, or None for an empty text."""
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
        items: dict[str, Any] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event)
            here = (*location, key)
            if key in items:
                first = self._marks[here]
                self._fail(
                    event.start_mark,
                    f"the key {key!r} stands here a second time (first in line {first[0]})",
                )
            self._mark(here, event)
            items[key] = self._value(next(self._events), here)
        return items

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
