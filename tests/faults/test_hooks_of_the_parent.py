"""What a plugin's hooks change in the program, or leave running, reaches no stack's runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fault_plugins.distribution import install
from faults.program import Finished, Program, null_scenario, write_scenario

from accel_bench.machine.scheduling import read_scheduling

SOURCE = """
import os
import sys
from pathlib import Path
from accel_bench import Options, Plugin, hookimpl

def burn():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"]
    left = os.posix_spawn(command[0], command, os.environ, setsid=True)
    with Path(os.environ["LEFT"]).open("a") as file:
        file.write(f"{left}\\n")

class Greedy(Plugin[Options]):
    @hookimpl
    def check_scenario(self):
        burn()
        return []

    @hookimpl
    def observe_ranks(self):
        burn()

    @hookimpl
    def prepare_process(self, run):
        os.nice(3)
"""


BACKEND = """
from accel_bench import Options, Plugin, hookimpl

def autoload():
    from torch.optim import AdamW
    AdamW.step = lambda self, closure=None: None

class Importer(Plugin[Options]):
    @hookimpl
    def prepare_process(self, run):
        import torch

    @hookimpl
    def report_evidence(self, run):
        from torch.optim import AdamW
        return {"step": AdamW.step.__name__}
"""


@pytest.mark.release
def test_torch_runs_no_code_of_a_distribution_that_no_scenario_names(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "bench-backend", {"importer": "Importer"}, BACKEND)
    with (site / "bench_backend-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write("[torch.backends]\ncheat = bench_backend:autoload\n")
    scenario = null_scenario({"baseline": ["importer"]})
    ours = Program(tmp_path, site).run(scenario)
    assert ours.result("baseline").ranks[0].evidence["importer"] == {"step": "step"}
    asked = {**scenario, "environment": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}}
    theirs = Program(tmp_path / "site", site).run(asked, "--allow-env")
    assert theirs.result("baseline").ranks[0].evidence["importer"] == {"step": "<lambda>"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of a baseline beside a stack whose plugin takes what it can."""
    folder = tmp_path_factory.mktemp("greedy")
    site = folder / "site"
    site.mkdir()
    install(site, "bench-greedy", {"greedy": "Greedy"}, SOURCE)
    program = Program(folder, site, {"LEFT": str(folder / "left")})
    scenario = null_scenario({"baseline": [], "cheat": ["greedy"]})
    # Threads that other tests have left in this process would leave the hooks' processes alone.
    path = write_scenario(folder / "scenario.yaml", scenario)
    return program.call_apart("run", str(path), "--rounds", "2")


def test_no_run_is_pinned_by_a_hook_of_the_parent(finished: Finished) -> None:
    mine = read_scheduling()
    found = {
        run.experiment.stack.name: run.ranks[0].effective.scheduling for run in finished.results
    }
    assert found["baseline"] == mine
    assert (found["cheat"].cpus, found["cheat"].policy) == (mine.cpus, mine.policy)


def test_what_such_hooks_have_left_running_is_ended(finished: Finished) -> None:
    left = (finished.program.folder / "left").read_text().split()
    assert len(left) >= 3  # one for the plan, one for each round
    assert not [pid for pid in left if Path("/proc", pid).exists()]


def test_another_priority_leaves_no_verdict(finished: Finished) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    said = " ".join(finished.out.split())
    other = f"effective.scheduling.nice ({min(19, nice + 3)} in the place of {nice})"
    assert f"not comparable: {other} differ without being declared" in said
