"""Table rows on a plugin's counterparts in other programs, as `plugins show` lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench_export.equivalents import Equivalent, declared
from accel_bench_export.writing import plain_text, settings_text


def equivalents(plugin: str) -> list[dict[str, Any]]:
    """Return table rows for a plugin's counterparts: program, setting, condition, note.

    Raises ScenarioError for an unusable file.
    """
    return [
        {
            "program": names,
            "setting": settings_text(settings),
            "when": _condition(equivalent),
            "note": equivalent.note,
        }
        for equivalent in declared(plugin)
        for names, settings in equivalent.to.items()
        if settings or equivalent.note
    ]


def _condition(one: Equivalent) -> str:
    """Return an equivalent's condition in words, such as `backend: inductor or eager`."""
    held = [*_alternatives(one.when), *(f"not {text}" for text in _alternatives(one.unless))]
    return ", ".join(held)


def _alternatives(options: Mapping[str, JsonValue]) -> Iterator[str]:
    for key, value in options.items():
        values = value if isinstance(value, list) else [value]
        yield f"{key}: {' or '.join(map(plain_text, values))}"
