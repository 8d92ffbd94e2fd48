"""Overview of many runs: a row for each scenario, stack and sweep point, without samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from accel_bench.scenario.uses import TOKENS
from accel_bench_report.commands import RunLine


class OverviewRow(NamedTuple):
    """Runs of one stack at one sweep point of a scenario, on one device and with one origin."""

    scenario: str
    stack: str
    point: str
    """Tag or swept values of the sweep point; empty without a sweep."""

    device: str
    """Device of the runs; empty if unknown."""

    origin: str
    """`measured`, `exported` or `imported`."""

    endings: dict[str, int]
    """Number of runs by status, retried attempts left out."""

    speeds: tuple[tuple[str, float], ...]
    """UTC time of the first completed run and median tokens per second of each command, oldest
    first."""

    peak_memory_bytes: int | None
    """Median peak memory over completed runs."""

    newest: str
    """UTC time of the newest run, ISO 8601."""

    counts: str = TOKENS
    """Unit of work that is counted as tokens: `tokens`, `calls`, ..."""

    step_seconds: tuple[float, ...] = ()
    """Median over runs of the median step seconds, for each command."""


def overview(lines: Sequence[RunLine]) -> list[OverviewRow]:
    """Return a row for each scenario, sweep point, stack, kind of device and origin of runs.

    Only the last attempt of a run counts. Speeds are medians within a command and never averaged
    over commands, which differ in machines and versions.
    """
    groups: dict[tuple[str | None, ...], list[RunLine]] = {}
    for line in _last_attempts(lines):
        key = (line.scenario, line.sweep, line.stack, line.series, line.device, line.origin)
        groups.setdefault(key, []).append(line)
    return [_row(group) for group in groups.values()]


def _last_attempts(lines: Sequence[RunLine]) -> list[RunLine]:
    last: dict[tuple[str, str, str, str, int], RunLine] = {}
    for line in lines:
        key = (line.session, line.experiment_id, line.stack, line.sweep, line.round)
        if key not in last or line.attempt >= last[key].attempt:
            last[key] = line
    return list(last.values())


def _row(lines: Sequence[RunLine]) -> OverviewRow:
    first, completed = lines[0], [line for line in lines if line.completed]
    commands: dict[str, list[RunLine]] = {}
    for line in completed:
        if line.tokens_per_second:
            commands.setdefault(line.command, []).append(line)
    speeds = [
        (
            min(line.started_at for line in runs),
            median(line.tokens_per_second or 0.0 for line in runs),
        )
        for runs in commands.values()
    ]
    steps = [
        [line.median_step_seconds for line in runs if line.median_step_seconds]
        for runs in commands.values()
    ]
    peaks = [line.peak_memory_bytes for line in completed if line.peak_memory_bytes is not None]
    return OverviewRow(
        scenario=first.scenario,
        stack=first.stack,
        point=first.tag or ("" if first.sweep == "{}" else first.sweep),
        device=first.device or "",
        origin=first.origin,
        endings=dict(Counter(line.status for line in lines)),
        speeds=tuple(sorted(speeds)),
        peak_memory_bytes=round(median(peaks)) if peaks else None,
        newest=max(line.started_at for line in lines),
        counts=first.counts,
        step_seconds=tuple(median(seconds) for seconds in steps if seconds),
    )
