"""Read JSON with the same limits as YAML, and find the line and column of its keys."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import NoReturn

from accel_bench.documents.document import (
    MAXIMUM_DEPTH,
    MAXIMUM_DIGITS,
    Document,
    Location,
    check_plain,
    kind,
)
from accel_bench.errors import ScenarioError

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]|[^\s{}\[\],:"]+')


def load_json(text: str, source: str) -> Document:
    """Parse JSON; the standard library gives no places of values, so keys are found in the text."""
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
    places = _Places(text, source)
    places.read()
    document = Document(source, data, places.marks)
    check_plain(document, data, ())
    return document


def _integer(digits: str) -> int:
    # So many are refused with their place; int() itself refuses thousands without one.
    return int(digits[: MAXIMUM_DIGITS + 2])


class _Places:
    """Find the place of each key and list item in text that is valid JSON."""

    def __init__(self, text: str, source: str) -> None:
        self.marks: dict[Location, tuple[int, int]] = {}
        self._source = source
        self._tokens = _TOKEN.finditer(text)
        self._lines = [0, *(newline.end() for newline in re.finditer("\n", text))]

    def read(self) -> None:
        """Fill `marks`. Raises ScenarioError for a key that comes twice, and for deep nesting."""
        for token in self._tokens:
            self._value(token, ())

    def _value(self, token: re.Match[str], location: Location) -> None:
        if len(location) > MAXIMUM_DEPTH:
            self._fail(token, f"nested deeper than {MAXIMUM_DEPTH} levels")
        if token[0] == "{":
            self._object(location)
        elif token[0] == "[":
            self._list(location)

    def _object(self, location: Location) -> None:
        for token in self._tokens:
            if token[0] == "}":
                return
            if token[0] != ",":
                here = (*location, json.loads(token[0]))
                if here in self.marks:
                    first = self.marks[here][0]
                    self._fail(
                        token,
                        f"the key {here[-1]!r} stands here a second time (first in line {first})",
                    )
                self.marks[here] = self._place(token)
                self._value(next(self._tokens), here)

    def _list(self, location: Location) -> None:
        index = 0
        for token in self._tokens:
            if token[0] == "]":
                return
            if token[0] == ",":
                index += 1
                continue
            here = (*location, index)
            self.marks[here] = self._place(token)
            self._value(token, here)

    def _place(self, token: re.Match[str]) -> tuple[int, int]:
        line = bisect_right(self._lines, token.start())
        return line, token.start() - self._lines[line - 1] + 1

    def _fail(self, token: re.Match[str], problem: str) -> NoReturn:
        line, column = self._place(token)
        raise ScenarioError(f"{self._source}:{line}:{column}: {problem}")
