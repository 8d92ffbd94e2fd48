"""A run to give to a plugin's hooks, as a worker would build it, without starting one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_bench import Device, Experiment, Run, Scenario
from accel_bench.scenario.models import Stack


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Return `make_run(**scenario)`: a CPU run of one rank whose scenario is read as JSON is."""

    def build(**scenario: Any) -> Run:
        experiment = Experiment(
            id="0" * 12,
            scenario=Scenario.model_validate_json(json.dumps(scenario)),
            stack=Stack(name="baseline"),
            identity={},
        )
        return Run(experiment, Device("cpu"), tmp_path, tmp_path / "cache")

    return build
