"""Read settings of the program from environment variables."""

from __future__ import annotations

import math
import os

from accel_bench.errors import AccelBenchError


def seconds_from(variable: str, default: float) -> float:
    """Return a number of seconds above 0, or `default` where the variable is not set.

    Raises AccelBenchError for anything else.
    """
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise AccelBenchError(f"{variable}={text!r} is no number of seconds above 0; unset it")
    return seconds
