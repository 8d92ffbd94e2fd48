"""Take the names of people, hosts and folders out of stored commands before they are shown."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.interchange.bundle_making import anonymous
from accel_bench.store.commands import CommandRuns


def anonymous_commands(commands: Sequence[CommandRuns]) -> list[CommandRuns]:
    """Return the commands without the names, as a bundle has them. Raises BundleError.

    All are changed together, so that equal names get equal words.
    """
    sessions, results = anonymous(
        [one.session for one in commands if one.session],
        [result for one in commands for result in one.results],
    )
    left_sessions, left_results = iter(sessions), iter(results)
    return [
        one._replace(
            session=next(left_sessions) if one.session else None,
            results=[next(left_results) for _ in one.results],
        )
        for one in commands
    ]
