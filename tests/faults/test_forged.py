"""A plugin that writes its rank's result, or turns its clock back, is caught from outside."""

from __future__ import annotations

import json

import pytest
from fault_plugins.distribution import install
from faults.program import Finished, Program, null_scenario

from accel_bench.result import Status

SOURCE = """
import os
import time
from accel_bench import Options, Plugin, RankResult, Status, hookimpl

class Forger(Plugin[Options]):
    '''Writes what its rank would write, and leaves before that has happened.'''

    @hookimpl
    def finish_metrics(self, run, window):
        samples = tuple(s.model_copy(update={"seconds": s.seconds / 10}) for s in window.samples)
        ended = window.started + (window.ended - window.started) / 10
        faster = window.model_copy(update={"samples": samples, "ended": ended})
        result = RankResult(rank=0, status=Status.OK, device=run.device, window=faster)
        (run.folder / "rank0.json").write_text(result.model_dump_json())
        os._exit(0)

def slowed(clock):
    started = clock()
    return lambda: started + (clock() - started) / type(started)(10)

class Clocks(Plugin[Options]):
    '''Lets the clocks of `time` run a tenth as fast.'''

    @hookimpl
    def prepare_process(self, run):
        time.monotonic, time.perf_counter = slowed(time.monotonic), slowed(time.perf_counter)
        ticks = time.perf_counter_ns
        time.perf_counter_ns = lambda: ticks() // 10

class OwnClocks(Plugin[Options]):
    '''Does so with the clocks that core has taken.'''

    @hookimpl
    def prepare_process(self, run):
        from accel_bench.worker import clocks, stopwatch
        ticks = clocks.perf_counter_ns
        clocks.perf_counter_ns = lambda: ticks() // 10
        stopwatch.monotonic = slowed(stopwatch.monotonic)
"""

STACKS = {"baseline": [], "forger": ["forger"], "clocks": ["clocks"], "own-clocks": ["own-clocks"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of all of them, with a window of three seconds."""
    folder = tmp_path_factory.mktemp("forged")
    site = folder / "site"
    site.mkdir()
    kinds = {"forger": "Forger", "clocks": "Clocks", "own-clocks": "OwnClocks"}
    install(site, "bench-forger", kinds, SOURCE)
    engine = {"use": "null", "step_seconds": 0.1}
    scenario = null_scenario(STACKS, engine=engine, measure={"warmup": 6, "steps": 30, "rounds": 1})
    done = Program(folder, site).run(scenario, "--format", "json")
    assert done.code == 1, done.err
    return done


def test_a_result_that_a_plugin_wrote_is_invalid(finished: Finished) -> None:
    result = finished.result("forger")
    assert result.status is Status.INVALID
    assert result.reasons == (
        "forged: rank0.json says that its rank completed, and the heartbeat ended in "
        "finish_metrics after 36 steps",
    )


def test_the_parent_has_seen_how_long_a_window_lasts(finished: Finished) -> None:
    result = finished.result("baseline")
    (seen,), window = result.seen_windows, result.ranks[0].window
    assert window is not None
    assert 0.0 < seen.at_least <= window.ended - window.started
    assert seen.at_most is not None
    assert seen.at_most >= window.ended - window.started


def test_a_replaced_clock_changes_nothing(finished: Finished) -> None:
    window = finished.result("clocks").ranks[0].window
    assert window is not None
    assert window.ended - window.started > 2.9
    assert finished.result("clocks").status is Status.OK


def test_a_clock_of_core_that_runs_slow_fails_the_audit(finished: Finished) -> None:
    rows = {row["stack"]: row for row in json.loads(finished.out)["experiments"]}
    (why,) = rows["own-clocks"]["failed_audit"]
    assert why.startswith("parent_clock: the window took 0.3")
    assert "s by the rank's clock, and at least " in why
    assert rows["own-clocks"]["ratio"] is None
    assert rows["own-clocks"]["verdict"] == "not tested"
    assert rows["clocks"]["failed_audit"] == []
    assert rows["clocks"]["ratio"]["median"] < 2
