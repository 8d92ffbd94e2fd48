"""What plugins register with the run: evidence and undoing, each attributed to its plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_bench import Options, Plugin, Run, hookimpl
from accel_bench.errors import HookError
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.measurement import close
from accel_bench.worker.record import RankRecord, collect_evidence

MakeRun = Callable[..., Run]


class Registering(Plugin[Options]):
    """Registers evidence and undoing in one hook, and has the two hooks as well."""

    calls: list[str]
    fails = ""

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        run.on_evidence(lambda: {"first": self.name})
        run.on_evidence(lambda: {"second": object() if self.fails == "on_evidence" else 2})
        run.on_close(lambda: self._called("opened first"))
        run.on_close(lambda: self._called("opened last"))

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        return {"hook": True}

    @hookimpl
    def close_run(self, run: Run) -> None:
        self._called("close_run")

    def _called(self, what: str) -> None:
        self.calls.append(f"{self.name}: {what}")
        if what == self.fails:
            raise ValueError("broken")


def prepared(run: Run, **fails: str) -> tuple[ActivePlugins, list[str]]:
    """Two plugins that have been called once, and the list of the calls that close them."""
    calls: list[str] = []
    members = []
    for name in ("one", "two"):
        plugin = Registering(Options(), name)
        plugin.calls, plugin.fails = calls, fails.get(name, "")
        members.append(ActivePlugin(plugin, name, None, "tests"))
    active = ActivePlugins(members)
    assert len(list(active.call_all("prepare_process", run=run))) == 2
    return active, calls


def closed(active: ActivePlugins, run: Run, folder: Path) -> BaseException | None:
    return close(active, run, Heartbeat(folder / "heartbeat"))


def test_evidence_of_hooks_and_callbacks_is_one_mapping_for_each_plugin(make_run: MakeRun) -> None:
    run, found = make_run(), RankRecord()
    collect_evidence(prepared(run)[0], run, found)
    assert found.evidence == {
        name: {"hook": True, "first": name, "second": 2} for name in ("one", "two")
    }


def test_evidence_that_is_no_json_names_the_plugin_that_registered_it(make_run: MakeRun) -> None:
    run = make_run()
    active, _ = prepared(run, two="on_evidence")
    with pytest.raises(HookError, match=r"two.*on_evidence.*not JSON"):
        collect_evidence(active, run, RankRecord())


def test_what_was_registered_last_is_undone_first_and_after_all_hooks(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run()
    active, calls = prepared(run)
    assert closed(active, run, tmp_path) is None
    hooks = ["one: close_run", "two: close_run"]
    assert calls == [
        *hooks,
        *(f"{n}: opened {w}" for n in ("two", "one") for w in ("last", "first")),
    ]


@pytest.mark.parametrize("what", ["close_run", "opened last"])
def test_one_that_fails_is_named_and_the_others_are_undone_all_the_same(
    make_run: MakeRun, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run()
    active, calls = prepared(run, two=what)
    error = closed(active, run, tmp_path)
    assert isinstance(error, HookError)
    assert "two" in str(error)
    assert "ValueError: broken" in str(error)
    assert len(calls) == 6
    assert f"{'close_run' if what == 'close_run' else 'on_close'} of two" in caplog.text


def test_an_error_of_what_was_registered_outside_of_a_hook_is_returned_as_it_is(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run()
    active, calls = prepared(run)

    def undo() -> None:
        raise ValueError("of nobody")

    run.on_close(undo)
    error = closed(active, run, tmp_path)
    assert isinstance(error, ValueError)
    assert str(error) == "of nobody"
    assert len(calls) == 6
