"""The result of parsing a file: plain values, and the line and column of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accel_bench.documents.canonical import MAXIMUM_NUMBER
from accel_bench.errors import ScenarioError

MAXIMUM_DEPTH = 32
"""Levels of nesting."""

MAXIMUM_DIGITS = 30
"""Digits of an integer."""

Location = tuple[str | int, ...]
"""Path of a value: keys of mappings, indexes of lists."""


@dataclass(frozen=True)
class Document:
    """A parsed file, with the line and column of every value."""

    source: str
    """The file's name, or what else the text came from."""

    data: dict[str, Any]
    """Mappings, lists, strings, numbers, booleans and None."""

    marks: dict[Location, tuple[int, int]] = field(default_factory=dict)
    """Line and column, from 1, of each key or list item."""

    def where(self, location: Location) -> str:
        """Return `file:line:column` of a value, or of the nearest enclosing one that is known."""
        for length in range(len(location), 0, -1):
            if mark := self.marks.get(tuple(location[:length])):
                return f"{self.source}:{mark[0]}:{mark[1]}"
        return self.source


def place(text: str, position: int) -> tuple[int, int]:
    """Return the line and column, from 1, of a position in a text."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def kind(value: Any) -> str:
    """Return the type of a value in words for a message."""
    return {"list": "a list", "str": "text", "NoneType": "nothing"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )


def check_plain(document: Document, value: Any, location: Location) -> None:
    """Refuse what TOML or JSON has and a scenario does not: dates, infinity, many digits or levels.

    Raises ScenarioError with the place.
    """
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
