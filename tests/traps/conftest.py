"""The environment in which traps are provoked that need libraries which change every stack."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_bench import Device, Experiment, Run, Scenario
from accel_bench.scenario.models import Stack

VARIABLE = "ACCEL_BENCH_QUANTIZED"
"""Folder of that environment; by default it lies beside this one, as `make test` makes it."""


@pytest.fixture(scope="session")
def trapped_python() -> str:
    """A Python that has all of this environment, and the libraries that set the traps.

    They are kept apart since an adapter imports them as soon as they are installed. A missing
    environment fails where everything has to be tested, and skips elsewhere.
    """
    given = os.environ.get(VARIABLE)
    folder = Path(given or f"{sys.prefix}-quantized")
    python = folder / "bin" / "python"
    if python.exists():
        return str(python)
    missing = f"{folder} is missing; `make quantized` makes it, and {VARIABLE} names another one"
    if given or os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture
def llama_run(tmp_path: Path) -> Callable[..., Run]:
    """A run around the small llama as our own loader makes it, with an optimizer."""

    def build(**settings: Any) -> Run:
        import torch

        from accel_bench.modeling.loading import build_config
        from accel_bench.modeling.random_weights import random_model

        scenario = Scenario.model_validate_json(
            json.dumps(
                {
                    "resources": {"device": "cpu"},
                    "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 2}},
                    **settings,
                }
            )
        )
        experiment = Experiment(id="x", scenario=scenario, stack=Stack(name="s"), identity={})
        run = Run(experiment, Device("cpu"), tmp_path, tmp_path, world_size=scenario.world_size)
        model = random_model(build_config(scenario.model), torch.float32, "cpu", 0)[0].train()
        run.model = run.unwrapped_model = model
        run.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return run

    return build
