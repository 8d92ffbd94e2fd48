"""One attempt through the real parent's code, with a rank that pretends to use a device.

    python attempt.py < REQUESTS

It runs in a process of its own, so that the bindings load the stand-in library, and forks one for
each attempt, and that one for its rank. A request is a line of JSON: `folder`, `plan`, `options`,
`environment` and `output`, a file whose last line is the Result as JSON. The exit code is printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from fake_nvml import rank
from runner.job_factory import LineProcess, make_job

from accel_bench import Metric, Options, Plugin, hookimpl
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.plugins.manager import load_class
from accel_bench.runner.attempt import Attempt, run_attempt


class Child:
    """A forked process that has the methods of a `Popen`."""

    def __init__(self, arguments: list[str]) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            result, script, plan = arguments
            _leave(lambda: rank.main(Path(result), Path(script), json.loads(plan)))

    def poll(self) -> int | None:
        """Exit code, or None."""
        return self.wait(os.WNOHANG)

    def wait(self, options: int = 0) -> int | None:
        """Exit code."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def send_signal(self, number: int) -> None:
        """Send it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Rank(LineProcess):
    """The process of `rank.py`."""

    def __init__(self, arguments: list[str]) -> None:
        self.rank, self.asked = 0, []
        self._process: Any = Child(arguments)
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


def show(folder: Path, progress: Any) -> None:
    """Keep what the progress line showed last."""
    (folder / "live.txt").write_text(progress.live, encoding="utf8")


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
    watching = load_class("nvml")
    members = [
        ActivePlugin(launcher, "stand-in", "launcher", "tests"),
        ActivePlugin(watching(watching.Options(**options)), "nvml", "metrics", "accel-bench"),
        ActivePlugin(Starter(Options()), "starter", "metrics", "tests"),
    ]
    attempt = Attempt(job, "monday", None, folder.parent)
    kept: list[Any] = []
    try:
        run_attempt(attempt, ActivePlugins(members), partial(show, folder), kept.append)
    except KeyboardInterrupt:
        print("Ctrl-C was raised again")
    (result,) = kept
    print(result.model_dump_json())


def _leave(act: Any) -> None:
    """End this process, which was forked, with the code that an action returns."""
    code = 1
    try:
        code = act() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _attempt(request: dict[str, Any]) -> None:
    """Carry out what a request says, with its variables and its file for output."""
    os.environ.clear()
    os.environ.update(request["environment"])
    with open(request["output"], "w", encoding="utf8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    main(Path(request["folder"]), json.dumps(request["plan"]), request["options"])


if __name__ == "__main__":
    for request in map(json.loads, sys.stdin):
        child = os.fork()
        if not child:
            _leave(partial(_attempt, request))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
