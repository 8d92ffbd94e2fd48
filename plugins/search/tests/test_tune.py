"""`accel-bench tune` with real runs: a rate wins, a cheat fails, missing memory is data."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import Done, call
from fault_plugins.distribution import install
from several_ranks.scenarios import forking

from accel_bench.analysis.checks import noise
from accel_bench.analysis.checks.audit import audit
from accel_bench.result import Result, Status
from accel_bench.store.database import open_store

LEARNER = """
import itertools
import random
import resource
import time

import psutil

from accel_bench import Options, Plugin, hookimpl


class LearnerOptions(Options):
    pause: float = 0.0
    cheat: bool = False


class Learner(Plugin[LearnerOptions]):
    Options = LearnerOptions

    @hookimpl
    def accelerate_model(self, run):
        limit = psutil.Process().memory_info().vms + 100 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        self.held = bytearray(run.scenario.train.micro_batch_size * 2**23)

    @hookimpl
    def build_engine(self, run):
        return Engine(run, self.options)


class Engine:
    def __init__(self, run, options):
        self.run_context, self.options = run, options

    def run(self, stopwatch):
        train = self.run_context.scenario.train
        noise = random.Random(train.seed)
        # The best rate is 0.1; each seed scatters the loss by 1 %.
        rate = 1 / (1 + abs(train.learning_rate - 0.1) / 0.1)
        for step in itertools.count():
            if not stopwatch.running:
                return
            time.sleep(0.0 if self.options.cheat else self.options.pause)
            loss = (1 + noise.gauss(0, 0.01)) / (1 + 0.1 * rate * step)
            stopwatch.lap([next(self.run_context.batches)], loss / (2 if self.options.cheat else 1))
"""
"""A plugin that learns at a rate, pauses in each step, and optionally cheats."""

SCENARIO = """\
name: learns
model: {use: null}
data: {use: null, sequence_length: 16}
train: {micro_batch_size: 2, learning_rate: 0.001}
optimizer: {use: null}
engine: {use: null}
metrics: []
launcher: forking
stacks:
  baseline: [{use: learner, pause: 0.02}]
measure: {warmup: 1, steps: 8, timeout_seconds: 60}
"""


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plugin is installed, and a launcher that imports nothing."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "accel-bench-learner", {"learner": "Learner"}, LEARNER)
    with forking(folder, trains=False):
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with an odd name to work in, with the scenario."""
    folder = tmp_path / "odd ?name#%41"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "learns.yaml").write_text(SCENARIO, encoding="utf8")
    return folder


def tune(*arguments: str) -> Done:
    """Tune the scenario."""
    return call("tune", "learns.yaml", "--quiet", *arguments)


