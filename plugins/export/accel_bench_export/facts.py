"""Table rows on a plugin's counterparts in other programs, as `plugins show` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench_export.equivalents import Equivalent, declared
from accel_bench_export.writing import plain_text, settings_text


def equivalents(plugin: str) -> list[dict[str, Any]]:
    """Return a table row for each declared counterpart of a plugin. Raises ScenarioError."""
    return [
        {
            "program": names,
            "setting": settings_text(settings),
            "when": _condition(one),
            "note": one.note,
        }
        for one in declared(plugin)
        for names, settings in one.to.items()
        if settings or one.note
    ]


def _condition(one: Equivalent) -> str:
    """Return a condition in words, such as `backend: inductor or eager, not mode: default`."""
    held = [*_alternatives(one.when), *(f"not {text}" for text in _alternatives(one.unless))]
    return ", ".join(held)


def _alternatives(options: Mapping[str, JsonValue]) -> Iterator[str]:
    for key, value in options.items():
        values = value if isinstance(value, list) else [value]
        yield f"{key}: {' or '.join(map(plain_text, values))}"
