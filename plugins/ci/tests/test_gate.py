"""`accel-bench gate` with real runs: outcomes, and reports for CI."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli.program import Done, call
from fault_plugins.active import faulty_installed
from fault_plugins.distribution import install_doctored
from several_ranks.scenarios import forking

from accel_bench.cli.options import parse_fraction
from accel_bench.errors import ScenarioError
from accel_bench.store.database import open_store

pytestmark = pytest.mark.long

SCENARIO = """\
name: gated
model: {use: null}
data: {use: null, sequence_length: 16}
optimizer: {use: null}
engine: {use: null, step_seconds: 0.01}
metrics: []
stacks:
  baseline: [{use: sleepy}]
  twin: [{use: sleepy}]
  doubled: [{use: sleepy, sleeps: 2}]
  unlike: [{use: sleepy, loss_factor: 1.1}]
  set-doubled: {set: {engine.step_seconds: 0.02}}
  broken: [{use: faulty, fault: broken}]
measure: {warmup: 1, steps: 8, rounds: 1}
"""

TRAINED = """\
name: trained
model: {overrides: {num_hidden_layers: 1}}
data: {sequence_length: 16}
resources: {device: cpu, threads: 1}
stacks: {baseline: [], frozen: [frozen]}
measure: {warmup: 1, steps: 2, rounds: 1}
"""


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder with the doctored and the faulty plugins installed, and a light launcher."""
    folder = tmp_path_factory.mktemp("site")
    install_doctored(folder)
    with faulty_installed(folder), forking(folder, trains=False):
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with the scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gated.yaml").write_text(SCENARIO, encoding="utf8")
    return tmp_path


def gate(*arguments: str) -> Done:
    """Gate a stack of the scenario."""
    return call("gate", "gated.yaml", "--quiet", "--set", "launcher=forking", *arguments)


def document(*arguments: str) -> tuple[Any, dict[str, Any]]:
    """Exit code and JSON document."""
    done = gate("--format", "json", *arguments)
    assert done.out, done.err
    return done.code, json.loads(done.out)


def rounds(stack: str) -> list[tuple[str, int]]:
    """Session and round of every stored run of a stack."""
    with open_store(Path("accel_bench_results"), write=False) as store:
        return [(r.session, r.round) for r in store.results() if r.experiment.stack.name == stack]


def test_a_plugin_that_doubles_the_step_is_a_regression(folder: Path) -> None:
    junit, markdown = folder / "gate.xml", folder / "gate.md"
    # Steps that are long beside what other programs take from them.
    files = (
        "--junit",
        str(junit),
        "--markdown",
        str(markdown),
        "--set",
        "engine.step_seconds=0.05",
    )
    code, found = document(
        "--stack", "doubled", "--against", "baseline", "--tolerance", "1%", *files
    )
    (point,) = found["points"]
    assert (code, found["exit_code"], found["outcome"]) == (4, 4, "regression")
    assert (point["rounds"], point["looks"], point["loss_verdict"]) == (5, 1, "bitwise equal")
    assert 0.5 < point["slower_by"] < 1.5
    assert "doubled is slower than baseline by more than 1 %" in point["reason"]
    assert "confirmed by 5 new rounds in fresh processes" in point["reason"]
    assert (point["confirmed"], point["confirmation_rounds"]) == (True, 5)
    with open_store(folder / "accel_bench_results", write=False) as store:
        sessions = Counter(run.session for run in store.results())
    assert list(sessions.values()) == [10, 10]

    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "regression"
    assert failure.get("message") == point["reason"]
    assert markdown.read_text(encoding="utf8").startswith("## gated: regression (exit 4)\n")


def test_what_a_stack_sets_holds_in_its_runs_and_not_in_those_of_the_plain_one() -> None:
    document("--stack", "set-doubled", "--against", "baseline", "--rounds", "1")
    with open_store(Path("accel_bench_results"), write=False) as store:
        set_to = {
            run.experiment.stack.name: run.experiment.scenario.engine.options["step_seconds"]
            for run in store.results()
        }
    assert set_to == {"baseline": 0.01, "set-doubled": 0.02}


def test_a_plugin_that_changes_the_loss_does_not_pass_however_fast_it_is() -> None:
    code, found = document("--stack", "unlike", "--tolerance", "50%", "--rounds", "1")
    (point,) = found["points"]
    assert (code, point["loss_verdict"]) == (4, "different")
    assert (
        "the training of unlike is different (its loss differs by up to 10 %, 0.1 % allowed)"
        == point["reason"]
    )


def test_too_few_rounds_are_inconclusive_until_the_missing_ones_are_added() -> None:
    # Steps that are long beside what other programs take from them.
    twin = ("--stack", "twin", "--tolerance", "50%", "--set", "engine.step_seconds=0.05")
    code, found = document(*twin, "--rounds", "2")
    (point,) = found["points"]
    assert (code, point["rounds"], point["more_rounds"]) == (5, 2, 3)
    code, found = document(*twin, "--rounds", "5", "--resume")
    (point,) = found["points"]
    assert (code, point["rounds"], point["looks"], point["more_rounds"]) == (0, 5, 2, None)
    assert "twin is not slower than baseline by more than 50 %" in point["reason"]
    assert len(rounds("twin")) == len(rounds("baseline")) == 5
    assert rounds("doubled") == []


