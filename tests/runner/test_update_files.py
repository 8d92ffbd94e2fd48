"""Files with the exact change of the weights: compared, taken away, and never the cost of a row."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from analysis_factory import FAST, LORA, UPDATE, make_rank, make_result
from faults.program import wait_for

from accel_bench.analysis.checks.training import compare_training
from accel_bench.job import SPARE_DISK_BYTES
from accel_bench.result import Result, Status, TensorUpdate
from accel_bench.runner import update_files
from accel_bench.runner.update_files import PendingUpdates

NAMES = ("embed", "head", "scale")
SIZES = (5000, 700, 1)
START: dict[str, Any] = {
    name: np.random.default_rng(size).standard_normal(size)
    for name, size in zip(NAMES, SIZES, strict=True)
}


def leave(folder: Path, experiment: Any, change: dict[str, Any], **fields: Any) -> Result:
    """Leave a run's file in the folder, and return its result: all sketches of it are alike."""
    content = np.concatenate([*change.values()]).astype("<f4")
    (folder / "rank0.update").write_bytes(content.tobytes())
    tensors = {
        name: TensorUpdate(elements=one.size, sketch=(1.0,) * 31, norm=float(np.linalg.norm(one)))
        for name, one in change.items()
    }
    changes = {"tensors": tensors, "kept_bytes": content.nbytes, "steps": 3}
    rank = make_rank().model_copy(update={"update": UPDATE.model_copy(update=changes)})
    return make_result(experiment, ranks=[rank], **fields)


def compared(first: Result, second: Result) -> Any:
    """Compare the run of LORA with that of FAST."""
    baseline, stack = sorted((first, second), key=lambda run: run.experiment.stack.name != "lora")
    return compare_training({("monday", 0): baseline}, {("monday", 0): stack})


@pytest.mark.parametrize("baseline_first", [True, False])
@pytest.mark.parametrize("block", [update_files.BLOCK_BYTES, 64])
def test_distances_are_exact_whichever_run_comes_first_and_the_file_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, baseline_first: bool, block: int
) -> None:
    monkeypatch.setattr(update_files, "BLOCK_BYTES", block)
    other = {**START, "head": -START["head"], "scale": 0 * START["scale"]}
    runs = [(LORA, START), (FAST, other)]
    changes = PendingUpdates("lora", 2**20)
    results = []
    for experiment, change in runs if baseline_first else runs[::-1]:
        results.append(changes.add(tmp_path / "rank0.update", leave(tmp_path, experiment, change)))
        assert not list(tmp_path.iterdir())
    found = compared(*results)
    whole, turned = (np.concatenate([*one.values()]) for one in (START, other))
    size = np.linalg.norm(whole)
    assert found.update_exact
    assert found.update_difference == pytest.approx(np.linalg.norm(turned - whole) / size, rel=1e-6)
    assert found.update_norm_ratio == pytest.approx(np.linalg.norm(turned) / size, rel=1e-6)
    cosine = whole @ turned / size / np.linalg.norm(turned)
    assert found.update_cosine == pytest.approx(cosine, rel=1e-6)
    # Their sketches are equal: the exact numbers are what decides.
    assert found.update_verdict == "different"
    assert found.update_reason.startswith("1 of 3 tensors did not move (scale)")
    changes.close()


def test_a_tensor_that_one_side_lacks_did_not_change_there(tmp_path: Path) -> None:
    fewer = {name: START[name] for name in NAMES[:2]}
    path, changes = tmp_path / "rank0.update", PendingUpdates("lora", 2**20)
    before = changes.add(path, leave(tmp_path, LORA, START))
    after = changes.add(path, leave(tmp_path, FAST, fewer))
    lacking, whole = abs(START["scale"][0]), math.hypot(*np.concatenate([*START.values()]))
    assert compared(before, after).update_difference == pytest.approx(lacking / whole)
    changes.close()


