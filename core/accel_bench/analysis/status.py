"""From attempts to one status for each experiment, and from those to the program's exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from accel_bench.analysis.schema import PlannedSummary, Summary
from accel_bench.analysis.statistics.comparison import PairKey
from accel_bench.result import Result, Status


class StopReason(NamedTuple):
    """How an experiment ended, or what ended a session before its time."""

    status: Status
    """Exactly one."""

    reasons: tuple[str, ...] = ()
    """Why it is not `ok`; each once."""


BY_THE_USER = StopReason(Status.INTERRUPTED, ("it was planned and never run",))
"""What ends a session early when nothing else has."""


def counted_runs(results: Iterable[Result]) -> dict[PairKey, Result]:
    """Runs of one experiment that count, by session and round, oldest session first.

    Of the attempts of a run only the last counts. A run that failed does not count either when a
    later session ran its round again, since that is how a run is resumed.
    """
    last: dict[PairKey, Result] = {}
    for result in sorted(results, key=lambda result: (result.started_at, result.attempt)):
        key = (result.session, result.round)
        if key not in last or result.attempt >= last[key].attempt:
            last[key] = result
    sessions = list(dict.fromkeys(session for session, _ in last))
    latest = {key[1]: max(sessions.index(s) for s, r in last if r == key[1]) for key in last}
    kept = {
        key: result
        for key, result in last.items()
        if result.status.completed or sessions.index(key[0]) == latest[key[1]]
    }
    return dict(sorted(kept.items(), key=lambda item: (sessions.index(item[0][0]), item[0][1])))


def ending(
    planned: PlannedSummary,
    counted: Sequence[Result],
    rounds: int,
    stopped: StopReason = BY_THE_USER,
) -> StopReason:
    """Apply the rule: all ok is ok, half completed is degraded, one invalid run spoils all.

    `stopped` is how an experiment ended whose runs were never made, or not to the end.
    """
    if not counted:
        return StopReason(Status.SKIPPED, planned.skipped) if planned.skipped else stopped
    statuses = [result.status for result in counted]
    completed = sum(status.completed for status in statuses)
    reasons = _reasons(counted)
    if Status.INVALID in statuses:
        return StopReason(Status.INVALID, reasons)
    wanted = max(rounds, len(counted))
    if completed < wanted:
        reasons = (*reasons, f"{completed} of {wanted} runs completed{_failures(statuses)}")
    if 2 * completed < wanted:
        failure = _commonest(statuses)
        return StopReason(failure or stopped.status, reasons)
    if completed == wanted and set(statuses) == {Status.OK}:
        return StopReason(Status.OK)
    return StopReason(Status.DEGRADED, reasons)


def exit_code(summaries: Sequence[Summary]) -> int:
    """0 when all is ok, degraded or partly skipped; 1 when something failed; 3 when nothing ran."""
    statuses = [row.status for summary in summaries for row in summary.experiments]
    ran = [status for status in statuses if status is not Status.SKIPPED]
    if not ran:
        return 3
    return 0 if all(status.completed for status in ran) else 1


def _reasons(counted: Sequence[Result]) -> tuple[str, ...]:
    """Reasons of all runs, each once, in the order in which they came up."""
    return tuple(dict.fromkeys(reason for result in counted for reason in result.reasons))


def _failures(statuses: Sequence[Status]) -> str:
    """`: oom 2, killed 1`."""
    counts = Counter(status.value for status in statuses if not status.completed)
    listed = ", ".join(f"{status} {count}" for status, count in counts.most_common())
    return f": {listed}" if listed else ""


def _commonest(statuses: Sequence[Status]) -> Status | None:
    """The commonest failure, the first of equals; None where the rounds were only cut short."""
    counts = Counter(status for status in statuses if not status.completed)
    return counts.most_common(1)[0][0] if counts else None
