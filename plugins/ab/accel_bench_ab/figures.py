"""Figures printed or written by a command: `--metric NAME=REGEX` and `NAME=json:PATH`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel_bench.result import Metric
from accel_bench_ab.plugin import ENGINE, CommandOptions

JSON = "json:"
"""Prefix of a path into a JSON document."""

MOST_OUTPUT_BYTES = 1 << 26
"""Maximum bytes at the end of the output that are searched."""


def read_figures(options: CommandOptions, output: Path) -> Iterator[Metric]:
    """Yield a metric for each figure, with a reason instead of a value if it is missing."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - MOST_OUTPUT_BYTES))
        text = file.read().decode("utf8", "replace")
    for name, where in options.figures.items():
        value, reason = find_figure(where, text, Path(options.folder or "."))
        better: Any = "higher" if name in options.higher else "lower"
        yield Metric(
            name=name,
            value=value,
            unit="1",
            scope="global",
            better=better,
            plugin=ENGINE,
            reason=reason,
        )


def find_figure(where: str, text: str, folder: Path) -> tuple[float | None, str]:
    """Return the last value of a figure in a command's output or file; else None and the reason."""
    if where.startswith(JSON):
        name, _, path = where.removeprefix(JSON).rpartition("#")
        return _in_json(name, path, text, folder)
    matches = [*re.finditer(where, text, re.MULTILINE)]
    if not matches:
        return None, f"its output has nothing that matches {where!r}"
    found = matches[-1]
    return _number(found[1] if found.re.groups else found[0], where)


def _in_json(name: str, path: str, text: str, folder: Path) -> tuple[float | None, str]:
    """Return the number at a dotted path in a JSON file, or in the last printed JSON object."""
    if name:
        try:
            document = json.loads((folder / name).read_text(encoding="utf8"))
        except (OSError, ValueError) as error:
            return None, f"{name} could not be read: {error}"
    else:
        document = last_object(text)
    if document is None:
        return None, "its output holds no JSON object"
    for key in path.split("."):
        try:
            document = document[int(key)] if isinstance(document, list) else document[key]
        except (KeyError, IndexError, ValueError, TypeError):
            return None, f"its JSON has no {path}"
    return _number(document, path)


def last_object(text: str) -> Any:
    """Return the last JSON object of a text that starts a line; None without any."""
    decoder = json.JSONDecoder()
    for start in reversed([found.start() for found in re.finditer(r"^\{", text, re.MULTILINE)]):
        try:
            return decoder.raw_decode(text, start)[0]
        except ValueError:
            continue
    return None


def _number(value: Any, where: str) -> tuple[float | None, str]:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None, f"{value!r} at {where} is no number"
    return (number, "") if math.isfinite(number) else (None, f"{where} is {value}")
