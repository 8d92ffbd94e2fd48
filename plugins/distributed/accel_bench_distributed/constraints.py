"""What a model and a scenario must have to stand on a mesh: checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from accel_bench import Scenario
from accel_bench_distributed.sizes import Sizes


def problems(scenario: Scenario, sizes: Sizes, cpu_offload: bool) -> Iterator[str]:
    """Yield the reasons why a scenario cannot be run on a mesh."""
    yield from ()
