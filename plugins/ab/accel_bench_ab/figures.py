"""Numbers that a command prints or writes: `--metric NAME=REGEX` and `NAME=json:PATH`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accel_bench.result import Metric
from accel_bench_ab.plugin import ENGINE, CommandOptions

JSON = "json:"
"""Prefix of a path into a JSON document."""

OWN_METRICS = frozenset(
    {
        *("wall_seconds", "run_peak_rss_bytes", "peak_rss_bytes"),
        *("peak_memory_bytes", "peak_reserved_bytes"),
    }
)
"""Names of the metrics that every command has."""

MOST_OUTPUT_BYTES = 1 << 26
"""Maximum bytes at the end of the output that are searched."""


MOST_STARTS = 64
"""Maximum number of `{` of a line that are tried as the beginning of a JSON object."""


def figure_files(options: CommandOptions) -> dict[str, object]:
    """Return the state (inode, time of change, size) of each file with a figure, by file name.

    A missing file has the state None.
    """
    names = filter(None, map(_file_of, options.figures.values()))
    return {name: _state(Path(options.folder or ".") / name) for name in names}


def _file_of(where: str) -> str:
    """Return the file that a `--metric` text names; empty for the command's output."""
    return where.removeprefix(JSON).rpartition("#")[0] if where.startswith(JSON) else ""


def _state(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_figures(
    options: CommandOptions, output: Path, before: Mapping[str, object]
) -> Iterator[Metric]:
    """Yield a metric for each figure; a missing figure has a reason instead of a value.

    `output` is the file with the command's output. `before` has the states of files before the
    command, from `figure_files`; a file in the same state counts as not written.
    """
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - MOST_OUTPUT_BYTES))
        text = file.read().decode("utf8", "replace")
    for name, where in options.figures.items():
        folder = Path(options.folder or ".")
        value, reason = find_figure(where, text, folder)
        name_of_file = _file_of(where)
        unchanged = before.get(name_of_file) == _state(folder / name_of_file)
        if value is not None and name_of_file and unchanged:
            value, reason = None, f"{name_of_file} was not written by this run"
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
    """Return a figure's last value and an empty text, or None and the reason why it is missing.

    `where` is a regular expression that is searched in the output `text`, or `json:PATH` or
    `json:FILE#PATH`, with FILE relative to `folder`.
    """
    if where.startswith(JSON):
        name, _, path = where.removeprefix(JSON).rpartition("#")
        return _in_json(name, path, text, folder)
    matches = [*re.finditer(where, text, re.MULTILINE)]
    if not matches:
        return None, f"its output has nothing that matches {where!r}"
    match = matches[-1]
    groups = [group for group in match.groups() if group is not None]
    return _number(groups[0] if groups else match[0], where)


def _in_json(name: str, path: str, text: str, folder: Path) -> tuple[float | None, str]:
    """Return the number at a dotted path in a JSON document, and an empty text.

    The document is the file `name` in `folder`, or the last JSON object in the output `text` if
    `name` is empty. Returns None and the reason if there is no such number.
    """
    if name:
        try:
            document = json.loads((folder / name).read_text(encoding="utf8"))
        except (OSError, ValueError, RecursionError) as error:
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
    """Return the last JSON object that begins or ends a line of a text, or None.

    What stands before it on its line may be a progress bar.
    """
    found, end = None, 0
    for match in reversed([*re.finditer(r"^\{", text, re.MULTILINE)]):
        if decoded := _decoded(text, match.start()):
            found, end = decoded
            break
    for line in map(str.rstrip, reversed(re.split(r"[\r\n]", text[end:]))):
        starts = [brace.start() for brace in re.finditer(r"\{", line)] if line[-1:] == "}" else []
        for start in starts[:MOST_STARTS]:
            decoded = _decoded(line, start)
            if decoded and decoded[1] == len(line):
                return decoded[0]
    return found


def _decoded(text: str, start: int) -> tuple[Any, int] | None:
    """Return the JSON object that begins at `start` of a text, and its end; None for no object."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _number(value: Any, where: str) -> tuple[float | None, str]:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None, f"{str(value)[:80]!r} at {where} is no number"
    return (number, "") if math.isfinite(number) else (None, f"{where} is {value}")
