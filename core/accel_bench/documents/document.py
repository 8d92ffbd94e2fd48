"""The result of parsing a file: plain values, and the line and column of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
