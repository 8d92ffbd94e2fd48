"""Many runs in one process, a fifth of them with faults: nothing is lost, nothing accumulates."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil
import pytest
from fault_plugins.active import faulty_installed
from faults.program import MARK, Program, null_scenario, write_scenario

from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Planned, PlanRequest, make_plan
from accel_bench.result import Result
from accel_bench.runner.heartbeats import Progress
from accel_bench.runner.session import Reporter, Session
from accel_bench.scenario.find import read_draft
from accel_bench.store.database import open_store

SETTLED = 10
"""Runs after which everything that is made once has been made."""

GROWTH_BYTES = 20 * 2**20
"""Growth of the parent that is no leak."""


class Gauge(Reporter):
    """Reads this process's size after every run."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.descriptors: list[int] = []

    def on_progress(self, planned: Planned, what: str, beat: Progress) -> None:
        """Nothing to read."""

    def on_result(self, planned: Planned, what: str, result: Result) -> None:
        """Read memory and open descriptors."""
        self.bytes.append(psutil.Process().memory_info().rss)
        self.descriptors.append(psutil.Process().num_fds())


@pytest.mark.parametrize("runs", [20, pytest.param(1000, marks=pytest.mark.release)])
@pytest.mark.timeout(10_000)
def test_a_long_session_loses_no_row_and_leaks_nothing(tmp_path: Path, runs: int) -> None:
    (tmp_path / "site").mkdir()
    finder = Program(tmp_path, tmp_path / "site")
    engine = {"use": "null"}
    measure = {"warmup": 1, "steps": 4, "rounds": runs}
    stacks = {"soak": [{"use": "faulty", "fault": "assorted"}]}
    scenario = null_scenario(stacks, engine=engine, measure=measure)
    path = write_scenario(tmp_path / "soak.yaml", scenario)
    machine, gauge = read_machine(), Gauge()
    with faulty_installed(tmp_path / "site") as patch:
        patch.setenv("FAULTY_COUNTER", str(tmp_path / "counter"))
        patch.setenv(MARK, finder.mark)
        plan = make_plan(read_draft(path), machine, PlanRequest(max_runs=runs))
        with open_store(tmp_path / "results", write=True) as store:
            Session(store, machine, gauge).run_plan(plan)
            rows = store.results()
    assert [row.round for row in rows] == list(range(runs))
    counts = Counter(row.status.value for row in rows)
    assert set(counts) <= {"ok", "crashed", "killed", "failed"}
    assert counts["ok"] >= runs * 0.8
    assert counts["ok"] < runs
    assert finder.left_behind() == []
    assert gauge.descriptors[-1] == gauge.descriptors[SETTLED]
    assert gauge.bytes[-1] - gauge.bytes[SETTLED] <= GROWTH_BYTES
