"""What core sets alike for every stack, whoever has started the process."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest

from accel_bench import Device, Experiment, Run, Scenario
from accel_bench.errors import InvalidRunError
from accel_bench.scenario.environment import OPENMP_DEFAULTS, recorded
from accel_bench.scenario.models import Stack
from accel_bench.worker.settings import (
    BACKEND_AUTOLOAD,
    LAUNCHED_BY_ACCELERATE,
    MPI_SIZES,
    SAME_FOR_ALL,
    apply_settings,
    rare_collections,
    set_environment,
    started_processes,
)


def test_allocator_and_device_order_are_set_where_no_launcher_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*SAME_FOR_ALL, *OPENMP_DEFAULTS):
        monkeypatch.delenv(name, raising=False)
    set_environment({})
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert recorded(os.environ)["OMP_WAIT_POLICY"] == "passive"
    for name in (*SAME_FOR_ALL, *OPENMP_DEFAULTS):
        monkeypatch.delenv(name)


def test_what_a_scenario_or_the_user_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    set_environment({})
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert os.environ["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64"
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_torch_imports_what_is_registered_with_it_only_where_the_scenario_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(BACKEND_AUTOLOAD, "1")
    set_environment({})
    assert os.environ[BACKEND_AUTOLOAD] == "0"
    set_environment({BACKEND_AUTOLOAD: "1"})
    assert os.environ[BACKEND_AUTOLOAD] == "1"


def with_launcher(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Set the variables of a launcher, and no others of the kind."""
    for name in ("WORLD_SIZE", LAUNCHED_BY_ACCELERATE, *MPI_SIZES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "1"},
        {LAUNCHED_BY_ACCELERATE: "no"},
        {LAUNCHED_BY_ACCELERATE: "bf16", "PMI_SIZE": "1"},
    ],
    ids=["torchrun", "accelerate launch", "accelerate launch by MPI"],
)
def test_a_rank_does_not_wait_for_ranks_that_were_never_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str]
) -> None:
    with_launcher(monkeypatch, variables)
    scenario = Scenario.model_validate_json(
        json.dumps({"resources": {"device": "cpu", "devices": 2}})
    )
    experiment = Experiment(id="x", scenario=scenario, stack=Stack(name="s"), identity={})
    run = Run(experiment, Device("cpu"), tmp_path, tmp_path, world_size=2)
    with pytest.raises(InvalidRunError, match="1 processes were started, the scenario says 2"):
        apply_settings(run)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, ""),
        ({"PMI_SIZE": "4"}, ""),
        ({"WORLD_SIZE": "2", LAUNCHED_BY_ACCELERATE: "no"}, "2"),
        ({LAUNCHED_BY_ACCELERATE: "no", "OMPI_COMM_WORLD_SIZE": "2"}, "2"),
    ],
    ids=str,
)
def test_a_launcher_that_started_all_ranks_or_does_not_say_is_believed(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    with_launcher(monkeypatch, variables)
    assert started_processes() == said


def test_garbage_is_collected_rarely_while_libraries_are_imported() -> None:
    found, before = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*before)  # A program that ran in this process has left its own.
    try:
        with rare_collections():
            assert gc.get_threshold()[0] > 100 * before[0]
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*found)


def test_a_collector_that_a_plugin_sets_up_stays_as_it_is() -> None:
    before = gc.get_threshold()
    try:
        with rare_collections():
            gc.set_threshold(1234, 5, 6)
            gc.disable()
        assert gc.get_threshold() == (1234, 5, 6)
        assert not gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.enable()
