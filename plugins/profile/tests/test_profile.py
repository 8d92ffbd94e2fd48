"""`accel-bench profile` with real runs and planted delays."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accel_bench_profile.figures.schema import PROFILE_FOLDER
from cli.program import Done, call, write_nulls
from fault_plugins.distribution import install
from several_ranks.scenarios import forking, write

from accel_bench import read_events
from accel_bench.store.database import open_store

PLANTED = """
import time

from accel_bench import Options, Plugin, hookimpl


class Sleep(Plugin[Options]):
    '''Sleeps in the MLP of the first block.'''

    @hookimpl
    def accelerate_model(self, run):
        mlp = run.model.model.layers[0].mlp
        plain = mlp.forward

        def forward(states):
            time.sleep(0.1)
            return plain(states)

        mlp.forward = forward


class Item(Plugin[Options]):
    '''Reads a value of the MLP's input.'''

    @hookimpl
    def accelerate_model(self, run):
        mlp = run.model.model.layers[0].mlp
        plain = mlp.forward

        def forward(states):
            for part in states.detach().flatten()[:8]:
                part.item()
            return plain(states)

        mlp.forward = forward


class Break(Plugin[Options]):
    '''Needs more memory than there is, once torch's profiler runs.'''

    @hookimpl
    def accelerate_model(self, run):
        import torch

        mlp = run.model.model.layers[0].mlp
        plain = mlp.forward

        def forward(states):
            if torch.autograd.profiler._is_profiler_enabled:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return plain(states)

        mlp.forward = forward


class Slow(Plugin[Options]):
    '''Reduces 64 MB more than it must in each backward pass.'''

    @hookimpl
    def accelerate_model(self, run):
        import torch

        load = torch.zeros(16_000_000)
        hidden = run.model.model.norm.weight
        hidden.register_hook(lambda grad: torch.distributed.all_reduce(load))
"""
"""Plugins that plant delays in a step."""


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plugins are installed, and a launcher that imports nothing."""
    folder = tmp_path_factory.mktemp("site")
    planted = {"planted-sleep": "Sleep", "planted-item": "Item", "planted-slow": "Slow"}
    planted["planted-break"] = "Break"
    install(folder, "accel-bench-planted", planted, PLANTED)
    with forking(folder):
        yield


def profile(scenario: Path, *arguments: str) -> Done:
    return call("profile", str(scenario), "--quiet", *arguments, folder=scenario.parent)


def test_each_planted_cause_is_the_first_line_of_the_answer(tmp_path: Path) -> None:
    stacks = {"baseline": [], "sleep": ["planted-sleep"], "item": ["planted-item"]}
    scenario = write(tmp_path, "one", 1, stacks, launcher="forking")
    done = profile(scenario, "--format", "json")
    assert done.code == 0, done.err
    document: dict[str, Any] = json.loads(done.out)
    found = {one["stack"]: one for one in document["profiles"]}
    held_up = r"forward of model\.layers\.0\.mlp holds up the step: no operation runs for 1\d\d ms"
    assert re.match(held_up, found["sleep"]["answer"])
    assert found["item"]["answer"].startswith(
        "forward of model.layers.0.mlp reads a value of a tensor on the host (as .item() does) 8 "
    )
    assert "model.layers.0.mlp" not in found["baseline"]["answer"]

    # The measured window is that of a run without a profile, and the run is stored as one.
    with open_store(tmp_path / "accel_bench_results", write=False) as store:
        runs = store.results()
    assert len(runs) == 3
    assert all(run.status.completed for run in runs)  # A busy machine degrades one.
    for run in runs:
        (rank,) = run.ranks
        assert rank.window is not None
        assert len(rank.window.samples) == 2
        assert rank.profiled_steps == 8  # four with the profiler, after as many without
        assert not any("profile" in metric.name for metric in rank.metrics)
        folder = tmp_path / "accel_bench_results" / run.folder / PROFILE_FOLDER
        assert str(folder) == found[run.experiment.stack.name]["folder"]
        traces = found[run.experiment.stack.name]["ranks"][0]["traces"]
        left = {path.name for path in (folder / "rank0").iterdir()}
        assert left == {"profile.json", "measured", "profiled"}
        # TensorBoard compares the workers whose traces lie in one folder.
        assert {path.name for path in folder.iterdir()} == {"rank0", *traces}
        measured = read_events(folder / "rank0" / "measured")
        assert list(measured["Wall Time"]) == pytest.approx(
            [sample.seconds for sample in rank.window.samples]
        )
        assert list(measured["step"]) == [sample.step for sample in rank.window.samples]
        profiled = read_events(folder / "rank0" / "profiled")
        first = rank.window.samples[-1].step + 1 + len(rank.steps_after) + rank.checked_steps
        assert list(profiled["step"]) == list(range(first, first + 4))
        assert len(profiled["Memory"].dropna()) == 4
        assert set(read_events(folder)["run"]) == {"rank0/measured", "rank0/profiled"}