@pytest.mark.parametrize(
    ("break_file", "reason"),
    [
        (lambda path: path.write_bytes(b"1234"), "it has 4 bytes in the place of 22,804"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), "symbolic links"),
        (lambda path: (path.unlink(), (path / "sub").mkdir(parents=True)), "it is no file"),
        (lambda path: path.write_bytes(b"\xff" * 22_804), "not finite, in embed"),
    ],
)
def test_a_broken_file_costs_its_distances_and_not_the_row(
    tmp_path: Path, break_file: Any, reason: str
) -> None:
    path, changes = tmp_path / "rank0.update", PendingUpdates("lora", 2**20)
    open_files = os.listdir("/proc/self/fd") if Path("/proc").is_dir() else []
    before = changes.add(path, leave(tmp_path, LORA, START))
    result = leave(tmp_path, FAST, START)
    break_file(path)
    after = changes.add(path, result)
    changes.close()
    if open_files:
        assert len(os.listdir("/proc/self/fd")) == len(open_files)
    update = after.ranks[0].update
    assert update is not None
    assert not list(tmp_path.iterdir())
    assert (after.status, update.kept_bytes) == (Status.OK, 0)
    assert reason in update.kept_reason
    found = compared(before, after)
    assert (found.update_verdict, found.update_exact) == ("equivalent", False)


def test_the_broken_file_of_an_earlier_run_is_named_and_costs_its_distances_alone(
    tmp_path: Path,
) -> None:
    path, changes = tmp_path / "rank0.update", PendingUpdates("lora", 2**20)
    result = leave(tmp_path, FAST, START)
    path.write_bytes(b"\xff" * path.stat().st_size)
    changes.add(path, result)
    baseline = changes.add(path, leave(tmp_path, LORA, START))
    update = baseline.ranks[0].update
    assert update is not None
    assert (baseline.update_distances, update.kept_bytes) == ({}, 22_804)
    assert update.kept_reason.startswith("the file of stack fast could not be read: it holds")
    changes.close()


@pytest.mark.parametrize("status", [Status.INTERRUPTED, Status.KILLED, Status.INVALID])
def test_the_file_of_a_run_that_did_not_complete_is_removed(tmp_path: Path, status: Status) -> None:
    changes = PendingUpdates("lora", 2**20)
    result = leave(tmp_path, LORA, START, status=status)
    assert changes.add(tmp_path / "rank0.update", result) == result
    assert not list(tmp_path.iterdir())


def test_the_room_is_that_of_the_limit_and_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(count: int) -> int:
        usage = SimpleNamespace(free=SPARE_DISK_BYTES + count)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
        return PendingUpdates("lora", 1000).room(tmp_path)

    assert (free(2000), free(300), free(-5)) == (1000, 300, 0)


def test_runs_beside_others_keep_no_file_and_say_why(tmp_path: Path) -> None:
    changes = PendingUpdates("lora", 1000)
    assert changes.room(tmp_path, shared=True) == 0
    rank = make_rank().model_copy(update={"update": UPDATE})
    update = changes.add(tmp_path / "rank0.update", make_result(ranks=[rank]), True).ranks[0].update
    assert update is not None
    assert "sweep points run at once" in update.kept_reason


@pytest.mark.release
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_neither_ctrl_c_nor_a_kill_leaves_a_file(tmp_path: Path, number: signal.Signals) -> None:
    work = {
        "name": "long",
        "model": {"id": "tiny-llama-cpu"},
        "resources": {"device": "cpu", "threads": 1},
        "stacks": {"baseline": [], "same": []},
        "measure": {"warmup": 1, "steps": 10_000, "rounds": 1},
    }
    (tmp_path / "long.yaml").write_text(json.dumps(work), encoding="utf8")
    program = [sys.executable, "-m", "accel_bench"]
    process = subprocess.Popen(
        [*program, "run", "long.yaml", "--quiet", "--force"], cwd=tmp_path, text=True
    )
    assert wait_for(lambda: any(tmp_path.rglob("rank0.update")), pause=0.2)
    process.send_signal(number)
    process.wait(60)
    subprocess.run([*program, "results", "list"], cwd=tmp_path, check=True, capture_output=True)
    assert any(tmp_path.rglob("job.json"))
    assert not any(tmp_path.rglob("*.update"))
