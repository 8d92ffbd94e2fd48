"""`accel-bench history`: a stored series, and its newest step confirmed by real runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import Done, call
from several_ranks.scenarios import forking

from accel_bench.result import Result
from accel_bench.store.database import SessionRecord, open_store

SCENARIO = """\
name: nightly
model: {use: null}
data: {use: null, sequence_length: 16}
optimizer: {use: null}
engine: {use: null, step_seconds: 0.01}
metrics: []
stacks: {baseline: [], other: {set: {engine.step_seconds: 0.012}}}
measure: {warmup: 1, steps: 8, rounds: 2}
"""

FORKING = ("--quiet", "--set", "launcher=forking")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Result]]:
    """The runs of one real session; the launcher stays installed, since others follow."""
    folder = tmp_path_factory.mktemp("site")
    scenario = folder / "nightly.yaml"
    scenario.write_text(SCENARIO, encoding="utf8")
    with forking(folder, trains=False):
        done = call("run", str(scenario), *FORKING, "--results", str(folder / "results"))
        assert done.code == 0, done.err
        with open_store(folder / "results", write=False) as store:
            yield store.results()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nightly.yaml").write_text(SCENARIO, encoding="utf8")
    return tmp_path


def lasting(result: Result, factor: float) -> Result:
    """The same run with steps that took `factor` times as long."""
    ranks = []
    for rank in result.ranks:
        assert rank.window is not None
        window = rank.window
        parts = {
            part: tuple(
                one.model_copy(update={"seconds": one.seconds * factor})
                for one in getattr(window, part)
            )
            for part in ("samples", "warmup")
        }
        ended = window.started + (window.ended - window.started) * factor
        window = window.model_copy(update={**parts, "ended": ended})
        ranks.append(rank.model_copy(update={"window": window}))
    return result.model_copy(update={"ranks": tuple(ranks), "seen_windows": ()})


def store(measured: list[Result], factors: list[float], stack: str) -> None:
    """Store a session for each factor, by which the steps of one stack are lengthened."""
    with open_store("accel_bench_results", write=True) as opened:
        for number, factor in enumerate(factors):
            name, day = f"night-{number:02}", f"2026-01-{number + 1:02}T01:00"
            opened.add_session(SessionRecord(id=name, started_at=f"{day}:00Z", scenario="nightly"))
            for place, one in enumerate(measured):
                slow = factor * (1 + 0.002 * ((7 * number + place) % 5))
                changed = lasting(one, slow if one.experiment.stack.name == stack else 1.0)
                update = {"session": name, "run_id": f"{name}-{place}"}
                update["started_at"] = f"{day}:{place:02}Z"
                opened.add(changed.model_copy(update=update))


def history(*arguments: str) -> Done:
    """The history of the scenario."""
    return call("history", *arguments)


def document(*arguments: str) -> tuple[Any, Any]:
    """Exit code and JSON document."""
    done = history("--format", "json", *arguments)
    assert done.out, done.err
    return done.code, json.loads(done.out)


def test_a_series_is_printed_with_its_step(measured: list[Result], here: Path) -> None:
    store(measured, [1.0] * 8 + [1.2] * 8, "other")
    done = history("nightly", "--only", "other")
    assert done.code == 0
    assert "% less, worse since session night-08" in done.out
    assert "steps are estimates until new runs confirm them" in done.out
    code, found = document("nightly.yaml", "--figure", "median_step_seconds")
    by_stack = {one["stack"]: one for one in found}
    assert (code, by_stack["baseline"]["steps"]) == (0, [])
    (step,) = by_stack["other"]["steps"]
    assert (step["session"], step["change"], step["points_since"]) == ("night-08", "worse", 8)
    rows = csv.DictReader(io.StringIO(history("nightly", "--format", "csv").out))
    assert [row["session"] for row in rows if row["step_change"] == "worse"] == ["night-08"]
    assert "no step in 8 sessions" not in done.out
    few = history("nightly", "--where", "started_at < 2026-01-07", "--only", "other")
    assert "6 of the 14 sessions that a search for steps needs" in few.out
    narrow = call("history", "nightly", COLUMNS="80").out.splitlines()
    assert max(map(len, narrow)) <= 80


def test_a_step_is_confirmed_by_new_runs_or_it_is_not(measured: list[Result], here: Path) -> None:
    # What runs now is as fast as the newest sessions: the step is real.
    store(measured, [0.2] * 8 + [1.0] * 8, "other")
    arguments = ("nightly.yaml", "--only", "other", "--confirm", *FORKING)
    code, found = document(*arguments, "--rounds", "5")
    (confirmed,) = found["confirmations"]
    assert (code, confirmed["confirmed"]) == (1, True)
    assert (confirmed["basis"], confirmed["rounds"]) == ("ratio to the baseline", 5)
    assert confirmed["error_rate"] == 0.005
    assert -0.95 < confirmed["relative_change"] < -0.5
    assert "is confirmed: new runs, as a ratio to the baseline, are -" in confirmed["conclusion"]
    with open_store("accel_bench_results", write=False) as opened:
        ids = {run.run_id: run.session for run in opened.results()}
    assert len({ids[one] for one in confirmed["run_ids"]}) == 1  # one new session
    # What runs now is as fast as the older sessions: something else made the newest ones slow.
    (here / "accel_bench_results").rename(here / "set-aside")
    store(measured, [1.0] * 8 + [2.0] * 8, "other")
    done = history(*arguments)
    assert done.code == 0
    assert "is not confirmed" in done.out


def test_a_dry_run_prints_the_plan_and_confirms_nothing(measured: list[Result], here: Path) -> None:
    store(measured, [0.2] * 8 + [1.0] * 8, "other")
    done = history("nightly.yaml", "--only", "other", "--confirm", "--dry-run", *FORKING)
    assert (done.code, "nightly: 10 runs" in done.out) == (0, True)
    with open_store("accel_bench_results", write=False) as opened:
        assert len({run.session for run in opened.results()}) == 16  # nothing was run


def on_h100(result: Result) -> Result:
    """The same run, planned for another device."""
    made = result.experiment
    environment = {**made.identity["environment"], "devices": ["NVIDIA H100"]}
    identity = {**made.identity, "environment": environment}
    changed = made.model_copy(update={"identity": identity, "id": f"{made.id[:-4]}h100"})
    return result.model_copy(update={"experiment": changed})


def test_a_step_on_another_device_is_not_confirmed_here(measured: list[Result], here: Path) -> None:
    store([on_h100(run) for run in measured], [1.0] * 8 + [1.2] * 8, "other")
    done = history("nightly.yaml", "--only", "other", "--confirm", *FORKING)
    assert (done.code, done.out) == (2, "")
    assert "of other on NVIDIA H100 is not confirmed: new runs here are of other work" in done.err
    with open_store("accel_bench_results", write=False) as opened:
        assert len({run.session for run in opened.results()}) == 16  # nothing was run


BAD = {
    ("nightyl",): "no measured run of 'nightyl'",
    ("nightly", "--only", "none"): "its stacks: ",
    ("nightly", "--figure", "tokens_per_secnd"): "did you mean 'tokens_per_second'",
    ("nightly", "--where", "stack ="): "cannot be understood",
}


def test_bad_input_is_named(measured: list[Result], here: Path) -> None:
    store(measured, [1.0], "other")
    for arguments, said in BAD.items():
        done = history(*arguments)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