def test_rounds_are_added_up_to_the_limit_and_each_time_is_a_look() -> None:
    # Nothing passes a floor of a ten-millionth: every look stays open.
    open_gate = ("--stack", "twin", "--tolerance", "0.0000001")
    code, found = document(*open_gate, "--rounds", "1", "--max-rounds", "2")
    (point,) = found["points"]
    assert (code, point["rounds"], point["looks"]) == (5, 2, 2)
    by_look = [session for session, _ in rounds("twin")]
    assert [by_look.count(session) for session in dict.fromkeys(by_look)] == [1, 1]
    assert sorted(number for _, number in rounds("twin")) == [0, 1]

    # Rounds of earlier commands do not count unless they are resumed.
    _, found = document(*open_gate, "--rounds", "1")
    assert found["points"][0]["rounds"] == 1
    assert len(rounds("twin")) == 3


def test_a_failed_run_is_neither_passed_nor_open() -> None:
    done = gate("--stack", "broken", "--rounds", "1")
    assert done.code == 1
    assert "a run of broken ended as failed: ValueError: broken on purpose" in done.out


def test_a_plugin_that_freezes_all_parameters_is_invalid(folder: Path) -> None:
    importlib.import_module("accel_bench.modeling.loading")  # once, for both ranks
    (folder / "trained.yaml").write_text(TRAINED, encoding="utf8")
    arguments = ("--stack", "frozen", "--rounds", "1", "-q", "--format", "json")
    done = call("gate", "trained.yaml", "--set", "launcher=forking", *arguments)
    found = json.loads(done.out)
    (point,) = found["points"]
    assert (done.code, found["outcome"]) == (1, "failed")
    assert point["status"] == "invalid"
    assert point["against_status"] in ("ok", "degraded")
    assert "no parameter requires a gradient" in point["reason"]


def test_every_sweep_point_is_judged() -> None:
    sweep = ("--set", "sweep.train.seed=[1,2]", "--rounds", "1")
    done = gate("--stack", "twin", "--format", "csv", *sweep)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert done.code == 5, done.err
    assert [row["sweep"] for row in rows] == ['{"train.seed":1}', '{"train.seed":2}']
    assert {(row["outcome"], row["rounds"]) for row in rows} == {("inconclusive", "1")}


def test_an_open_point_gets_its_rounds_though_another_one_has_failed() -> None:
    plain = ("--set", "stacks.baseline=[]", "--set", "stacks.twin=[]")
    sweep = ("--set", "sweep.engine.step_seconds=[0.001,5]", "--set", "measure.timeout_seconds=3")
    looks = ("--rounds", "1", "--max-rounds", "2", "--tolerance", "0.0000001")
    code, found = document("--stack", "twin", *plain, *sweep, *looks)
    points = [(one["outcome"], one["rounds"]) for one in found["points"]]
    assert (code, points) == (1, [("inconclusive", 2), ("failed", 0)])


def test_a_dry_run_shows_the_two_stacks_and_starts_nothing() -> None:
    done = gate("--stack", "doubled", "--against", "twin", "--dry-run", "--format", "json")
    plan = json.loads(done.out)
    assert done.code == 0
    assert plan["runs"] == 10
    assert {row["stack"] for row in plan["experiments"]} == {"doubled", "twin"}
    assert not Path("accel_bench_results").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--stack", "baseline"), "cannot be compared with itself"),
        (("--stack", "double"), "did you mean 'doubled'?"),
        (("--stack", "twin", "--against", "basline"), "did you mean 'baseline'?"),
        (("--stack", "twin", "--tolerance", "1"), "write 1% or 0.01"),
        (("--stack", "twin", "--rounds", "9", "--max-rounds", "6"), "--max-rounds 6 is less"),
        (("--stack", "twin", "--max-rounds", "2000"), "more than --max-runs 1,000"),
        (("--stack", "twin", "--junit", "no/such/file.xml"), "no/such/file.xml cannot be written"),
    ],
)
def test_what_cannot_be_gated_is_refused_before_anything_runs(
    arguments: tuple[str, ...], said: str
) -> None:
    done = gate(*arguments)
    assert done.code == 2
    assert said in done.err
    assert not Path("accel_bench_results").exists()


def test_a_floor_is_a_fraction() -> None:
    assert parse_fraction("1%", "--tolerance") == parse_fraction(" 1 % ", "--tolerance") == 0.01
    assert parse_fraction("0.025", "--tolerance") == 0.025
    for text in ("0", "100%", "-1%", "one", "1%%", "nan", ""):
        with pytest.raises(ScenarioError):
            parse_fraction(text, "--tolerance")
