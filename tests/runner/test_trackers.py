"""Trackers: runs are logged elsewhere after they are stored, and no error of that loses a row."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis_factory import LORA, NF4, make_rounds, make_summary
from cli.program import NULLS, call, surroundings, write_nulls
from fault_plugins.distribution import install

import accel_bench
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.runner import observers as trackers
from accel_bench.scenario.find import find_drafts

SOURCE = """
import json, os
from accel_bench import Options, Plugin, hookimpl

class Diary(Plugin[Options]):
    @hookimpl
    def record_result(self, result, summary, results_folder):
        os.environ["DIARY"] = "open"
        line = result.run_id if result else [row.stack for row in summary.experiments]
        with open(results_folder / "diary.jsonl", "a") as file:
            print(json.dumps(line), file=file)

class Clumsy(Plugin[Options]):
    @hookimpl
    def record_result(self, result):
        raise LookupError("the server is away")

class Absent(Plugin[Options]):
    requires = ("no-such-library>=1",)
    @hookimpl
    def record_result(self, result):
        raise LookupError
"""
SCENARIO: dict[str, Any] = yaml.safe_load(NULLS)


@pytest.fixture(scope="module")
def installed_trackers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trackers of a stranger's distribution."""
    folder = tmp_path_factory.mktemp("strangers")
    names = {"diary": "Diary", "clumsy": "Clumsy", "absent": "Absent"}
    install(folder, "accel-bench-diary", names, SOURCE)
    with surroundings(folder, {"PYTHONPATH": str(folder)}):
        yield


def plan_with(request: PlanRequest | None = None, **changes: Any) -> Plan:
    """Plan the scenario without torch, changed."""
    (draft,) = find_drafts([{**SCENARIO, **changes}])
    return make_plan(draft, read_machine(), request or PlanRequest())


@pytest.mark.usefixtures("installed_trackers")
def test_every_stored_run_is_logged_and_an_error_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = accel_bench.run(
            SCENARIO, results=tmp_path, plugins=["diary"], overrides={"trackers": ["clumsy"]}
        )
    lines = (tmp_path / "diary.jsonl").read_text(encoding="utf8").splitlines()
    assert [yaml.safe_load(line) for line in lines] == [*found.ids, ["baseline", "other"]]
    assert [run.status.value for run in found] == ["ok", "ok"]
    (warning,) = [one.getMessage() for one in caplog.records if "clumsy" in one.getMessage()]
    assert "LookupError: the server is away" in warning
    assert "accel-bench-diary" in warning
    assert "stored all the same" in warning


@pytest.mark.usefixtures("installed_trackers")
def test_the_program_names_the_tracker_that_failed_and_changes_no_stack(tmp_path: Path) -> None:
    file = write_nulls(tmp_path, stacks="{baseline: []}")
    done = call("run", str(file), "--plugin", "clumsy", "--results", str(tmp_path / "results"))
    assert done.code == 0
    assert done.err.count("warning: plugin 'clumsy'") == 1
    (stored,) = accel_bench.open_store(tmp_path / "results").select()
    assert stored.experiment.stack.name == "baseline"


@pytest.mark.usefixtures("installed_trackers")
def test_a_tracker_is_no_part_of_an_experiment() -> None:
    plain, tracked = plan_with(), plan_with(trackers=["diary"])
    assert [one.experiment.id for one in plain.planned] == [
        one.experiment.id for one in tracked.planned
    ]
    assert plain.trackers is None
    assert tracked.trackers is not None
    named = plan_with(PlanRequest(trackers=("diary",)), trackers=["diary"])
    assert named.trackers is not None
    assert len(named.trackers.plugins) == 1


@pytest.mark.usefixtures("installed_trackers")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stacks": {"baseline": [], "logged": ["diary"]}}, "write `trackers: .diary.`"),
        ({"metrics": ["diary"]}, "is a tracker, and no part of what is measured"),
        ({"trackers": ["memory"]}, "is no tracker: it has no record_result"),
        ({"trackers": ["diary", "diary"]}, "stands there twice"),
        ({"trackers": ["diarie"]}, "did you mean 'diary'"),
        ({"sweep": {"trackers": [["diary"]]}}, "unknown key 'trackers'"),
    ],
)
def test_what_is_no_tracker_and_a_tracker_elsewhere_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((PluginError, ScenarioError), match=message):
        plan_with(**changes)


@pytest.mark.usefixtures("installed_trackers")
def test_a_missing_library_leaves_a_tracker_out_and_is_an_error_by_name() -> None:
    plan = plan_with(trackers=["absent", "diary"])
    assert plan.trackers is not None
    assert [one.name for one in plan.trackers.plugins] == ["diary"]
    (notice,) = [text for text in plan.notices if "absent" in text]
    assert "no-such-library>=1 is not installed" in notice
    with pytest.raises(PluginError, match="cannot be used here: no-such-library"):
        plan_with(PlanRequest(trackers=("absent",)))


def test_the_missing_library_of_a_shipped_tracker_is_named_with_its_extra() -> None:
    if plan_with(trackers=["mlflow"]).trackers is None:
        (notice,) = plan_with(trackers=["mlflow"]).notices
        assert "pip install 'accel-bench[mlflow]'" in notice


def test_a_tracker_that_hangs_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from accel_bench import Options, Plugin, Result, hookimpl

    calls: list[str] = []
    release = threading.Event()

    class Slow(Plugin[Options]):
        @hookimpl
        def record_result(self, result: Result | None) -> None:
            assert result is not None
            calls.append(result.run_id)
            release.wait(30)

    monkeypatch.setattr(trackers, "TRACKER_SECONDS", 0.05)
    warnings: list[str] = []
    slow = ActivePlugins([ActivePlugin(Slow(Options(), "slow"), "slow", "trackers", "mine")])
    made = trackers.Trackers(slow, Path(), warnings.append)
    results = [*make_rounds(LORA, [0.1, 0.1]), *make_rounds(NF4, [0.1])]
    for result in results:
        made.record(result)
    made.finish(lambda: make_summary([LORA, NF4], results))
    release.set()
    assert calls == [results[0].run_id]
    (warning,) = warnings
    assert "did not come back" in warning


def test_a_dead_server_does_not_hold_a_session_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    from accel_bench import Options, Plugin, Result, hookimpl

    release = threading.Event()

    class Slow(Plugin[Options]):
        @hookimpl
        def record_result(self, result: Result | None) -> None:
            release.wait(30)

    monkeypatch.setattr(trackers, "HURRIED_TRACKER_SECONDS", 0.05)
    warnings: list[str] = []
    slow = ActivePlugins([ActivePlugin(Slow(Options(), "slow"), "slow", "trackers", "mine")])
    made = trackers.Trackers(slow, Path(), warnings.append)
    with pytest.raises(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt
        finally:
            made.record(make_rounds(LORA, [0.1])[0])
    release.set()
    (warning,) = warnings
    assert "did not come back within 0.05 s" in warning
