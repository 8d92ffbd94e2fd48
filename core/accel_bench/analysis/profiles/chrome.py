"""Read a Chrome trace of torch's profiler back into spans."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accel_bench.analysis.profiles.spans import KINDS, Cycle, Span, in_order
from accel_bench.errors import AccelBenchError


def read_trace(path: Path) -> Cycle:
    """Return the spans of a trace, compressed or not. Raises AccelBenchError for another file."""
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf8") as file:
            events = json.load(file)["traceEvents"]
        return Cycle(in_order(_spans(events)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AccelBenchError(f"{path} is no trace of torch's profiler: {error}") from error


def _spans(events: list[Mapping[str, Any]]) -> Iterator[Span]:
    for event in events:
        kind = KINDS.get(event.get("cat", ""))
        if kind is None or event.get("ph") != "X":
            continue
        arguments = event.get("args", {})
        start = round(event["ts"] * 1000)
        yield Span(
            name=event["name"],
            kind=kind,
            start=start,
            end=start + round(event.get("dur", 0) * 1000),
            lane=event["tid"] if isinstance(event["tid"], int) else 0,
            correlation=int(arguments.get("correlation", 0)),
            sequence=int(arguments.get("Sequence number", -1)),
        )
