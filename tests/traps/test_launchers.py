"""Launchers and strategies that quietly do less than asked, in the real program with two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import install
from faults.program import Program, null_scenario

from accel_bench import Status

pytestmark = pytest.mark.long


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """A program that knows the plugins that step into traps."""
    site = tmp_path / "site"
    site.mkdir()
    source = Path(__file__).with_name("trapped.py").read_text(encoding="utf8")
    install(
        site, "accel-bench-trapped", {"accelerate-launch": "Accelerate", "fsdp": "Fsdp"}, source
    )
    program = Program(tmp_path, site)
    yield program
    program.end()


def test_a_launcher_that_starts_one_process_for_two_ranks_is_invalid(program: Program) -> None:
    scenario = null_scenario(
        {"alone": []},
        launcher={"use": "accelerate-launch"},
        resources={"device": "cpu", "devices": 2},
        parallel="none",
    )
    done = program.run(scenario, "--oversubscribe")
    result = done.result("alone")
    assert result.status is Status.INVALID, (result.reasons, result.log_tail)
    assert result.reasons == (
        "rank 0: 1 processes were started, the scenario says 2; have the launcher start one for "
        "each rank, or set resources.devices",
    )
    assert done.code == 1
    assert program.left_behind() == []


@pytest.mark.release
def test_fsdp_that_becomes_ddp_is_invalid(program: Program) -> None:
    """Two real ranks import all libraries; test_wrapping.py has the same mistake without them."""
    scenario: dict[str, Any] = {
        "name": "sharded",
        "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 1}},
        "data": {"use": "synthetic", "sequence_length": 16},
        "train": {"micro_batch_size": 1, "learning_rate": 1e-3},
        "resources": {"device": "cpu", "devices": 2, "threads": 1},
        "stacks": {"sharded": ["fsdp"]},
        "measure": {"warmup": 1, "steps": 2, "rounds": 1},
    }
    done = program.run(scenario, "--oversubscribe")
    result = done.result("sharded")
    assert result.status is Status.INVALID, (result.reasons, result.log_tail)
    (reason,) = {reason.partition(": ")[2] for reason in result.reasons}
    assert reason == (
        "the strategy is DistributedDataParallel, and its plugin says FullyShardedDataParallel"
    )
