"""`checkpoint`: computed bytes, a loadable file, memory of each rank, a full disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_metrics import checkpoint_impl
from accel_bench_metrics.checkpoint import CheckpointOptions
from faults.program import write_scenario

from accel_bench import Metric
from accel_bench.testing import make_run, run_program, run_scenario

SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 128}

WORK: dict[str, Any] = {
    "name": "checkpoint",
    "model": {"id": "tiny-llama-cpu", "overrides": SIZES},
    "data": {"sequence_length": 16, "vocab_size": 128},
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 1, "steps": 1, "rounds": 1, "phase_steps": 0},
    "metrics": ["memory", "checkpoint"],
    "stacks": {"baseline": []},
}


def figures(result: Any) -> dict[str, Metric]:
    """Return rank 0's figures of the plugin by name."""
    return {one.name: one for one in result.ranks[0].metrics if one.plugin == "checkpoint"}


@pytest.mark.parametrize(
    ("format_", "adapter"),
    [("sharded", "none"), pytest.param("full", "lora", marks=pytest.mark.release)],
)
def test_bytes_are_those_of_what_trains_and_of_its_optimizer(
    tmp_path: Path, adapter: str, format_: str
) -> None:
    path = write_scenario(tmp_path / "scenario.yaml", WORK)
    options = {"use": "checkpoint", "format": format_}
    settings = {"adapter.use": adapter, "metrics": ["memory", options]}
    result = run_scenario(path, settings=settings)["baseline"]
    assert result.status.completed, result.reasons
    found = figures(result)
    trained = sum(result.ranks[0].effective.trained_dtypes.values())
    # AdamW keeps two more numbers for each weight; names and structure come on top.
    size = found["checkpoint_bytes"].value
    assert 12 * trained <= size <= 12 * trained + 150_000  # type: ignore[operator]
    assert 0 < found["checkpoint_seconds"].value < 60  # type: ignore[operator]
    memory = found["checkpoint_host_memory_bytes"]
    assert (memory.scope, memory.kind) == ("rank", format_)
    assert memory.value is not None
    assert not list(tmp_path.rglob("checkpoint.pt"))


def a_run(tmp_path: Path) -> Any:
    """Return the run of a small model and its optimizer, one step after its start."""
    run = make_run(tmp_path)
    torch.manual_seed(0)
    run.model = run.unwrapped_model = torch.nn.Linear(4, 2)
    run.optimizer = torch.optim.AdamW(run.model.parameters())
    run.model(torch.ones(1, 4)).sum().backward()
    run.optimizer.step()
    return run


def test_a_checkpoint_that_is_kept_holds_weights_and_moments(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    list(checkpoint_impl.write_checkpoint(run, CheckpointOptions(keep=True)))
    state = torch.load(Path(run.folder) / "checkpoint" / "checkpoint.pt")
    torch.testing.assert_close(state["model"]["weight"], run.model.weight.detach())
    moments = run.optimizer.state[run.model.weight]["exp_avg"]
    torch.testing.assert_close(state["optimizer"]["state"]["weight"]["exp_avg"], moments)


def test_a_disk_that_is_full_degrades_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = a_run(tmp_path)
    monkeypatch.setattr(torch, "save", fail)
    found = list(checkpoint_impl.write_checkpoint(run, CheckpointOptions()))
    assert [one.value for one in found] == [None, None, None]
    assert "No space left on device" in found[0].reason
    assert found[0].degrades
    assert not (Path(run.folder) / "checkpoint").exists()


@pytest.mark.release
def test_of_replicas_rank_0_alone_writes_and_all_say_how_long_it_took(tmp_path: Path) -> None:
    two = {**WORK, "resources": {"device": "cpu", "devices": 2, "threads": 1}}
    path = write_scenario(tmp_path / "scenario.yaml", {**two, "metrics": ["checkpoint"]})
    results = str(tmp_path / "results")
    done = run_program("run", str(path), "--oversubscribe", "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [json.loads(file.read_text()) for file in sorted(Path(results).rglob("rank?.json"))]
    found = [{one["name"]: one["value"] for one in rank["metrics"]} for rank in ranks]
    trained = sum(ranks[0]["effective"]["trained_dtypes"].values())
    assert found[0].pop("checkpoint_bytes") >= 12 * trained
    assert [set(one) for one in found] == [
        {"checkpoint_seconds", "checkpoint_host_memory_bytes"}
    ] * 2
