"""What readers of files make of their values: figures, numbers, times; None for what is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from accel_bench.documents.canonical import MAXIMUM_NUMBER, digest
from accel_bench.documents.files import slug
from accel_bench.result import Metric

LONGEST_NAME = 64
"""Characters of a scenario's or a stack's name."""

Scope: TypeAlias = Literal["rank", "device", "global"]
Better: TypeAlias = Literal["lower", "higher", "neither"]

Settings: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""Keys of a file, with what reads their values, by dotted key of a scenario."""


def figure(
    name: str,
    value: object,
    unit: str,
    scope: Scope = "global",
    better: Better = "neither",
) -> Metric:
    """Return a figure; one that is no finite number is null, with what the file has there."""
    known = number(value)
    reason = "" if known is not None else f"the file has {json.dumps(value, default=str)[:60]}"
    return Metric(name=name, value=known, unit=unit, scope=scope, better=better, reason=reason)


def figures(found: Mapping[str, Any], known: Mapping[str, tuple[str, ...]]) -> list[Metric]:
    """Return a figure for each key that is there; `known` are the arguments of `figure` by key."""
    return [
        figure(name, found[key], *rest)  # type: ignore[arg-type]
        for key, (name, *rest) in known.items()
        if found.get(key) is not None
    ]


def settings(found: Mapping[str, Any], known: Settings) -> dict[str, Any]:
    """Return what a file states of the work; what reads as None is left out."""
    read = {key: reader(found.get(their)) for key, (their, reader) in known.items()}
    return {key: value for key, value in read.items() if value is not None}


def as_stated(value: Any) -> Any:
    """Return a value as the file has it."""
    return value


def one_of(*words: str) -> Callable[[Any], Any]:
    """Return what reads one of these words, and None for any other value."""
    return lambda value: value if value in words else None


def number(value: object) -> float | None:
    """Return a finite number as a float, a text that is one too; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) < MAXIMUM_NUMBER else None


def raw_numbers(values: object, name: str) -> Sequence[float | None]:
    """Return the numbers of a list of a file, none for null. Raises ValueError for no list."""
    if not isinstance(values, list | None):
        raise ValueError(
            f"{name} is {json.dumps(values, default=str)[:60]}, and no list of numbers"
        )
    return tuple(map(number, values or ()))


def positive_integer(value: object) -> int | None:
    """Return a positive whole number, None for anything else."""
    found = number(value)
    return int(found) if found is not None and found >= 1 and found == int(found) else None


def one_line(value: object) -> str:
    """Return a value of a file as one line of text."""
    return re.sub(r"\s+", " ", str(value)).strip()


def utc_time(text: str, corrections: list[str]) -> str:
    """Return a date of a file as UTC, ISO 8601; empty, with a correction, where it is none."""
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
            corrections.append(f"the file's date {text} names no time zone: it is taken for UTC")
        return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        corrections.append(f"the file's date {text[:40]!r} cannot be read")
        return ""


def short_name(text: str) -> str:
    """Return a name that a scenario or a stack may have; different texts stay different."""
    name = slug(text)
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}-{digest(text, 8)}"
    return name if name[:1].isalnum() and name.isascii() else f"x{name}"[:LONGEST_NAME]
