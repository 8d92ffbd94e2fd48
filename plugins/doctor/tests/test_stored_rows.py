"""`accel-bench results check` lists rows whose figures disagree, and corrupt ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from analysis_factory import make_experiment, make_result
from cli.program import call
from store.store_factory import change_payload, make_session

from accel_bench.result import Status
from accel_bench.store.database import open_store

SOUND = make_experiment("lora")
TOO_SHORT = make_experiment("short", scenario={"data": {"sequence_length": 220}})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder with a sound row and a failed one."""
    with open_store(tmp_path, write=True) as store:
        store.add_session(make_session())
        store.add(make_result(SOUND).model_copy(update={"run_id": "sound"}))
        failed = make_result(TOO_SHORT, status=Status.OOM)
        store.add(failed.model_copy(update={"run_id": "failed"}))
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(tmp_path))
    return tmp_path


def add_broken(folder: Path) -> None:
    """Store a row whose samples were not as long as it was asked."""
    with open_store(folder, write=True) as store:
        store.add(make_result(TOO_SHORT).model_copy(update={"run_id": "broken"}))


def test_sound_rows_pass(folder: Path) -> None:
    for place in ((), (str(folder),), ("--results", str(folder))):
        done = call("results", "check", *place)
        assert (done.code, done.out) == (0, "2 rows, 1 completed: no invariant is broken\n")


def test_a_broken_row_is_listed_with_its_figures(folder: Path) -> None:
    add_broken(folder)
    done = call("results", "check", str(folder))
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("broken ")]
    assert "sequence_length" in line
    assert "the sequence length is 220" in line
    assert "3 rows, 2 completed: 1 with broken invariants" in done.out


def test_a_corrupt_row_is_listed_too(folder: Path) -> None:
    change_payload(folder, "sound", '"loss":2.0', '"loss":1.0')
    done = call("results", "check", "--format", "json")
    found = json.loads(done.out)
    assert done.code == 1
    assert (found["rows"], found["audited"]) == (2, 0)
    assert [(one["run_id"], one["invariant"]) for one in found["broken"]] == [("sound", "checksum")]


def test_a_table_and_the_document_name_the_same(folder: Path) -> None:
    add_broken(folder)
    (found,) = json.loads(call("results", "check", "--format", "json").out)["broken"]
    printed = call("results", "check").out
    for key in ("run_id", "experiment_id", "stack", "invariant", "figures"):
        assert key in printed
        assert found[key] in printed


def test_a_folder_without_results_is_an_error(tmp_path: Path) -> None:
    done = call("results", "check", str(tmp_path / "nothing"))
    assert done.code == 2
    assert "there are no results" in done.err


def test_a_broken_row_is_degraded_where_it_is_listed(folder: Path) -> None:
    add_broken(folder)
    rows = json.loads(call("results", "list", "--format", "json").out)
    assert {row["run_id"]: row["status"] for row in rows} == {
        "sound": "ok",
        "failed": "oom",
        "broken": "degraded",
    }
