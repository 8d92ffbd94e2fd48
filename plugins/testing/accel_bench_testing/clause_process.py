"""Execution of check steps in a separate process, whose crash is reported as a violated clause.

One process executes successive steps. It is forked if that is safe, which saves imports. It is
replaced only when the plugin has ended or blocked it, or filled its log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

from accel_bench.errors import AccelBenchError
from accel_bench.job import HEARTBEAT_PHASE, PHASES
from accel_bench.machine.parent import die_with_parent, put_process_between
from accel_bench.runner.artifacts import log_tail
from accel_bench.runner.outcome import describe_exit
from accel_bench_testing.report import CheckStep, Clause, unproven, violated
from accel_bench_testing.tiny import this_machine

CLAUSE_SECONDS = 120.0
"""Time limit in seconds for checking one clause (requirement), with its runs."""

LOG_BYTES = 2**26
"""Maximum bytes of the process's output and of the logs of runs."""

FIRST_HOOK = PHASES.index("prepare_experiment")

AUTOGRAD = "pt_autograd_"
"""Prefix of the names of the threads that autograd starts for devices."""

AT = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
"""Pattern of a stack frame as `faulthandler` writes it."""

Steps: TypeAlias = Callable[[Path], Iterable[CheckStep]]
"""Function that yields, for a folder, the check steps: names with functions that return clauses."""


def try_apart(steps: Steps, needed: str, seconds: float, fork: bool = True) -> Iterator[Clause]:
    """Run check steps in separate processes, and yield their clauses. A crash becomes a violated
    clause.

    If a process ends before the step named `needed` is complete, no more steps are run. `seconds`
    limits each clause. `steps` is pickled if the process cannot be forked, or with `fork` false.
    """
    method = "fork" if fork and _can_fork() else "spawn"
    first, ready = 0, False
    while True:
        with tempfile.TemporaryDirectory(prefix="accel-bench-") as folder:
            child = Child(steps, Path(folder), first, seconds, method)
            yield from child.clauses()
            ending = child.ending
        ready = ready or needed in child.over
        if not ending:
            return
        yield violated(child.step, ending)
        if not ready or child.last < first:
            yield unproven("what remains", f"it was not tried after {child.step!r} had ended so")
            return
        first = child.last + 1


def _can_fork() -> bool:
    """Return whether a process forked from this one can train.

    A fork cannot train on a machine with GPUs, nor after autograd has started threads for devices.
    Code compiled by a CUDA build of torch starts these threads even on a machine without GPUs.
    """
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return not this_machine().gpus and not any(name.startswith(AUTOGRAD) for name in names)


@dataclass
class Child:
    """Separate process that executes check steps, and the record of its progress."""

    steps: Steps
    folder: Path
    first: int
    """Index of the first step that the process executes."""

    seconds: float
    method: str

    last: int = -1
    """Index of the last step that the process began."""

    step: str = "entry point"
    """Name of the last step that the process began."""

    over: set[str] = field(default_factory=set)
    """Names of the steps that the process completed."""

    ending: str = ""
    """Description of a premature end; empty if the process has completed."""

    def clauses(self) -> Iterator[Clause]:
        """Start the process, and yield its clauses until it has ended."""
        context: Any = multiprocessing.get_context(self.method)
        receiver, sender = context.Pipe(duplex=False)
        arguments = (self.steps, self.folder, self.first, sender, os.getpid())
        process = context.Process(target=work, args=arguments, name="accel-bench-clauses")
        with warnings_ignored():
            process.start()
        sender.close()
        try:
            yield from self._received(process, receiver)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            receiver.close()

    def _received(self, process: Any, receiver: Connection) -> Iterator[Clause]:
        """Yield clauses as they arrive from the process. Set `ending` if the process ends
        prematurely or exceeds a limit."""
        deadline = time.monotonic() + self.seconds
        while True:
            wait([receiver, process.sentinel], timeout=1)
            try:
                message = receiver.recv() if receiver.poll() else None
            except (EOFError, OSError):  # Cut short, as is what a process sends that is killed.
                message = None
            if isinstance(message, Clause):
                yield message
            elif message == DONE:
                return
            elif message is not None:
                deadline = time.monotonic() + self.seconds
                self.over.update([self.step] if self.last >= 0 else [])
                self.last, self.step = message
            elif ending := self._ended(process, deadline):
                self.ending = f"{ending}{self._where()}"
                return

    def _ended(self, process: Any, deadline: float) -> str:
        """Return the reason why the process has ended or must be ended at the time `deadline`, or
        an empty string while it works."""
        if not process.is_alive():
            how = describe_exit(process.exitcode)
            return f"the plugin ended the process ({how}); raise an error instead"
        if sum(log.stat().st_size for log in self.folder.rglob("*.log")) > LOG_BYTES:
            return f"it wrote more than {LOG_BYTES / 1e6:.0f} MB of output; log what is news"
        if time.monotonic() > deadline:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGUSR1)
            time.sleep(0.2)  # Its stack is written meanwhile.
            return not_ended("it", self.seconds)
        return ""

    def _where(self) -> str:
        """Return the hook and source line that the process was executing, as the end of a sentence;
        empty if unknown."""
        phase = last_phase(self.folder)
        frame = last_frame(self.folder / LOG)
        return f"{f' (in {phase})' if phase else ''}{f' at {frame}' if frame else ''}"


