"""Facts about the program: its version, its command, and its environment variables."""

from __future__ import annotations

import os
import sys

from accel_bench.errors import AccelBenchError

__version__ = "0.1.0"

MOST_SECONDS = 86_400.0

DEFAULT_RESULTS = "accel_bench_results"
"""Default results folder."""

RESULTS = "ACCEL_BENCH_RESULTS"
"""Environment variable of the results folder, or the address of a database."""


def python_command(*arguments: str) -> list[str]:
    """Return a command that runs this Python interpreter without imports from the working folder.

    Python 3.10 has no option `-P` for this; there `accel_bench` removes the folder from the path
    when it is run by `-m`.
    """
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, *arguments]


def seconds_from(variable: str, default: float) -> float:
    """Return the seconds in the environment variable `variable`, or `default` if it is not set.
    Raises AccelBenchError unless the value is a number above 0 and at most a day."""
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_SECONDS:
        raise AccelBenchError(
            f"{variable}={text!r} is no number of seconds above 0 and up to {MOST_SECONDS:,.0f}; "
            "unset it"
        )
    return seconds
