"""`history` and `results regressions` of requests that arrive at a rate: latencies are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cli.program import Done, call
from serving_factory import serving
from store.store_factory import make_session

from accel_bench.result import Result
from accel_bench.store.database import open_store

SLOWER = {"seconds": 0.05}
"""Larger batches of a server with twice as many tokens per busy second."""

FIGURE = "request_latency_p50"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def store(folder: str, session: str, results: Iterable[Result], day: int = 1) -> None:
    """Store results in one session."""
    with open_store(Path(folder), write=True) as opened:
        opened.add_session(make_session(session))
        for number, one in enumerate(results):
            changes = {"session": session, "run_id": f"{session}-{number:03}"}
            changes["started_at"] = f"2026-01-{day:02}T01:00:{number:02}Z"
            opened.add(one.model_copy(update=changes))


def document(done: Done) -> Any:
    """The printed document."""
    assert done.out, done.err
    return json.loads(done.out)


def test_a_server_that_answers_later_looks_worse_than_the_reference(here: Path) -> None:
    store("before", "january", serving("base", 850))
    store("accel_bench_results", "june", serving("base", 4540, **SLOWER))
    done = call("results", "regressions", "--format", "json", "before")
    (row,) = document(done)["rows"]
    first = row["figures"][0]
    assert (done.code, first["name"], first["verdict"]) == (1, FIGURE, "worse")
    assert first["ratio"]["median"] == pytest.approx(4540 / 850)
    assert "tokens_per_second" not in {one["name"] for one in row["figures"]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rate": 1.0}, "requests arrive at 4 and at 1 a second"),
        ({"rate": None}, "one of the two answers requests at a rate"),
    ],
)
def test_servers_under_other_loads_are_not_compared_with_the_reference(
    here: Path, changes: dict[str, Any], reason: str
) -> None:
    store("before", "january", serving("base", 850))
    store("accel_bench_results", "june", serving("base", 4540, **SLOWER, **changes))
    done = call("results", "regressions", "--format", "json", "before")
    first = document(done)["rows"][0]["figures"][0]
    assert (done.code, first["name"], first["verdict"]) == (0, FIGURE, "not tested")
    assert first["reason"].startswith(reason)
    assert f"not tested: {reason}" in " ".join(call("results", "regressions", "before").out.split())


def test_a_server_that_became_saturated_is_worse_than_the_reference(here: Path) -> None:
    store("before", "january", serving("base", 850))
    store("both", "march", serving("base", 900, saturated=True))
    store("accel_bench_results", "june", serving("base", 900, saturated=True, rounds=5))
    done = call("results", "regressions", "--format", "json", "before")
    (row,) = document(done)["rows"]
    first = row["figures"][0]
    assert (done.code, row["state"], first["verdict"]) == (1, "newly saturated", "worse")
    assert first["reason"].startswith("saturated: the current runs at 4 requests/s")
    printed = " ".join(call("results", "regressions", "before").out.split())
    assert "1 of 1 rows look worse than the reference: 1 newly saturated" in printed
    assert "not tested" not in printed
    memory = call("results", "regressions", "before", "--figure", "peak_memory_bytes")
    assert memory.code == 1
    done = call("results", "regressions", "--format", "json", "both")
    (row,) = document(done)["rows"]
    assert (done.code, row["state"], row["figures"][0]["verdict"]) == (0, "compared", "not tested")


def test_a_history_names_the_session_since_which_requests_pile_up(here: Path) -> None:
    for night in range(8):
        runs = serving("base", 100, saturated=night in (1, 5, 6, 7))
        store("accel_bench_results", f"night-{night:02}", runs[:2], night + 1)
    name = runs[0].experiment.scenario.name
    found = document(call("history", "--format", "json", name))
    assert found["saturated_since"] == "night-05"
    assert "worse: every session since night-05 of 2026-01-06 is saturated" in found["conclusion"]
    assert (call("history", name).code, call("history", name, "--confirm").code) == (0, 1)
    store("accel_bench_results", "night-08", serving("base", 100)[:2], 9)
    found = document(call("history", "--format", "json", name))
    assert (found["saturated_since"], call("history", name, "--confirm").code) == ("", 0)


def test_a_history_follows_the_latency_and_leaves_saturated_sessions_out(here: Path) -> None:
    for night in range(18):
        early, late = 100 * (1 + night % 3 / 500), 200 * (1 + night % 3 / 500)
        runs = serving("base", late, **SLOWER) if night >= 9 else serving("base", early)
        runs = serving("base", early, saturated=True) if night == 3 else runs
        store("accel_bench_results", f"night-{night:02}", runs[:2], night + 1)
    found = document(call("history", "--format", "json", runs[0].experiment.scenario.name))
    (step,) = found["steps"]
    assert (found["figure"], found["unit"], found["better"]) == (FIGURE, "ms", "lower")
    assert (step["session"], step["change"]) == ("night-09", "worse")
    assert [one["value"] is None for one in found["points"]].index(True) == 3
    said = "1 of 18 sessions count for nothing: saturated: base at 4 requests/s"
    assert said in found["conclusion"]
