"""The largest value of a key that fits in memory: what to try next, and what the tries show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from accel_bench.analysis.metrics.memory import peak_memory
from accel_bench.analysis.metrics.offered_load import compared_seconds, is_saturated, offered_rate
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.wording import count, milliseconds, rate_interval, size
from accel_bench.documents.base import Frozen
from accel_bench.result import Result, Status

Fits: TypeAlias = Literal["fits", "does not fit", "failed"]
"""What a value showed; `failed` is every ending that says nothing about memory."""


class FitPoint(Frozen):
    """One value of the key."""

    value: int
    """The value."""

    outcome: Fits
    """What it showed."""

    status: Status | None = None
    """How its run ended; null where it was not run."""

    reason: str = ""
    """Why it does not fit, or failed."""

    run_id: str = ""
    """Its stored run; empty where it was not run."""

    stored: bool = False
    """True if an earlier run was counted, and it was not run again."""

    tokens_per_second: Interval | None = None
    """Real tokens per second of all devices; an interval where there were several rounds."""

    offered_rate: float | None = None
    """Requests that arrived per second; null where they arrived at no rate."""

    request_seconds: Interval | None = None
    """Latency of the median request: what is compared where requests arrive at a rate."""

    saturated: bool = False
    """True if requests piled up, so that latencies say how long was measured."""

    peak_memory_bytes: int | None = None
    """Largest of all ranks, per device."""

    seconds: float = 0.0
    """Wall-clock seconds of its runs."""


class SearchRange(Frozen):
    """Range in which values are looked for."""

    start: int
    """The first value to try."""

    most: int | None = None
    """The largest value to try; null where only memory ends the search."""

    step: int = 1
    """Distance of the values at which the search ends."""


class FitReport(Document):
    """The document of `accel-bench fit`."""

    scenario: str
    """Name of the scenario."""

    stack: str
    """The stack that was run."""

    key: str
    """The key that was varied."""

    range: SearchRange
    """Range in which values were looked for."""

    points: tuple[FitPoint, ...]
    """Every value that was tried, in that order."""

    largest: FitPoint | None
    """The largest value that fits."""

    refused: FitPoint | None
    """The smallest value above it that does not."""

    failed: FitPoint | None
    """The value that ended the search although it says nothing about memory."""

    answer: str
    """All of that in a sentence."""

    notes: tuple[str, ...] = ()
    """What was changed for the search."""

    @property
    def exit_code(self) -> int:
        """What the program exits with: 0 where a value fits and nothing else ended the search."""
        return 0 if self.largest and not self.failed else 1


def fit_point(value: int, results: Sequence[Result], stored: bool = False) -> FitPoint:
    """Return what the runs of a value show: it fits where none of them ran out of memory."""
    full = [run for run in results if run.status is Status.OOM]
    last = full[-1] if full else results[-1]
    completed = [run for run in results if run.status.completed]
    outcomes: dict[bool, Fits] = {True: "fits", False: "failed"}
    outcome = "does not fit" if full else outcomes[last.status.completed]
    speeds = [(run, speed) for run in completed if (speed := run_throughput(run))]
    requests_per_second = offered_rate(last.experiment.scenario)
    latencies = [compared_seconds(*one) for one in speeds] if requests_per_second else []
    return FitPoint(
        value=value,
        outcome=outcome,
        status=last.status,
        reason="" if outcome == "fits" else _why(last, len(completed), len(results)),
        run_id=last.run_id,
        stored=stored,
        tokens_per_second=geometric_interval([speed.tokens_per_second for _, speed in speeds]),
        offered_rate=requests_per_second,
        request_seconds=geometric_interval([one for one in latencies if one is not None]),
        saturated=any(map(is_saturated, completed)),
        peak_memory_bytes=peak_memory(completed)[0],
        seconds=sum(run.seconds for run in results),
    )


def _why(run: Result, completed: int, runs: int) -> str:
    """Return why a run did not complete, and that others did."""
    beside = f"it fits in {completed} of {count(runs, 'round')}: " if completed else ""
    return beside + "; ".join(run.reasons)


def next_value(points: Sequence[FitPoint], where: SearchRange) -> int | None:
    """Return the value to try next; None where the answer is known, or a value has failed.

    Values are doubled from the start until one does not fit, or halved until one does; then the
    gap is halved. No value above one that does not fit is ever tried.
    """
    if not points:
        return where.start
    if any(one.outcome == "failed" for one in points):
        return None
    low, high = _largest(points), _refused(points)
    if high is None:
        assert low is not None
        more = 2 * low.value if where.most is None else min(2 * low.value, where.most)
        return more if more > low.value else None
    if low is None:
        return max(high.value // 2, 1) if high.value > 1 else None
    gap = high.value - low.value
    return low.value + max(gap // 2 // where.step, 1) * where.step if gap > where.step else None


def fit_report(
    scenario: str, stack: str, key: str, where: SearchRange, points: Sequence[FitPoint]
) -> FitReport:
    """Return what all tries of a search show."""
    largest, refused = _largest(points), _refused(points)
    failed = next((one for one in points if one.outcome == "failed"), None)
    return FitReport(
        scenario=scenario,
        stack=stack,
        key=key,
        range=where,
        points=tuple(points),
        largest=largest,
        refused=refused,
        failed=failed,
        answer=f"{stack}: {_answer(key, largest, refused, failed)}.",
    )


def _largest(points: Sequence[FitPoint]) -> FitPoint | None:
    fitting = (one for one in points if one.outcome == "fits")
    return max(fitting, key=lambda one: one.value, default=None)


def _refused(points: Sequence[FitPoint]) -> FitPoint | None:
    """Return the smallest value that does not fit, of those above all that do."""
    low = _largest(points)
    above = (
        one
        for one in points
        if one.outcome == "does not fit" and (low is None or one.value > low.value)
    )
    return min(above, key=lambda one: one.value, default=None)


def _answer(key: str, low: FitPoint | None, high: FitPoint | None, failed: FitPoint | None) -> str:
    """Return the largest value that fits, and what ended the search."""
    fits = f"{low.value:,}{_figures(low)}" if low else ""
    if failed:
        so_far = f"{fits} fits" if low else "no value was seen to fit"
        return (
            f"the search for the largest {key} ended at {failed.value:,}, which failed for another "
            f"reason than memory ({failed.status.value if failed.status else 'failed'}: "
            f"{failed.reason}); {so_far}"
        )
    if low is None:
        assert high is not None
        return f"not even {key} = {high.value:,} fits: {high.reason}"
    if high is None:
        return f"{key} = {fits} fits, and is the largest that was tried; --max sets a larger one"
    return f"the largest {key} that fits is {fits}; {high.value:,} does not: {high.reason}"


def _figures(point: FitPoint) -> str:
    peak = point.peak_memory_bytes
    parts = [*_speed(point), *([f"peak {size(peak)}"] if peak else [])]
    return f" ({', '.join(parts)})" if parts else ""


def _speed(point: FitPoint) -> list[str]:
    """Return the speed of a value or, at a rate, its latency; nothing where it has neither."""
    if point.offered_rate is not None:
        latency = point.request_seconds
        text = f"the median request in {milliseconds(latency.median)} ms" if latency else ""
        return [text + ", saturated" if point.saturated else text] if latency else []
    speed = point.tokens_per_second
    return [f"{rate_interval(speed)} tokens/s"] if speed else []
