"""Which distribution brings a benchmark or an executor."""

from __future__ import annotations

import inspect
from importlib import metadata
from typing import Any

from accel_bench.machine.provenance import distribution_version
from accel_bench.micro.discovery import BENCHMARKS, EXECUTORS


def distribution_of(one: Any) -> str:
    """Return the name and the version of the distribution of a benchmark or an executor."""
    kind = one if inspect.isclass(one) else type(one)
    for group in (BENCHMARKS, EXECUTORS):
        for entry in metadata.entry_points(group=group):
            if entry.dist is not None and f"{kind.__module__}.".startswith(f"{entry.module}."):
                return f"{entry.dist.name} {distribution_version(entry.dist.name)}"
    return ""
