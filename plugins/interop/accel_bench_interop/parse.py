"""Parsers for values of imported files: figures, numbers, times; invalid values become None."""

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
"""Maximum characters of a scenario's or a stack's name."""

Scope: TypeAlias = Literal["rank", "device", "global"]
Better: TypeAlias = Literal["lower", "higher", "neither"]

Settings: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""Key in a file, and parser of its value, by dotted key of a scenario."""


def figure(
    name: str,
    value: object,
    unit: str,
    scope: Scope = "global",
    better: Better = "neither",
) -> Metric:
    """Return a metric; an invalid number becomes null, with the file's text as the reason."""
    known = number(value)
    reason = "" if known is not None else f"the file has {json.dumps(value, default=str)[:60]}"
    return Metric(name=name, value=known, unit=unit, scope=scope, better=better, reason=reason)


def figures(found: Mapping[str, Any], known: Mapping[str, tuple[str, ...]]) -> list[Metric]:
    """Return a metric for each value in `found` whose key is in `known`.

    `known` has, for each key, the metric's name, unit, scope and better direction.
    """
    return [
        figure(name, found[key], *rest)  # type: ignore[arg-type]
        for key, (name, *rest) in known.items()
        if found.get(key) is not None
    ]


def settings(found: Mapping[str, Any], known: Settings) -> dict[str, Any]:
    """Return the scenario settings that a file states, by dotted key, without invalid values.

    `found` has the file's values. `known` has, for each setting, its key in the file and a parser.
    """
    read = {key: reader(found.get(their)) for key, (their, reader) in known.items()}
    return {key: value for key, value in read.items() if value is not None}


def as_stated(value: Any) -> Any:
    """Return a value of a file unchanged."""
    return value


def one_of(*words: str) -> Callable[[Any], Any]:
    """Return a parser that accepts some words, and returns None for all others."""
    return lambda value: value if value in words else None


def number(value: object) -> float | None:
    """Return a number, or a text that states a number, as a finite float; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        return None
    return parsed if abs(parsed) < MAXIMUM_NUMBER else None


def raw_numbers(values: object, name: str) -> Sequence[float | None]:
    """Return a list as a tuple of floats, empty for null, with None for invalid numbers.

    Raises ValueError with the `name` of the list for other values.
    """
    if not isinstance(values, list | None):
        raise ValueError(
            f"{name} is {json.dumps(values, default=str)[:60]}, and no list of numbers"
        )
    return tuple(map(number, values or ()))


def positive_integer(value: object) -> int | None:
    """Return a value as a positive integer, or None if it states no positive integer."""
    parsed = number(value)
    return int(parsed) if parsed is not None and parsed >= 1 and parsed == int(parsed) else None


def one_line(value: object) -> str:
    """Return a value as one line of text, with single spaces."""
    return re.sub(r"\s+", " ", str(value)).strip()


def utc_time(text: str, corrections: list[str]) -> str:
    """Convert a date to UTC in ISO 8601; return an empty text and add a correction if invalid."""
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
    """Return a valid name for a scenario or a stack; different texts get different names."""
    name = slug(text)
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}-{digest(text, 8)}"
    return name if name[:1].isalnum() and name.isascii() else f"x{name}"[:LONGEST_NAME]
