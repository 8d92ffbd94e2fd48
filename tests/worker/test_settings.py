"""What core sets alike for every stack, whoever has started the process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from accel_bench import Device, Experiment, Run, Scenario
from accel_bench.errors import InvalidRunError
from accel_bench.scenario.environment import OPENMP_DEFAULTS, recorded
from accel_bench.scenario.models import Stack
from accel_bench.worker.settings import SAME_FOR_ALL, apply_settings, set_environment


def test_allocator_and_device_order_are_set_where_no_launcher_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*SAME_FOR_ALL, *OPENMP_DEFAULTS):
        monkeypatch.delenv(name, raising=False)
    set_environment()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert recorded(os.environ)["OMP_WAIT_POLICY"] == "passive"
    for name in (*SAME_FOR_ALL, *OPENMP_DEFAULTS):
        monkeypatch.delenv(name)


def test_what_a_scenario_or_the_user_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    set_environment()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert os.environ["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64"
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_a_rank_does_not_wait_for_ranks_that_were_never_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    scenario = Scenario.model_validate_json(
        json.dumps({"resources": {"device": "cpu", "devices": 2}})
    )
    experiment = Experiment(id="x", scenario=scenario, stack=Stack(name="s"), identity={})
    run = Run(experiment, Device("cpu"), tmp_path, tmp_path, world_size=2)
    with pytest.raises(InvalidRunError, match="1 processes were started, the scenario says 2"):
        apply_settings(run)
