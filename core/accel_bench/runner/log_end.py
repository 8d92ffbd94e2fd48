"""What a user is shown of a failed run's log."""

from __future__ import annotations

from accel_bench.result import Result

LOG_LINES = 15
"""Last lines that are shown."""


def log_end(result: Result) -> list[str]:
    """Return the last lines of a failed run's log; none where its reasons say all."""
    if _reasons_suffice(result):
        return []
    return result.log_tail.rstrip().splitlines()[-LOG_LINES:]


def _reasons_suffice(result: Result) -> bool:
    """Return whether each reason is of an error whose message says all."""
    sufficient = tuple(
        reason
        for rank in result.ranks
        if rank.error is not None and rank.error.message_suffices
        for reason in rank.reasons
    )
    # A reason may have the number of its rank before it.
    return bool(result.reasons) and all(one.endswith(sufficient) for one in result.reasons)