def document(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON document of a study that must end with the code."""
    done = tune("--format", "json", *arguments)
    assert done.code == code, done.err
    return dict(json.loads(done.out))


def stored() -> list[Result]:
    """All stored runs."""
    with open_store(Path("accel_bench_results"), write=False) as store:
        return store.results()


RATE = ("--vary", "train.learning_rate=1e-4..1:log", "--objective", "loss")
NO_PAUSE = ("--set", "stacks.baseline.learner.pause=0")


def test_a_learning_rate_wins_and_the_study_goes_on_where_it_was_stopped() -> None:
    at = ("--until", "tokens=640", *NO_PAUSE)
    found = document(*RATE, *at, "--trials", "5")
    assert found["trials"][0]["parameters"] == {"train.learning_rate": 0.001}, "the scenario's own"
    assert found["baseline"]["value"] > found["best"]["value"]
    assert found["best"]["parameters"]["train.learning_rate"] > 0.01
    assert found["check"]["verdict"] == "better"
    assert found["check"]["rounds"] == 5
    assert found["check"]["ratio"]["high"] < 1
    assert "its loss at 640 tokens is surely" in found["answer"]
    assert "Use --set train.learning_rate=0." in found["answer"]

    runs = {run.run_id: run for run in stored()}
    for trial in found["trials"]:
        run = runs[trial["run_id"]].experiment.scenario
        assert run.train.learning_rate == trial["parameters"]["train.learning_rate"]
    database = sqlite3.connect("accel_bench_results/results.sqlite")
    assert database.execute("SELECT count(*) FROM trials").fetchone() == (5,)
    database.close()

    again = document(*RATE, *at, "--trials", "5")
    assert len(stored()) == len(runs), "nothing was run again"
    assert (again["trials"], again["answer"]) == (found["trials"], found["answer"])
    more = document(*RATE, *at, "--trials", "5", "--check-rounds", "6")
    assert len(stored()) == len(runs) + 2, "the check goes on"
    assert (more["check"]["rounds"], more["check"]["verdict"]) == (6, "better")
    assert call("results", "list").code == 0, "the tables stand side by side"
    assert [one for run in stored() for one in audit(run)] == []


def test_speed_counts_only_at_an_equivalent_loss_and_the_winner_meets_the_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Other tests beside it are other work, with which nothing is called faster.
    monkeypatch.setitem(noise.LOADS, "others", ("other work took", 1.0))
    options = "stacks.baseline.learner"
    axes = ("--vary", f"{options}.pause=0.05,0.001", "--vary", f"{options}.cheat=false,true")
    # What else the scenario compares stacks by is no objective.
    memory = ("--set", "measure.compare=peak_memory_bytes")
    found = document(*axes, *memory, "--trials", "7")
    best = found["best"]["parameters"]
    assert best == {f"{options}.pause": 0.001, f"{options}.cheat": False}
    cheats = [one for one in found["trials"] if one["parameters"][f"{options}.cheat"]]
    assert cheats
    assert {one["outcome"] for one in cheats} == {"infeasible"}
    assert "its loss differs" in cheats[0]["reason"]
    check = found["check"]
    assert (check["verdict"], check["rounds"]) == ("better", 5)
    assert "tuned is" in check["reason"]
    assert "with a bitwise equal loss" in check["reason"]
    both = [run for run in stored() if run.session == check["session"]]
    assert [run.round for run in both] == sorted([*range(5)] * 2), "interleaved"


@pytest.mark.release
def test_memory_comes_first_and_nothing_larger_than_what_is_too_large_is_run() -> None:
    axis = ("--vary", "train.micro_batch_size=1..64", "--objective", "loss")
    found = document(*axis, "--until", "tokens=200", *NO_PAUSE, "--trials", "6")
    sizes = {
        outcome: [
            one["parameters"]["train.micro_batch_size"]
            for one in found["trials"]
            if one["outcome"] == outcome
        ]
        for outcome in ("ok", "out of memory", "not run")
    }
    assert sizes["ok"]
    assert max(sizes["ok"]) <= 12 < min(sizes["out of memory"])
    assert sizes["not run"]
    assert min(sizes["not run"]) > min(sizes["out of memory"])
    assert found["answer"].startswith(
        f"First fit: {len(sizes['out of memory'])} of 6 trials ran out"
    )
    statuses = [run.status for run in stored()]
    assert statuses.count(Status.OOM) == len(sizes["out of memory"])


@pytest.mark.release
def test_loss_at_a_time_is_read_from_runs_that_are_long_enough() -> None:
    # 8 steps of 20 ms do not fill 0.4 seconds: the pilot is followed by a longer run.
    arguments = ("--vary", "train.learning_rate=0.001,0.1", "--objective", "loss", "--trials", "2")
    dollars = ("--until", "dollars=0.4", "--price", "3600")
    found = document(*arguments, *dollars)
    assert found["objective"]["amount"] == 0.4
    assert all(one["outcome"] == "ok" for one in (found["baseline"], *found["trials"]))
    steps = [run.experiment.scenario.measure.steps for run in stored()]
    assert steps[0] == 8
    assert min(steps[1:]) > 15


@pytest.mark.box
def test_a_rate_of_requests_is_no_setting_of_a_server_and_answers_have_no_loss() -> None:
    served = ("tune", "inference-cpu", "--set", "inference.rate=4")
    error = call(*served, "--vary", "inference.rate=1..8").err
    assert "fewer requests are always answered sooner" in error
    error = call(
        *served, "--vary", "inference.batch_size=1,2", *RATE[2:], "--until", "tokens=9"
    ).err
    assert "a model that answers requests has no loss" in error


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "tune needs --vary KEY=SPEC"),
        (("--vary", "train.learning_rate"), "expected KEY=SPEC"),
        (("--vary", "train.learning_rate=0..1:log"), "is no range above 0"),
        (("--vary", "train.learning_rate=a..b"), "'a' is no number"),
        (("--vary", "train.rate=1..2"), "rate"),
        (("--vary", "train.learning_rate=0.1,0.2", "--objective", "loss"), "--until seconds=60"),
        (("--vary", "train.learning_rate=0.1,0.2", "--until", "seconds=1"), "--objective loss"),
        (
            ("--vary", "data.sequence_length=8,16", *RATE[2:], "--until", "tokens=9"),
            "--vary data.sequence_length with --objective loss: losses on other data, or of",
        ),
        (
            ("--vary", "model.id=a,b", *RATE[2:], "--until", "tokens=9"),
            "--vary model.id with --objective loss",
        ),
        ((*RATE, "--until", "dollars=1"), "--until dollars=N needs --price"),
        ((*RATE, "--until", "tokens=9", "--metric-below", "much"), "write peak_memory_bytes=16GiB"),
        ((*RATE, "--until", "tokens=9", "--stack", "none"), "none"),
    ],
)
def test_what_cannot_be_tuned_is_named_before_anything_runs(
    arguments: tuple[str, ...], problem: str
) -> None:
    done = tune(*arguments)
    assert done.code == 2, done.out
    assert problem in done.err


def test_without_optuna_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = tune(*RATE, "--until", "tokens=9")
    assert done.code == 2
    assert "pip install 'accel-bench[tune]'" in done.err
