"""`accel-bench run --race` with real runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import call
from fault_plugins.distribution import install_doctored
from several_ranks.scenarios import forking

from accel_bench.store.database import open_store

SCENARIO = """\
name: racing
model: {use: null}
data: {use: null, sequence_length: 16}
optimizer: {use: null}
engine: {use: null}
metrics: []
launcher: forking
stacks:
  baseline: [{use: sleepy, sleeps: 3}]
  slow: [{use: sleepy, sleeps: 9}]
  fast: [sleepy]
measure: {warmup: 1, steps: 4}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the scenario; the doctored plugins are installed, and a forking launcher."""
    monkeypatch.chdir(tmp_path)
    Path("racing.yaml").write_text(SCENARIO, encoding="utf8")
    site = tmp_path / "site"
    site.mkdir()
    install_doctored(site)
    with forking(site, trains=False):
        yield


def race(*arguments: str) -> tuple[Any, str]:
    """The JSON document of a race, and what it says meanwhile."""
    done = call("run", "racing.yaml", "--race", "--format", "json", *arguments)
    assert done.code == 0, done.err
    return json.loads(done.out), done.err


def runs() -> Counter[str]:
    """Stored runs of each stack."""
    with open_store(Path("accel_bench_results"), write=False) as store:
        return Counter(run.experiment.stack.name for run in store.results())


@pytest.mark.box
def test_what_is_surely_not_the_best_runs_no_more_rounds_also_when_resumed() -> None:
    found, said = race("--rounds", "6")
    assert runs() == {"baseline": 6, "slow": 5, "fast": 6}
    assert "slow: dropped by --race after 5 rounds: surely slower than" in said
    rows = {row["stack"]: row for row in found["experiments"]}
    assert {row["status"] for row in rows.values()} <= {"ok", "degraded"}
    assert rows["slow"]["dropped"].startswith("dropped by --race after 5 rounds")
    (drop,) = found["race"]["drops"]
    assert (drop["stack"], drop["runs_saved"], found["race"]["runs_planned"]) == ("slow", 1, 18)

    with open_store(Path("accel_bench_results"), write=False) as store:
        assert all(session.document["race"] is True for session in store.sessions())
    report = call("report", "--format", "markdown")
    assert "runs completed" not in report.out, report.out

    found, _ = race("--rounds", "7", "--resume")
    assert runs() == {"baseline": 7, "slow": 5, "fast": 7}
    assert found["race"]["drops"][0]["runs_saved"] == 2


def test_a_race_that_could_drop_nothing_is_refused() -> None:
    for arguments, problem in (
        (("--rounds", "5"), "--race drops stacks after 5, 10, 20 ... rounds, and there are 5"),
        (("--rounds", "9", "--no-baseline"), "--race needs the baseline"),
    ):
        done = call("run", "racing.yaml", "--race", *arguments)
        assert done.code == 2
        assert problem in done.err


def test_rounds_of_sweep_points_are_interleaved_on_request() -> None:
    swept = ("--set", "sweep.data.sequence_length=[8, 16]", "--only", "fast", "--no-baseline")
    done = call("run", "racing.yaml", "-q", *swept, "--rounds", "2", "--interleave")
    assert done.code == 0, done.err
    with open_store(Path("accel_bench_results"), write=False) as store:
        found = [
            (run.round, run.experiment.scenario.data.sequence_length) for run in store.results()
        ]
    assert found == [(0, 8), (0, 16), (1, 16), (1, 8)]
