"""Steps that plugins observe: after all others, each plugin its own, and in no other figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.program import surroundings
from fault_plugins.distribution import install

from accel_bench import Run
from accel_bench.errors import HookError, PluginError
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.manager import with_observers
from accel_bench.result import Result, Status
from accel_bench.scenario.uses import Use
from accel_bench.testing import run_plugin
from accel_bench.worker.observed_steps import ObservedSteps
from accel_bench.worker.record import RankRecord

SOURCE = """
from accel_bench import Metric, Options, Plugin, hookimpl

CALLS = []


class Observing(Plugin[Options]):
    '''Observes three steps.'''

    steps = 3

    @hookimpl
    def start_metrics(self, run):
        CALLS.append("start_metrics")

    @hookimpl
    def finish_metrics(self, run):
        CALLS.append("finish_metrics")

    @hookimpl
    def observe_steps(self, run):
        CALLS.append("observe_steps")
        return self.answer()

    def answer(self):
        return self

    def start(self):
        CALLS.append("start")

    def end_step(self, batches):
        CALLS.append(sum(batch.tokens.real for batch in batches))

    def finish(self):
        calls, CALLS[:] = [*CALLS], []
        yield Metric(name="calls", value=len(calls), unit="1", scope="rank", kind=repr(calls))


class Nothing(Observing):
    def answer(self):
        return None


class Endless(Observing):
    steps = 0


class Number(Observing):
    def answer(self):
        return 5


class Raising(Observing):
    def end_step(self, batches):
        raise ValueError("no counter")


class Marking(Plugin[Options]):
    @hookimpl
    def observe_steps(self, run):
        return self

    steps = 1

    def start(self):
        self.calls = []

    def mark(self, phase):
        self.calls.append(phase)

    def end_step(self, batches):
        raise ValueError("no counter")

    def fail(self, error):
        self.calls.append(repr(error))

    def finish(self):
        return ()


class Wordy(Observing):
    def finish(self):
        return "fast"
"""
NULL = {slot: {"use": "null"} for slot in ("model", "data", "optimizer", "engine")}
KINDS = ("Observing", "Nothing", "Endless", "Number", "Raising", "Marking", "Wordy")


@pytest.fixture
def site(tmp_path: Path) -> Any:
    """The plugins are installed."""
    install(tmp_path, "acme-observing", {kind.lower(): kind for kind in KINDS}, SOURCE)
    with surroundings(tmp_path, {"PYTHONPATH": str(tmp_path)}):
        yield


def observed(name: str, *others: str) -> Result:
    scenario = {**NULL, "metrics": [*others], "measure": {"warmup": 1, "steps": 2}}
    return run_plugin(name, scenario=scenario)


@pytest.mark.usefixtures("site")
def test_each_observer_has_steps_of_its_own_after_all_others() -> None:
    result = observed("observing")
    assert result.status is Status.OK, result.reasons
    (rank,) = result.ranks
    (metric,) = [one for one in rank.metrics if one.name == "calls"]
    tokens = rank.window.samples[0].real_tokens if rank.window else 0
    calls = ["start_metrics", "finish_metrics", "observe_steps", "start", *[tokens] * 3]
    assert metric.kind == repr(calls)
    assert metric.plugin == "observing"
    assert rank.observed_steps == 3
    assert rank.window is not None and len(rank.window.samples) == 2


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("endless", "`steps` of its observer is 0; it must be a whole number from 1"),
        ("number", "returned 5 where a StepObserver or None is expected"),
        ("raising", "ValueError: no counter"),
        ("wordy", "returned str where Metric objects from finish is expected"),
    ],
)
def test_a_wrong_observer_is_named(name: str, problem: str) -> None:
    result = observed(name)
    assert result.status is Status.PLUGIN_ERROR
    (reason,) = result.reasons
    assert f"plugin '{name}' (acme-observing) failed in observe_steps: {problem}" in reason
    # What was measured before is kept.
    assert result.ranks[0].window is not None


@pytest.mark.usefixtures("site")
def test_a_plugin_that_observes_nothing_costs_no_step() -> None:
    result = observed("nothing")
    assert result.status is Status.OK
    assert result.ranks[0].observed_steps == 0


@pytest.mark.usefixtures("site")
def test_an_observer_follows_parts_of_steps_and_learns_that_one_has_failed(
    make_run: Callable[..., Run],
) -> None:
    active = with_observers(ActivePlugins([]), [Use(use="marking")])
    record = RankRecord()
    steps = ObservedSteps(active, make_run(), record, lambda: None)
    assert not steps.fail(ValueError("in a step of something else"))
    assert steps.start()
    steps.mark("forward")
    observer: Any = active.plugins[0].instance
    assert steps.fail(ValueError("a step")), "what is measured is complete"
    assert observer.calls == ["forward", "ValueError('a step')"]
    with pytest.raises(HookError, match="no counter") as caught:
        steps.end_step([], 0.0)
    assert not steps.fail(caught.value), "the observer itself has failed"
    assert (record.profiled_steps, record.observed_steps) == (1, 0)


@pytest.mark.usefixtures("site")
def test_what_takes_another_part_in_a_run_is_no_observer_beside_the_experiment() -> None:
    with pytest.raises(PluginError, match="'observing' cannot only observe steps: it has start_"):
        with_observers(ActivePlugins([]), [Use(use="observing")])