def test_a_step_of_the_profile_that_fails_costs_no_measured_window(tmp_path: Path) -> None:
    scenario = write(tmp_path, "one", 1, {"baseline": ["planted-break"]}, launcher="forking")
    done = profile(scenario, "--format", "json")
    (found,) = json.loads(done.out)["profiles"]
    assert found["status"] == "degraded"
    (reason,) = found["reasons"]
    assert reason.startswith("out of memory in forward: asked 2.00 GiB (")
    assert reason.endswith("(while steps were observed; the measured window is complete)")
    (left,) = found["ranks"]
    assert reason in left["warnings"]
    assert len(left["scalars"]) == 4
    with open_store(tmp_path / "accel_bench_results", write=False) as store:
        (run,) = store.results()
    (rank,) = run.ranks
    assert rank.window is not None
    assert len(rank.window.samples) == 2
    assert rank.profiled_steps == 5  # four without the profiler, and its warm-up


@pytest.mark.release
def test_a_slow_collective_is_the_first_line_of_the_answer(tmp_path: Path) -> None:
    stacks = {"baseline": ["planted-slow"]}
    scenario = write(tmp_path, "two", 2, stacks, launcher="forking", parallel="ddp")
    done = profile(scenario, "--format", "json", "--oversubscribe")
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)["profiles"]
    assert "communication that no computation hides takes" in found["answer"]
    assert "all_reduce" in found["answer"]
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]


def test_one_stack_as_a_table_with_the_path_of_its_traces(tmp_path: Path) -> None:
    scenario = write(tmp_path, "one", 1, {"baseline": [], "item": ["planted-item"]})
    arguments = ("--stack", "item", "--set", "launcher=forking", "--active", "1", "--top", "2")
    done = profile(scenario, *arguments)
    assert done.code == 0, done.err
    assert "one: item" in done.out
    assert "one: baseline" not in done.out
    assert "operations by time" in done.out
    assert "operations by count" in done.out
    assert "ms while recorded; measured without the profiler" in done.out
    (folder,) = tmp_path.glob("accel_bench_results/runs/*/*/profile")
    assert f"traces: {folder}" in " ".join(done.out.split())


@pytest.mark.parametrize("arguments", [("--active", "0"), ("--warmup", "-1"), ("--repeat", "0")])
def test_a_schedule_that_records_nothing_is_refused(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = profile(write_nulls(tmp_path), *arguments)
    assert done.code == 2
    assert arguments[0] in done.err


def test_an_engine_that_does_not_train_with_torch_is_refused(tmp_path: Path) -> None:
    done = profile(write_nulls(tmp_path))
    assert done.code == 2
    assert "there is nothing to profile, since engine 'null' does not train with torch" in done.err
    assert not (tmp_path / "accel_bench_results").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--nvtx",), "--nvtx marks steps for Nsight, which records CUDA devices"),
        (("--against", "item", "--nvtx"), "leave out --nvtx"),
        (("--against", "item", "--memory"), "leave out --memory"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_anything_runs(
    arguments: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    scenario = write(tmp_path, "one", 1, {"baseline": [], "item": []})
    done = profile(scenario, *arguments)
    assert done.code == 2
    assert problem in " ".join(done.err.split())
    assert not (tmp_path / "accel_bench_results").exists()


def test_nsys_prints_the_command_that_runs_what_it_stands_for() -> None:
    done = call("profile", "a scenario.yaml", "--nsys", "--stack", "baseline")
    assert done.code == 0
    words = shlex.split(done.out)
    assert words[:2] == ["nsys", "profile"]
    assert "--capture-range=cudaProfilerApi" in words
    own = words[words.index(sys.executable) :]
    assert own[1:] == [
        *("-m", "accel_bench", "profile", "a scenario.yaml", "--stack", "baseline", "--nvtx")
    ]


@pytest.mark.release
def test_each_of_two_ranks_has_its_memory(tmp_path: Path) -> None:
    scenario = write(tmp_path, "two", 2, {"baseline": []}, launcher="forking", parallel="ddp")
    done = profile(scenario, "--memory", "--active", "1", "--oversubscribe", "--format", "json")
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)["profiles"]
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    first, second = found["ranks"]
    assert first["saved"] == second["saved"] != {}
    for rank in found["ranks"]:
        assert sum(rank["memory"]["peak"].values()) == rank["memory"]["peak_bytes"]
        assert rank["memory"]["peak"]["weights"] == first["memory"]["peak"]["weights"] > 0
        assert rank["warnings"] == []


@pytest.mark.release
def test_memory_is_shown_by_category_and_what_is_kept_by_module(tmp_path: Path) -> None:
    scenario = write(tmp_path, "one", 1, {"baseline": []}, launcher="forking", optimizer="adamw")
    done = profile(scenario, "--memory", "--active", "1", "--top", "3")
    assert done.code == 0, done.err
    assert "memory at its peak of " in done.out
    assert "saved for the backward: " in done.out
    with open_store(tmp_path / "accel_bench_results", write=False) as store:
        (run,) = store.results()
    path = tmp_path / "accel_bench_results" / run.folder / PROFILE_FOLDER / "rank0" / "profile.json"
    found = json.loads(path.read_text())
    # The parts add up to the whole, which the metric `memory` has counted in another pass.
    whole = {metric.name: metric.value for metric in run.ranks[0].metrics}
    assert sum(found["saved"].values()) == whole["saved_for_backward_bytes"]
    assert any("layers.0.mlp" in module for module in found["saved"])
    peak = found["memory"]["peak"]
    assert sum(peak.values()) == found["memory"]["peak_bytes"]
    assert {"weights", "optimizer state", "activations"} <= {*peak}
    assert len(found["memory"]["points"]) > 50
    assert found["warnings"] == []
