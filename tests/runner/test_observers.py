"""Observers are called in threads of their own: one that hangs is left behind, and named."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from runner.job_factory import make_job

from accel_bench import Metric, Options, Plugin, hookimpl
from accel_bench.errors import HookError
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.runner import observers as observe
from accel_bench.runner.observers import Observation

SEEN = Metric(name="seen", value=1, unit="1", scope="global")
KEPT = SEEN.model_copy(update={"plugin": "Sound"})
"""The same, attributed to its plugin."""


class Sound(Plugin[Options]):
    """Sees one thing."""

    @hookimpl
    def observe_ranks(self) -> Any:
        return self

    def finish(self, results: Any) -> Any:
        """As a generator."""
        yield SEEN


class Interrupting(Sound):
    """Raises what Ctrl-C raises."""

    def finish(self, results: Any) -> Any:
        raise KeyboardInterrupt


class Stuck(Sound):
    """Never comes back."""

    def finish(self, results: Any) -> Any:
        threading.Event().wait()


class StuckAtOnce(Plugin[Options]):
    """Never comes back from the start."""

    @hookimpl
    def observe_ranks(self) -> Any:
        threading.Event().wait()


def observation(folder: Path, *kinds: type[Plugin[Any]]) -> Observation:
    """Of those plugins."""
    members = [ActivePlugin(kind(Options()), kind.__name__, "metrics", "tests") for kind in kinds]
    return Observation(make_job(folder), ActivePlugins(members))


def test_all_metrics_come_back_in_order(tmp_path: Path) -> None:
    watching = observation(tmp_path, Sound, Sound)
    watching.start([])
    assert watching.finish({}, hurried=False) == ((KEPT, KEPT), None)


def test_a_metric_that_could_not_be_read_back_names_its_plugin(tmp_path: Path) -> None:
    class Beyond(Sound):
        """Sees more than can be computed with."""

        def finish(self, results: Any) -> Any:
            yield SEEN.model_copy(update={"value": 1e120})

    observed = observation(tmp_path, Beyond, Sound)
    observed.start([])
    metrics, fault = observed.finish({}, False)
    assert metrics == (KEPT,)
    assert "'Beyond' (tests) failed in observe_ranks" in str(fault)
    assert "seen.value is 1e+120" in str(fault)


def test_nothing_is_finished_that_was_not_started(tmp_path: Path) -> None:
    assert observation(tmp_path, Sound).finish({}, hurried=False) == ((), None)


@pytest.mark.parametrize("hurried", [False, True])
def test_an_observer_that_hangs_is_named_and_the_next_one_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: bool
) -> None:
    monkeypatch.setattr(observe, "HURRIED_SECONDS" if hurried else "PATIENCE_SECONDS", 0.1)
    watching = observation(tmp_path, Stuck, Sound)
    watching.start([])
    metrics, fault = watching.finish({}, hurried)
    assert metrics == (KEPT,)
    assert isinstance(fault, HookError)
    assert fault.plugin == "Stuck"
    assert "did not come back within 0.1 s" in str(fault)


def test_an_observer_that_hangs_while_it_starts_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(HookError, match=r"'StuckAtOnce'.*did not come back"):
        observation(tmp_path, StuckAtOnce).start([])


def test_a_plugin_s_own_keyboard_interrupt_is_not_the_user_s(tmp_path: Path) -> None:
    watching = observation(tmp_path, Interrupting)
    watching.start([])
    _, fault = watching.finish({}, hurried=False)
    assert "failed in observe_ranks: KeyboardInterrupt" in str(fault)


class Showing(Sound):
    """Shows something."""

    live = "seen 1"


class FailingToShow(Sound):
    """Fails while ranks run."""

    @property
    def live(self) -> str:
        raise OSError("the driver is gone")


def test_what_observers_show_is_one_text_and_a_failure_ends_nothing(tmp_path: Path) -> None:
    watching = observation(tmp_path, Showing, FailingToShow, Sound, Showing)
    watching.start([])
    assert watching.live() == "seen 1  seen 1"
