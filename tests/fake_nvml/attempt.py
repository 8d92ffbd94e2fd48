"""One attempt through the real parent's code, with a rank that pretends to use a device.

    python attempt.py FOLDER PLAN OPTIONS

It runs in a process of its own, so that the bindings load the stand-in library. The last line of
its output is the Result as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from runner.job_factory import LineProcess, make_job

from accel_bench import Metric, Options, Plugin, hookimpl
from accel_bench.builtin.metrics.nvml import NVML, NVMLOptions
from accel_bench.plugins.manager import ActivePlugin, ActivePlugins
from accel_bench.runner.attempt import Attempt, run_attempt

RANK = Path(__file__).with_name("rank.py")


class Rank(LineProcess):
    """The process of `rank.py`."""

    def __init__(self, arguments: list[str]) -> None:
        self.rank, self.asked = 0, []
        self._process = subprocess.Popen([sys.executable, str(RANK), *arguments])
        self.pid = self._process.pid


class Launcher(Plugin[Options]):
    """Starts the rank."""

    plan = ""

    @hookimpl
    def launch_ranks(self, job: Any) -> Any:
        return [Rank([str(job.result_path(0)), os.environ["FAKE_NVML"], self.plan])]


class Starter(Plugin[Options]):
    """Lets the rank go on once those who watch it have read the devices; may press Ctrl-C."""

    @hookimpl
    def observe_ranks(self) -> Any:
        Path(os.environ["FAKE_NVML"]).with_name("go").touch()
        if "PRESS_CTRL_C" in os.environ:
            signal.setitimer(signal.ITIMER_REAL, 1.0)
        return self

    def finish(self, results: Any) -> list[Metric]:
        """There is nothing to report."""
        return []


def press(number: int, frame: object) -> None:
    """What Python does on Ctrl-C."""
    raise KeyboardInterrupt


def main(folder: Path, plan: str, options: dict[str, Any]) -> None:
    """Carry the attempt out and print its result."""
    signal.signal(signal.SIGALRM, press)
    job = make_job(folder)
    work = job.experiment.scenario
    resources = work.resources.model_copy(update={"device": "cuda"})
    work = work.model_copy(update={"resources": resources})
    job = job.model_copy(
        update={"experiment": job.experiment.model_copy(update={"scenario": work})}
    )
    launcher = Launcher(Options())
    launcher.plan = plan
    members = [
        ActivePlugin(launcher, "stand-in", "launcher", "tests"),
        ActivePlugin(NVML(NVMLOptions(**options)), "nvml", "metrics", "accel-bench"),
        ActivePlugin(Starter(Options()), "starter", "metrics", "tests"),
    ]
    attempt = Attempt(job, "monday", None, folder.parent)
    kept: list[Any] = []
    try:
        run_attempt(attempt, ActivePlugins(members), lambda beat: None, kept.append)
    except KeyboardInterrupt:
        print("Ctrl-C was raised again")
    (result,) = kept
    print(result.model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
