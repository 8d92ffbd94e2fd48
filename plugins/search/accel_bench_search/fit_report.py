"""Search for the largest value that fits in memory: the next value, and the conclusion."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.metrics.memory import peak_memory
from accel_bench.analysis.metrics.offered_load import compared_seconds, is_saturated, offered_rate
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval, geometric_interval
from accel_bench.analysis.statistics.verdict import Finding
from accel_bench.analysis.wording import count, milliseconds, rate_interval, size
from accel_bench.documents.base import Frozen
from accel_bench.result import Result, Status


class FitPoint(Frozen):
    """A value of the key that was tried, with its outcome."""

    value: int
    """Value of the key."""

    outcome: Finding
    """Verdict on the statement that the value fits; `not tested` if a run failed for another reason
    than memory."""

    status: Status | None = None
    """Status of the run that decided; null if the value was not run."""

    reason: str = ""
    """Reason why the value does not fit, or why its run failed."""

    run_id: str = ""
    """Id of the stored run that decided; empty if the value was not run."""

    stored: bool = False
    """True if an earlier stored run was used."""

    tokens_per_second: Interval | None = None
    """Real tokens per second of all devices; with an interval for several rounds."""

    offered_rate: float | None = None
    """Requests that arrived per second; null without a rate."""

    request_seconds: Interval | None = None
    """Median request latency in seconds, which is compared for requests that arrive at a rate."""

    saturated: bool = False
    """True if requests piled up, so that latencies grow with the duration."""

    peak_memory_bytes: int | None = None
    """Largest peak memory of a rank, per device."""

    seconds: float = 0.0
    """Wall-clock seconds of the value's runs."""


class SearchRange(Frozen):
    """First value, largest value and precision of a search."""

    start: int
    """The first value to try."""

    most: int | None = None
    """The largest value to try; null if only memory bounds the search."""

    step: int = 1
    """Distance between fitting and failing value at which the search ends."""


class FitReport(Document):
    """The JSON document of `accel-bench fit`."""

    scenario: str
    """Name of the scenario."""

    stack: str
    """Name of the stack."""

    key: str
    """The key that was varied."""

    range: SearchRange
    """Range of the search."""

    points: tuple[FitPoint, ...]
    """All tried values, in order."""

    largest: FitPoint | None
    """The largest value that fits."""

    refused: FitPoint | None
    """The smallest value above `largest` that does not fit."""

    failed: FitPoint | None
    """The value whose failure, unrelated to memory, ended the search."""

    answer: str
    """Conclusion of the search in a sentence."""

    notes: tuple[str, ...] = ()
    """Changes of the scenario for the search."""

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if a value fits and no failure ended the search."""
        return 0 if self.largest and not self.failed else 1


def fit_point(value: int, results: Sequence[Result], stored: bool = False) -> FitPoint:
    """Return the outcome of a value's runs: it does not fit if any of them ran out of memory.

    `stored` is true if an earlier stored run is used.
    """
    full = [run for run in results if run.status is Status.OOM]
    last = full[-1] if full else results[-1]
    completed = [run for run in results if run.status.completed]
    outcome: Finding = "holds" if last.status.completed else "not tested"
    outcome = "does not hold" if full else outcome
    speeds = [(run, speed) for run in completed if (speed := run_throughput(run))]
    requests_per_second = offered_rate(last.experiment.scenario)
    latencies = [compared_seconds(*pair) for pair in speeds] if requests_per_second else []
    return FitPoint(
        value=value,
        outcome=outcome,
        status=last.status,
        reason="" if outcome == "holds" else _why(last, len(completed), len(results)),
        run_id=last.run_id,
        stored=stored,
        tokens_per_second=geometric_interval([speed.tokens_per_second for _, speed in speeds]),
        offered_rate=requests_per_second,
        request_seconds=geometric_interval(
            [latency for latency in latencies if latency is not None]
        ),
        saturated=any(map(is_saturated, completed)),
        peak_memory_bytes=peak_memory(completed)[0],
        seconds=sum(run.seconds for run in results),
    )


def _why(run: Result, completed: int, runs: int) -> str:
    """Return a run's reasons for not completing, after a note on how many rounds did complete.

    `completed` is the number of the value's completed runs, and `runs` the number of all its runs.
    """
    beside = f"it fits in {completed} of {count(runs, 'round')}: " if completed else ""
    return beside + "; ".join(run.reasons)


def next_value(points: Sequence[FitPoint], where: SearchRange) -> int | None:
    """Return the next value to try; None if the largest fitting value is known, or a run failed.

    From the start, values are doubled until one does not fit, or halved until one does. Then the
    gap is halved. No value above a value that does not fit is tried.
    """
    if not points:
        return where.start
    if any(point.outcome == "not tested" for point in points):
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
    """Return the report on all tried values of `key`, with the search's conclusion."""
    largest, refused = _largest(points), _refused(points)
    failed = next((point for point in points if point.outcome == "not tested"), None)
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
    fitting = (point for point in points if point.outcome == "holds")
    return max(fitting, key=lambda point: point.value, default=None)


def _refused(points: Sequence[FitPoint]) -> FitPoint | None:
    """Return the smallest non-fitting value above the largest fitting value, or None."""
    low = _largest(points)
    above = (
        point
        for point in points
        if point.outcome == "does not hold" and (low is None or point.value > low.value)
    )
    return min(above, key=lambda point: point.value, default=None)


def _answer(key: str, low: FitPoint | None, high: FitPoint | None, failed: FitPoint | None) -> str:
    """Return a sentence with the largest fitting value and the reason for the end of the search."""
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
    """Return a list with a text on a value's speed or, for requests at a rate, on its latency.

    The list is empty if that was not measured.
    """
    if point.offered_rate is not None:
        latency = point.request_seconds
        text = f"the median request in {milliseconds(latency.median)} ms" if latency else ""
        return [text + ", saturated" if point.saturated else text] if latency else []
    speed = point.tokens_per_second
    return [f"{rate_interval(speed)} tokens/s"] if speed else []
