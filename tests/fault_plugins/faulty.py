"""A plugin that breaks on demand: where, when, on which rank and how, its options say."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from accel_bench import Metric, Options, Plugin, hookimpl
from accel_bench.errors import PluginError

ONE_ANSWER = {
    "launch_ranks",
    "load_data",
    "load_model",
    "add_adapter",
    "compile_model",
    "parallelize_model",
    "build_optimizer",
    "build_batches",
    "build_engine",
}

TORCH_TEXT = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.50 GiB of "
    "which 1.25 GiB is free."
)


class OutOfMemoryError(RuntimeError):
    """Called like torch's."""


class FaultyOptions(Options):
    """What breaks."""

    fault: str = "none"
    """Name of a function below, or `return` for a wrong value."""

    hook: str = "step"
    """Hook in which it breaks; `step` is inside the engine."""

    at_step: int = 3
    """Step in which it breaks."""

    rank: int | None = None
    """Rank on which it breaks; all when null."""

    others: str = "none"
    """What the other ranks do."""

    value: Any = None
    """What `return` returns, and `show` looks up."""


def none(options: FaultyOptions) -> None:
    """Nothing breaks."""


def broken(options: FaultyOptions) -> NoReturn:
    """An exception."""
    raise ValueError("broken on purpose")


def half_a_character(options: FaultyOptions) -> dict[str, str]:
    """A text that UTF-8 cannot write: returned where there is a value, else raised."""
    if options.value is not None:
        return {"shown": "\ud83d"}
    raise ValueError("\ud83d")


def refuse(options: FaultyOptions) -> NoReturn:
    """What a plugin says that cannot go on."""
    raise PluginError("not on purpose")


def leave(options: FaultyOptions) -> NoReturn:
    """A library that thinks it owns the process."""
    sys.exit(3)


def vanish(options: FaultyOptions) -> NoReturn:
    """Exit without a word."""
    os._exit(4)


def oom(options: FaultyOptions) -> NoReturn:
    """Python's own."""
    raise MemoryError


def hog(options: FaultyOptions) -> None:
    """Use more memory than there is: what the kernel does about it, no exception says."""
    held = [bytearray(os.urandom(2**20) * 16) for _ in range(256)]
    time.sleep(len(held))


def oom_alias(options: FaultyOptions) -> NoReturn:
    """Torch's, by name and text."""
    raise OutOfMemoryError(TORCH_TEXT)


def oom_cause(options: FaultyOptions) -> NoReturn:
    """Hidden behind another."""
    try:
        raise OutOfMemoryError(TORCH_TEXT)
    except OutOfMemoryError as error:
        raise ValueError("the kernel could not be built") from error


def abort(options: FaultyOptions) -> None:
    """A failed assertion of a C library."""
    os.abort()


def segfault(options: FaultyOptions) -> None:
    """A real one."""
    ctypes.string_at(0)


def kill(options: FaultyOptions) -> None:
    """What the kernel does when the host's memory is full."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(options: FaultyOptions) -> None:
    """What `kill -INT` does."""
    os.kill(os.getpid(), signal.SIGINT)


def sleep(options: FaultyOptions) -> None:
    """Hang."""
    time.sleep(3600)


def ignore(options: FaultyOptions) -> None:
    """Hang, and do not end when asked to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)


def slow(options: FaultyOptions) -> None:
    """Too slow for the time limit, but busy."""
    time.sleep(0.6)


def uneven(options: FaultyOptions) -> None:
    """Nothing more: the engine's steps take twice as long in every other run."""


def stop(options: FaultyOptions) -> None:
    """Stopped, as by Ctrl-Z."""
    os.kill(os.getpid(), signal.SIGSTOP)


def grandchild(options: FaultyOptions) -> None:
    """Leave a process behind in the group."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])


def setsid(options: FaultyOptions) -> None:
    """Leave a process behind that leaves the group too."""
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    subprocess.Popen(command, start_new_session=True)


RUNAWAY = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(3600)"


def runaway(options: FaultyOptions) -> None:
    """Leave a process behind that left its parent, its session and its environment.

    Its command alone shows where it comes from.
    """
    mark = os.environ.get("FAULT_SUITE", "")
    subprocess.run([sys.executable, "-I", "-S", "-c", RUNAWAY, mark], env={}, check=True)


def runaway_and_sleep(options: FaultyOptions) -> None:
    """Have such a process while it sleeps."""
    runaway(options)
    time.sleep(3600)


def family(options: FaultyOptions) -> None:
    """Have a process of every kind while it sleeps."""
    grandchild(options)
    setsid(options)
    runaway(options)
    time.sleep(3600)


def runs_so_far() -> int:
    """Count the runs that ask, this one too."""
    with Path(os.environ["FAULTY_COUNTER"]).open("a+b") as counter:
        counter.write(b".")
        return counter.tell()


def chance() -> random.Random:
    """Which runs break is settled by how many there were before."""
    return random.Random(runs_so_far())


def sometimes(options: FaultyOptions) -> None:
    """Crash in about a third of all runs, or in another share."""
    if chance().random() < float(os.environ.get("FAULTY_SHARE", "0.3")):
        os.abort()


def assorted(options: FaultyOptions) -> None:
    """Every fifth run: crash, be killed, vanish, or leave a process behind."""
    dice = chance()
    if dice.random() < 0.2:
        dice.choice([abort, kill, vanish, grandchild, setsid, runaway])(options)


def blab(options: FaultyOptions) -> NoReturn:
    """Print secrets, and put them into an error."""
    secrets = {name: value for name, value in os.environ.items() if "CANARY" in value}
    print(secrets, flush=True)
    raise ValueError(f"could not log in: {secrets}")


class FaultyEngine:
    """Takes steps of a hundredth of a second and breaks in one of them."""

    def __init__(self, run: Any, options: FaultyOptions) -> None:
        self._run, self._options = run, options
        is_long = options.fault == "uneven" and runs_so_far() % 2
        self._seconds = 0.02 if is_long else 0.01

    def run(self, stopwatch: Any) -> None:
        """Lap until the window is full."""
        for step in itertools.count():
            if not stopwatch.running:
                return
            time.sleep(self._seconds)
            late = self._options.fault == "slow" and step > self._options.at_step
            if step == self._options.at_step or late:
                act(self._options, self._run.rank)
            stopwatch.lap([next(self._run.batches)], 1 / (1 + step) / self._run.world_size)


def act(options: FaultyOptions, rank: int) -> Any:
    """Break, if it is this rank's turn."""
    mine = options.rank in (None, rank)
    name = options.fault if mine else options.others
    if name == "return":
        return options.value
    print(f"about to {name}", file=sys.stderr, flush=True)
    return globals()[name](options)


