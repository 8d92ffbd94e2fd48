"""A run to give to a plugin's hooks, as a worker would build it, without starting one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_bench import Run, testing


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Return `make_run(**scenario)`: a CPU run of one rank whose scenario is read as JSON is."""

    def build(**scenario: Any) -> Run:
        return testing.make_run(tmp_path, scenario)

    return build
