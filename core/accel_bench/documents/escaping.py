"""Escaping of untrusted text: control and invisible characters become visible escapes.

Messages of workers, names of plugins and stacks, and files and databases of other people can hold
escape sequences that move a terminal's cursor, direction overrides, and zero-width letters.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from enum import Enum
from io import StringIO
from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Beginnings of texts that spreadsheets take for formulas, East Asia's wide forms too."""


def plain(text: str) -> str:
    r"""Return text on one line: escapes for control characters, spaces for white space."""
    return printable(text, kept=" ")


def printable(text: str, kept: str = "\n\t ") -> str:
    r"""Return text with escapes such as `\x1b`, `\u202e` for control and format characters.
    Characters in `kept` stay; other white space becomes a blank."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in kept else _shown(char) for char in text)


def printable_json(text: str) -> str:
    """Return the same JSON document with control and format characters in its texts escaped."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else _json_escape(char) for char in text
    )


def spreadsheet_cell(value: Any) -> Any:
    """Return a number unchanged, any other value as text that no spreadsheet runs as a formula."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Mapping):
        value = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    if not isinstance(value, str):
        return value
    text = printable(value.replace("\r\n", "\n").replace("\r", "\n"))
    formula = text.startswith("\t") or text.lstrip().startswith(FORMULA_STARTS)
    return f"'{text}" if formula else text


def csv_line(cells: Iterable[Any]) -> str:
    """Return one line of a CSV file with its line end, escaping each cell by `spreadsheet_cell`."""
    output = StringIO(newline="")
    csv.writer(output, lineterminator="\n").writerow(map(spreadsheet_cell, cells))
    return output.getvalue()


def _shown(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def _json_escape(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(rf"\u{units[place : place + 4]}" for place in range(0, len(units), 4))
