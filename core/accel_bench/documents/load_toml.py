"""Parsing of TOML within the limits of the YAML parser, with the line and column of each key."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Any

from accel_bench.documents.load import (
    MAXIMUM_DEPTH,
    Location,
    ParsedFile,
    check_plain,
    place,
)
from accel_bench.errors import ScenarioError

# A quoted part is short here, so that no text makes the search for endless keys slow.
_PART = r"""(?:[\w\-]+|"(?:[^"\\\n]|\\.){0,200}"|'[^'\n]{0,200}')"""
_DOT = r"[ \t]*\.[ \t]*"
_KEY = rf"({_PART}(?:{_DOT}{_PART})*)[ \t]*"
_ENTRY = re.compile(rf"\s*{_KEY}=")
_HEADER = re.compile(rf"\s*(\[\[?)[ \t]*{_KEY}\]\]?\s*(?:#.*)?$")
_ENDLESS_KEY = re.compile(rf"(?<![\w\-\\]){_PART}(?:{_DOT}{_PART}){{{MAXIMUM_DEPTH}}}")


def load_toml(text: str, source: str) -> ParsedFile:
    """Return the content of a TOML text, with the line and column of each key. Raises ScenarioError
    for invalid TOML; `source` names the text in messages."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    # The library's time and memory grow with the square of a dotted key's length.
    if dotted := _ENDLESS_KEY.search(text):
        line, column = place(text, dotted.start())
        raise ScenarioError(f"{source}:{line}:{column}: nested deeper than {MAXIMUM_DEPTH} levels")
    try:
        data = tomllib.loads(text + "\n")
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"line (\d+), column (\d+)", str(error))
        line, column = map(int, match.groups()) if match else place(text, len(text))
        problem = str(error).partition(" (at ")[0]
        raise ScenarioError(
            f"{source}:{line}:{column}: {problem}; correct this place (texts in quotes, a line for "
            "each key, each table once), or write the scenario as YAML"
        ) from error
    except (RecursionError, ValueError) as error:
        raise ScenarioError(
            f"{source}: nested too deeply, or a number too long: {error}"
        ) from error
    document = ParsedFile(source, data, _marks(text, data))
    check_plain(document, data, ())
    return document


def _marks(text: str, data: dict[str, Any]) -> dict[Location, tuple[int, int]]:
    """Return the line and column of each `[table]`, `[[table]]` and `key =` by its path; keys in
    inline tables are left out. `data` is the parsed text: a header counts only if its first key is
    in `data`, since a line inside a list can look like a header."""
    marks: dict[Location, tuple[int, int]] = {}
    table: Location = ()
    seen: Counter[Location] = Counter()
    for number, line in enumerate(text.split("\n"), start=1):
        if (header := _HEADER.match(line)) and _path(header[2])[0] in data:
            table = _path(header[2])
            if header[1] == "[[":
                seen[table] += 1
                table = (*table, seen[table] - 1)
            marks.setdefault(table, (number, header.start(1) + 1))
        elif entry := _ENTRY.match(line):
            marks.setdefault((*table, *_path(entry[1])), (number, entry.start(1) + 1))
    return marks


def _path(text: str) -> Location:
    return tuple(part.strip("\"'") for part in re.findall(_PART, text))
