"""Secrets of the environment are in no file of the results folder, whatever a plugin does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from faults.program import Finished, Program, null_scenario, wait_for, write_scenario

CANARIES = {
    "HF_TOKEN": "hf_CANARYa1b2c3d4e5f6g7h8i9",
    "AWS_SECRET_ACCESS_KEY": "CANARY/aws+wJalrXUtnFEMI",
    "MY_DATABASE_PASSWORD": "CANARY hunter2 with spaces",
    "SMTP_PASS": "CANARY-of-the-mail",
    "GH_PAT": "CANARY-of-the-forge",
    "SLACK_WEBHOOK_URL": "https://hooks.example.org/CANARY/of/a/channel",
    "DATABASE_URL": "postgresql://me:CANARY-of-the-address@host/runs",
}
OF_THE_SCENARIO = {"WANDB_API_KEY": "CANARY-of-the-scenario-0123456789"}
"""A secret that a trusted scenario sets itself."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Finished:
    """A program whose plugin prints and raises all that it finds, in the worker."""
    program = Program(tmp_path_factory.mktemp("secrets"), site, CANARIES)
    stacks = {
        "baseline": [],
        "blab": [{"use": "faulty", "fault": "blab"}],
        "hook": [{"use": "faulty", "fault": "blab", "hook": "load_model"}],
        "argument": [{"use": "faulty", "value": CANARIES["HF_TOKEN"]}],
    }
    scenario = null_scenario(stacks, environment=OF_THE_SCENARIO)
    secret = CANARIES["AWS_SECRET_ACCESS_KEY"]
    option = f"stacks.hook.faulty.value='{secret}'"
    return program.run(scenario, "--allow-env", "--set", option)


def test_the_plugin_did_what_it_could(finished: Finished) -> None:
    for stack in ("blab", "hook"):
        reasons = " ".join(finished.result(stack).reasons)
        assert "could not log in" in reasons
        assert "[redacted]" in reasons
        assert "[redacted]" in finished.log(stack)


def test_no_file_of_the_results_holds_a_secret(finished: Finished) -> None:
    files = [path for path in finished.program.results_folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"rank0.log", "rank0.json", "result.json", "job.json"}
    holding = [str(path) for path in files if b"CANARY" in path.read_bytes()]
    assert holding == []


def test_files_can_be_read_by_others_once_they_hold_none(finished: Finished) -> None:
    (folder,) = finished.program.results_folder.glob("runs/*/*-blab-*")
    readers = folder.parent.stat().st_mode & 0o044
    modes = {path.name: path.stat().st_mode & 0o044 for path in folder.iterdir()}
    assert modes == dict.fromkeys(modes, readers)
    assert {"job.json", "rank0.json", "rank0.log"} <= {*modes}


def test_nothing_that_is_printed_holds_one(finished: Finished) -> None:
    assert "CANARY" not in finished.out + finished.err


@pytest.mark.box
def test_what_is_listed_and_shown_later_holds_none(finished: Finished) -> None:
    shown = finished.program.call("results", "export")
    assert shown.code == 0
    assert "CANARY" not in shown.out


def test_what_a_killed_program_leaves_is_redacted_by_the_next_one(program: Program) -> None:
    endless = {"baseline": [{"use": "faulty", "fault": "sleep"}]}
    path = write_scenario(
        program.folder / "s.yaml", null_scenario(endless, environment=OF_THE_SCENARIO)
    )
    unread = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = program.start("run", str(path), "--quiet", "--allow-env", **unread)
    pages = "runs/*/*/rank0.heartbeat"
    assert wait_for(lambda: any(p.stat().st_size for p in program.results_folder.glob(pages)))
    process.kill()
    process.wait()
    assert program.left_behind() == []
    (job,) = program.results_folder.glob("runs/*/*/job.json")
    assert job.parent.stat().st_mode & 0o777 == 0o700
    for name in ("job.json", "rank0.log"):
        assert job.with_name(name).stat().st_mode & 0o777 == 0o600
    assert b"CANARY" in job.read_bytes()
    assert program.call("results", "list").code == 0
    assert b"CANARY" not in job.read_bytes()
