"""What a killed program leaves is closed to others, and redacted by the next one that opens it."""

from __future__ import annotations

import fcntl
import json
import resource
import socket
from pathlib import Path

import pytest
from runner.job_factory import make_job
from store.store_factory import make_result

from accel_bench.runner.artifacts import record_result, run_folder
from accel_bench.runner.interrupted import (
    attempt_in_progress,
    open_results,
    redact_unfinished,
    unfinished_attempts,
)

SECRET = "CANARY-0123456789"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A results folder."""
    with open_results(tmp_path / "results", write=True) as store:
        return store.folder


@pytest.fixture(params=["", "bs_4"], ids=["no sweep", "sweep"])
def attempt(root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The folder of an attempt that was cut off, with a secret in its job and its log."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    folder = run_folder(root, "session", "attempt", request.param)
    job = json.loads(make_job(folder).model_dump_json())
    job["experiment"]["scenario"]["environment"] = {"WANDB_API_KEY": f"{SECRET}-of-the-scenario"}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "rank0.log").write_text(f"token {SECRET}\nof the scenario {SECRET}-of-the-scenario\n")
    return folder


def holding(root: Path) -> list[str]:
    """Names of the files that hold the secret."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if SECRET.encode() in path.read_bytes())


def test_an_attempt_that_was_cut_off_is_redacted_when_its_results_are_opened(
    root: Path, attempt: Path
) -> None:
    assert holding(root) == ["job.json", "rank0.log"]
    make_job(attempt).update_path().write_bytes(bytes(100))
    with open_results(root):
        assert holding(root) == []
    assert not make_job(attempt).update_path().exists()
    assert "token [redacted]" in (attempt / "rank0.log").read_text()


def test_an_attempt_of_a_program_that_still_runs_is_left_alone(root: Path, attempt: Path) -> None:
    with attempt_in_progress(attempt), open_results(root):
        assert list(unfinished_attempts(root)) == []
        assert holding(root) == ["job.json", "rank0.log"]


def test_an_attempt_of_another_host_is_left_alone(
    root: Path, attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attempt_in_progress(attempt), monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
        elsewhere.setattr(fcntl, "flock", lambda *_: None)  # locks are local to a host
        redact_unfinished(root)
        assert holding(root) == ["job.json", "rank0.log"]
    redact_unfinished(root)
    assert holding(root) == []


def test_only_this_user_can_open_the_folder_until_the_attempt_is_recorded(
    root: Path, attempt: Path
) -> None:
    with attempt_in_progress(attempt):
        assert attempt.stat().st_mode & 0o777 == 0o700
        record_result(attempt, make_result())
    assert attempt.stat().st_mode == attempt.parent.stat().st_mode
    assert list(unfinished_attempts(root)) == []


def test_a_full_disk_costs_no_log_without_a_secret(root: Path, attempt: Path) -> None:
    (attempt / "rank1.log").write_text("nothing secret\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # every write fails
    try:
        redact_unfinished(root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (attempt / "rank0.log").read_text() == ""
    assert (attempt / "rank1.log").read_text() == "nothing secret\n"


def test_links_in_a_results_folder_from_elsewhere_change_no_file_outside(
    root: Path, attempt: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("job.json", "rank0.log"):
        (mine / name).write_text(f"{name} {SECRET}")
    (attempt.parent / "linked").symlink_to(mine)
    (attempt / "rank1.log").symlink_to(mine / "rank0.log")
    (attempt / "rank0.log.part").symlink_to(mine / "rank0.log")
    with open_results(root):
        pass
    assert {path.name: path.read_text() for path in mine.iterdir()} == {
        name: f"{name} {SECRET}" for name in ("job.json", "rank0.log")
    }
