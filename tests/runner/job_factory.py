"""Jobs and rank processes for tests: real processes, which run a line of Python each."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from pathlib import Path

from store.store_factory import make_experiment

from accel_bench.job import PHASES, Job
from accel_bench.result import RankResult, Status


def make_job(folder: Path, ranks: int = 1, seconds: float = 60.0) -> Job:
    """A job of that many ranks."""
    experiment = make_experiment(
        resources={"devices": ranks}, parallel="none", measure={"timeout_seconds": seconds}
    )
    return Job(run_id="run", experiment=experiment, folder=str(folder), cache_folder=str(folder))


def write_rank(job: Job, rank: int, status: Status = Status.OK, *reasons: str) -> None:
    """Leave a rank's result behind."""
    found = RankResult(rank=rank, status=status, reasons=reasons, phase="window")
    job.result_path(rank).write_text(found.model_dump_json(), encoding="utf8")


def write_beat(job: Job, rank: int, step: int, phase: str) -> None:
    """Leave a rank's heartbeat behind."""
    page = struct.pack("=QQQQ", step, PHASES.index(phase), 0, 0)
    job.heartbeat_path(rank).write_bytes(page)


class LineProcess:
    """A rank that runs a line of Python and remembers what was asked of it."""

    def __init__(self, rank: int, line: str) -> None:
        self.rank = rank
        self.asked: list[str] = []
        self._process = subprocess.Popen([sys.executable, "-c", line])

    def wait(self, seconds: float) -> None:
        """Return when the process has ended, or after that many seconds."""
        until = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.01)

    def poll(self) -> int | None:
        """Exit code, or None."""
        return self._process.poll()

    def dump_stack(self) -> None:
        """Only remember it."""
        self.asked.append("dump")

    def signal(self, number: int) -> None:
        """Send it."""
        self.asked.append(f"signal {int(number)}")
        self._process.send_signal(number)

    def sweep(self) -> None:
        """End it for certain."""
        self.asked.append("sweep")
        self._process.kill()
        self._process.wait()
