"""Rank of a command: starts the command, follows its steps, ends it, and writes the result.

The program `python -m accel_bench_ab.rank JOB.json RANK LOCAL_RANK` runs in place of a worker, and
never imports torch.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from accel_bench.documents.files import PRIVATE, write_atomically
from accel_bench.job import HEARTBEAT_STEP, MEASURE, WRITES_RESULT, Job
from accel_bench.machine.cgroup import read_memory_group
from accel_bench.machine.parent import die_with_parent
from accel_bench.result import Failure, RankResult, Status
from accel_bench.runner.supervise import grace_seconds
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench_ab.figures import figure_files
from accel_bench_ab.launch import command_environment, elsewhere, program_of
from accel_bench_ab.outcome import Finished, result_of
from accel_bench_ab.plugin import CommandOptions
from accel_bench_ab.record import observe, read_processes
from accel_bench_ab.window import steps_to_leave_out

LOOK_STEPS = 3
"""Number of optimizer steps after which a trial run of a command ends."""

POLL_SECONDS = 0.05
"""Interval in seconds at which the steps of a running command are polled."""

PATIENCE_SECONDS = 10.0
"""Seconds to wait for a command's end before the next signal."""

POLITELY = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""Signals to end a command's process group, in order of increasing force."""


def main(arguments: list[str]) -> int:
    """Run the command of a job, write the result file with the status, and return 0.

    The first argument is the path of the job's JSON file.
    """
    die_with_parent(int(os.environ.get("ACCEL_BENCH_PARENT", "0")))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    signal.signal(signal.SIGUSR1, _ignore)
    job = Job.model_validate_json(Path(arguments[0]).read_bytes())
    heartbeat = Heartbeat(job.heartbeat_path(0))
    heartbeat.phase = "window"
    running = Running(job, heartbeat)
    try:
        result = running.run()
    except KeyboardInterrupt as stop:
        running.end(grace_seconds() * 0.4)  # The supervisor kills this process after its grace.
        result = RankResult(
            rank=0,
            status=Status.INTERRUPTED,
            reasons=(f"stopped by {stop}",),
            phase="window",
            error=Failure(type="KeyboardInterrupt", message=str(stop), traceback=""),
        )
    heartbeat.phase = WRITES_RESULT
    write_atomically(job.result_path(0), result.model_dump_json(), mode=PRIVATE)
    return 0


@dataclass
class Running:
    """Runner of the command of one job, with its process, heartbeat and folder of records."""

    job: Job
    heartbeat: Heartbeat

    def __post_init__(self) -> None:
        scenario = self.job.experiment.scenario
        self.options = CommandOptions.model_validate(scenario.engine.options)
        self.records = Path(self.job.folder) / "observed"
        self.process: subprocess.Popen[bytes] | None = None
        self.ended_by: signal.Signals | None = None

    def run(self) -> RankResult:
        """Run the command to its end, and return its result."""
        self.records.mkdir(mode=0o700, exist_ok=True)
        before = figure_files(self.options)
        group = read_memory_group()
        started = time.monotonic()
        try:
            self._start()
        except OSError as error:
            return self._not_started(error)
        own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._wait()
        ended = time.monotonic()
        after = read_memory_group()
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        finished = Finished(
            code=self.process.returncode if self.process else 0,
            ended_by=self.ended_by.name if self.ended_by else "",
            started=started,
            ended=ended,
            peak_bytes=peak * 1024 if peak > own_peak else 0,
            killed_for_memory=bool(group and after and after.kills > group.kills),
            output=self.job.log_path(0),
            observed=observe(self.records),
            files_before=before,
        )
        if self.job.purpose != MEASURE:
            text = json.dumps(finished.seen())
            write_atomically(self.job.answer_path(0), text, mode=PRIVATE)
        return result_of(self.job, self.options, finished, self.heartbeat)

    def _not_started(self, error: OSError) -> RankResult:
        """Return the result of a command that the system does not start."""
        why = f"{self.options.command[0]} cannot be started: {error.strerror}"
        if error.errno == errno.ENOEXEC:
            why += "; a script begins with `#!` and its interpreter"
        return RankResult(rank=0, status=Status.FAILED, reasons=(why,), phase="window")

    def _start(self) -> None:
        """Start the command as the leader of a process group of its own."""
        options, page = self.options, self.job.heartbeat_path(0)
        variables = elsewhere(os.environ) if options.revision else os.environ
        environment = command_environment(
            variables, self.records, page, options.observe, options.programs
        )
        program = program_of(options.command[0], options.folder, options.programs)
        self.process = subprocess.Popen(
            options.command,
            executable=program,
            cwd=options.folder or None,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def _wait(self) -> None:
        """Wait for the command's end, or end it after the requested number of steps."""
        assert self.process is not None
        ends_early = self.job.purpose != MEASURE or self.options.steps > 0
        while not self._ended(POLL_SECONDS if ends_early else 3600.0):
            if ends_early and self._has_enough():
                self.end()

    def _ended(self, seconds: float) -> bool:
        """Return whether the command ends within the given seconds."""
        assert self.process is not None
        if hasattr(os, "pidfd_open") and self.process.poll() is None:
            descriptor = os.pidfd_open(self.process.pid)
            try:
                select.select([descriptor], [], [], seconds)
            finally:
                os.close(descriptor)
        else:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        return self.process.poll() is not None

    def _has_enough(self) -> bool:
        """Return whether the command has taken the requested number of steps."""
        done = int(self.heartbeat.page[HEARTBEAT_STEP])
        if self.job.purpose != MEASURE:
            return done >= LOOK_STEPS
        if done <= self.options.steps:
            return False
        warmup = self.job.warmup
        if warmup is None:
            started = [process for process in read_processes(self.records) if process.steps]
            began = int(started[0].facts["began"]) / 1e9 if started else 0.0
            warmup = steps_to_leave_out(started[0].steps, began) if started else None
        return warmup is not None and done >= warmup + self.options.steps

    def end(self, patience: float = PATIENCE_SECONDS) -> None:
        """End the command and its process group, by signals of increasing force.

        `patience` is the time in seconds before the next signal.
        """
        if self.process is None or self._ended(0.0):
            return
        for number in POLITELY:
            self.ended_by = number
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            if self._group_ended(patience):
                break

    def _group_ended(self, seconds: float) -> bool:
        """Return whether all processes of the command's group end within the given seconds.

        A launcher may end before the processes that it has started.
        """
        assert self.process is not None
        until = time.monotonic() + seconds
        if not self._ended(seconds):
            return False
        with suppress(ProcessLookupError):
            while True:
                os.killpg(self.process.pid, 0)
                if time.monotonic() >= until:
                    return False
                time.sleep(POLL_SECONDS)
        return True


def look(rank: object) -> None:
    """Raise NotImplementedError, since `main` serves the job purpose `look-at-command` itself."""
    raise NotImplementedError("only the rank of a command takes a look at it")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _ignore(number: int, frame: object) -> None:
    """Do nothing: at this signal a worker writes its stacks, and the command has its own. Unlike
    SIG_IGN, the command does not inherit this."""


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
