"""Read settings of the program from environment variables."""

from __future__ import annotations

import os

from accel_bench.errors import AccelBenchError

MOST_SECONDS = 86_400.0

DEFAULT_RESULTS = "accel_bench_results"
"""The results folder where no other is named."""

RESULTS = "ACCEL_BENCH_RESULTS"
"""Variable that names another one, or the address of a database."""


def seconds_from(variable: str, default: float) -> float:
    """Return a number of seconds of at most a day, or `default` where the variable is not set.

    Raises AccelBenchError for anything else.
    """
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