def not_ended(what: str, seconds: float) -> str:
    """Return a sentence saying that the code described by `what` exceeded the time limit of a
    clause."""
    return f"{what} had not ended after {seconds:g} s; check_plugin(seconds=...) allows more"


DONE = "done"
"""Message that a process sends when it has completed all steps."""

LOG = "clauses.log"
"""Name of the file with a process's output, and with its stack traces if it was ended."""


def work(steps: Steps, folder: Path, first: int, sender: Connection, parent: int) -> None:
    """Execute all check steps from index `first` on, and send their clauses, as the main function
    of the separate process.

    `folder` gets the log, `sender` the messages. This process ends when the process with the id
    `parent` ends, even if a plugin never returns.
    """
    die_with_parent(parent)
    with contextlib.suppress(OSError):
        os.setsid()
    put_process_between()
    log = (folder / LOG).open("w", encoding="utf8")
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    sys.stdout = sys.stderr = log
    faulthandler.enable(log)
    faulthandler.register(signal.SIGUSR1, log, all_threads=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()  # The collector would copy what this process shares with the other one.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # A pool of threads does not survive a fork.
    for number, (name, attempt) in enumerate(steps(folder)):
        if number >= first:
            sender.send((number, name))
            for clause in attempted(name, attempt, folder):
                sender.send(clause)
    sender.send(DONE)


def attempted(name: str, attempt: Callable[[], Iterable[Clause]], folder: Path) -> Iterator[Clause]:
    """Yield the clauses of a check step called `name`, or a violated clause if its function
    `attempt` raises an error.

    `folder` has the runs' files, by which the error's hook is found.
    """
    try:
        yield from attempt()
    except AccelBenchError as error:
        yield violated(name, str(error))
    except BaseException as error:
        phase = last_phase(folder)
        where = f" in {phase}" if phase else ""
        yield violated(name, f"it raised {type(error).__name__}{where}: {error}")


def last_phase(folder: Path) -> str:
    """Return the hook or phase that the last run in a folder has reached, or an empty string before
    any hook."""
    pages = sorted(folder.rglob("rank0.heartbeat"), key=lambda path: path.stat().st_mtime_ns)
    if not pages:
        return ""
    phase = memoryview(pages[-1].read_bytes()).cast("Q")[HEARTBEAT_PHASE]
    return PHASES[phase] if FIRST_HOOK <= phase < len(PHASES) else ""


def last_frame(log: Path) -> str:
    """Return file, line and function of the innermost frame of the last stack trace in a log, or an
    empty string if it has none."""
    match = AT.search(log_tail(log).rpartition("(most recent call first)")[2])
    return f"{match[1]}, line {match[2]}, {match[3]}" if match else ""


@contextlib.contextmanager
def warnings_ignored() -> Iterator[None]:
    """Ignore, in the `with` block, warnings about forking a process with threads; the child uses
    none."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
