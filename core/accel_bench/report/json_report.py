"""The summaries as JSON: one object for one scenario, a list of objects for several."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from accel_bench.analysis.schema import Summary


def render_json(summaries: Sequence[Summary]) -> str:
    """Return one JSON document; a number that is not finite is null in it."""
    if len(summaries) == 1:
        return summaries[0].model_dump_json(indent=2) + "\n"
    document = TypeAdapter(list[Summary]).dump_json(list(summaries), indent=2)
    return document.decode() + "\n"