class Faulty(Plugin[FaultyOptions]):
    """Breaks on demand."""

    Options = FaultyOptions

    def claims(self) -> frozenset[str]:
        """The hook that is to break, if it has one answer."""
        hook = "build_engine" if self.options.hook == "step" else self.options.hook
        return frozenset({hook}) & ONE_ANSWER

    def _at(self, hook: str, run: Any = None) -> Any:
        if self.options.hook != hook:
            return None
        return act(self.options, getattr(run, "rank", 0))

    @hookimpl
    def check_scenario(self, experiment: Any) -> Any:
        return self._at("check_scenario")

    @hookimpl
    def launch_ranks(self, job: Any) -> Any:
        return self._at("launch_ranks")

    @hookimpl
    def observe_ranks(self) -> Any:
        if self.options.hook == "finish":
            return FaultyObserver(self.options)
        return self._at("observe_ranks")

    @hookimpl
    def prepare_process(self, run: Any) -> Any:
        return self._at("prepare_process", run)

    @hookimpl
    def load_data(self, run: Any) -> Any:
        return self._at("load_data", run)

    @hookimpl
    def load_model(self, run: Any) -> Any:
        return self._at("load_model", run)

    @hookimpl
    def add_adapter(self, run: Any) -> Any:
        return self._at("add_adapter", run)

    @hookimpl
    def accelerate_model(self, run: Any) -> Any:
        return self._at("accelerate_model", run)

    @hookimpl
    def compile_model(self, run: Any) -> Any:
        return self._at("compile_model", run)

    @hookimpl
    def parallelize_model(self, run: Any) -> Any:
        return self._at("parallelize_model", run)

    @hookimpl
    def build_optimizer(self, run: Any) -> Any:
        return self._at("build_optimizer", run)

    @hookimpl
    def build_batches(self, run: Any) -> Any:
        return self._at("build_batches", run)

    @hookimpl
    def build_engine(self, run: Any) -> Any:
        if self.options.hook == "step":
            return FaultyEngine(run, self.options)
        return self._at("build_engine", run)

    @hookimpl
    def start_metrics(self, run: Any) -> Any:
        return self._at("start_metrics", run)

    @hookimpl
    def finish_metrics(self, run: Any, window: Any) -> Any:
        return self._at("finish_metrics", run)

    @hookimpl
    def report_evidence(self, run: Any) -> Any:
        if self.options.fault == "show":
            return {name: os.environ.get(name) for name in self.options.value}
        if self.options.hook == "report_evidence" and self.options.value == "object":
            return {"answer": object()}
        return self._at("report_evidence", run)

    @hookimpl
    def close_run(self, run: Any) -> Any:
        return self._at("close_run", run)


class FaultyObserver:
    """Breaks when the ranks have gone."""

    def __init__(self, options: FaultyOptions) -> None:
        self._options = options

    def finish(self, results: Any) -> Any:
        """Break."""
        return act(self._options, 0)


class FaultyPreparation(Faulty):
    """Breaks in the process that fills caches."""

    @hookimpl
    def prepare_experiment(self, run: Any) -> Any:
        return self._at("prepare_experiment", run)


class WitnessObserver:
    """Leaves a file behind that says which ranks left a result."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "observed"

    def finish(self, results: Any) -> list[Any]:
        """Write it; twice would be seen."""
        with self._path.open("a") as file:
            file.write(f"ranks {sorted(results)}")
        return [Metric(name="seen", value=len(results), unit="1", scope="global")]


class Witness(Plugin[Options]):
    """Leaves files behind when it is closed, and when what it observes has ended."""

    @hookimpl
    def observe_ranks(self, job: Any, ranks: Any) -> WitnessObserver:
        assert [rank.pid is not None for rank in ranks] == [True] * job.world_size
        return WitnessObserver(job.folder)

    @hookimpl
    def close_run(self, run: Any) -> None:
        (run.folder / f"closed-by-rank{run.rank}").touch()
