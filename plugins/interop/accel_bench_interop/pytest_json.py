"""Reader of pytest-benchmark's JSON: a row for each benchmark, with its raw rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench.interchange import UNKNOWN, Format, ImportedRow, SourceFile
from accel_bench_interop import parse

KNOWN: Mapping[str, tuple[str, ...]] = {
    "median": ("median_seconds_per_call", "seconds", "global", "lower"),
    "mean": ("mean_seconds_per_call", "seconds", "global", "lower"),
    "min": ("smallest_seconds_per_call", "seconds", "global", "lower"),
    "max": ("largest_seconds_per_call", "seconds", "global", "lower"),
    "stddev": ("seconds_per_call_standard_deviation", "seconds", "global"),
    "iqr": ("seconds_per_call_interquartile_range", "seconds", "global"),
    "ops": ("calls_per_second", "1/s", "global", "higher"),
    "rounds": ("rounds", "1", "global"),
    "iterations": ("calls_per_round", "1", "global"),
}
"""Figures of a benchmark by key of `stats`."""


def recognizes(source: SourceFile) -> bool:
    """Return whether a file lists benchmarks and describes a machine, as pytest-benchmark's do."""
    document = source.json or {}
    return isinstance(document.get("benchmarks"), list) and "machine_info" in document


def read(source: SourceFile) -> Iterator[ImportedRow]:
    """Yield a row with the statistics of each benchmark."""
    document = source.json
    for benchmark in document["benchmarks"]:
        yield _row(benchmark, document)


def _row(benchmark: Mapping[str, Any], found: Mapping[str, Any]) -> ImportedRow:
    stats = benchmark["stats"]
    machine = found["machine_info"] or {}
    cpu = machine.get("cpu") or {}
    facts = (machine.get("node"), cpu.get("brand_raw"), machine.get("system"))
    commit = (found.get("commit_info") or {}).get("id")
    notes = ["seconds are those of one call: a round's divided by its calls"]
    if commit:
        notes.append(f"measured at commit {parse.one_line(commit)[:40]}")
    return ImportedRow(
        key=parse.one_line(benchmark["fullname"]),
        scenario=parse.one_line(benchmark.get("group") or benchmark["name"].partition("[")[0]),
        stack=parse.one_line(benchmark.get("param") or benchmark["name"] or UNKNOWN),
        metrics=parse.figures(stats, KNOWN),
        corrections=notes,
        series={"seconds_per_call": parse.raw_numbers(stats.get("data"), "stats.data")},
        machine=", ".join(parse.one_line(fact) for fact in facts if fact),
        started_at=parse.utc_time(parse.one_line(found.get("datetime") or ""), notes),
        seconds=_seconds(stats),
    )


def _seconds(stats: Mapping[str, Any]) -> float | None:
    """Return the seconds of all calls in all rounds, or None if unknown."""
    total, calls = parse.number(stats.get("total")), parse.number(stats.get("iterations"))
    return None if total is None else total * (calls or 1.0)


FORMAT = Format(description="JSON of pytest-benchmark", recognizes=recognizes, read=read)
