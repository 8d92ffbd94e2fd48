"""The metrics plugin `host-memory`: mean resident memory of each rank, read by its parent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence

import psutil
from pydantic import Field

from accel_bench import Job, Metric, Options, Plugin, RankProcess, RankResult, hookimpl
from accel_bench_metrics.nvml_sampler import Readings

STOP_SECONDS = 5.0
"""Timeout in seconds for the last reading."""


class HostMemoryOptions(Options):
    """Options of `host-memory`: the interval of readings."""

    interval_seconds: float = Field(0.25, ge=0.05, le=10.0)
    """Interval between readings in seconds."""


class MemorySampler:
    """Thread that reads the resident memory of local ranks until `finish` is called."""

    def __init__(self, ranks: Sequence[RankProcess], interval_seconds: float) -> None:
        self._interval = interval_seconds
        self._processes: dict[int, psutil.Process] = {}
        self._readings: dict[int, Readings] = {}
        for rank in ranks:
            # A rank on another machine has no process here.
            if (pid := getattr(rank, "pid", None)) is not None and psutil.pid_exists(pid):
                self._processes[rank.rank] = psutil.Process(pid)
                self._readings[rank.rank] = Readings("Q")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="host-memory", daemon=True)
        self._thread.start()

    def finish(self, results: Mapping[int, RankResult]) -> Iterable[Metric]:
        """Stop sampling, and yield each rank's mean resident memory in its measured window.

        `results` are the ranks' results by rank, with their windows.
        """
        self._stopping.set()
        self._thread.join(STOP_SECONDS)
        for rank, result in results.items():
            value, reason = self._mean(rank, result)
            readings = self._readings.get(rank)
            yield Metric(
                name="mean_host_memory_bytes",
                value=value,
                unit="bytes",
                reason=reason,
                kind="rss",
                scope="rank",
                better="lower",
                rank=rank,
                series=None if readings is None else readings.stored(),
            )

    def _mean(self, rank: int, result: RankResult) -> tuple[float | None, str]:
        window, readings = result.window, self._readings.get(rank)
        if readings is None:
            return None, "the rank's process is not on the machine of the program"
        if window is None:
            return None, "no window was measured"
        # A rank may end before the reading that would follow its window.
        gap = window.ended - readings.until
        ended = readings.until if 0 < gap <= 2 * self._interval else window.ended
        mean = readings.mean(window.started, ended)
        return mean, "" if mean is not None else "the readings do not cover the window"

    def _sample(self) -> None:
        while True:
            stopping = self._stopping.is_set()
            for rank, process in [*self._processes.items()]:
                try:
                    used = process.memory_info().rss
                except psutil.Error:
                    del self._processes[rank]
                else:
                    self._readings[rank].add_change(used, at=time.monotonic())
            if stopping or not self._processes:
                return
            self._stopping.wait(self._interval)


class HostMemory(Plugin[HostMemoryOptions]):
    """Samples the ranks' resident memory from the parent process, which disturbs no step."""

    Options = HostMemoryOptions

    @hookimpl
    def observe_ranks(self, job: Job, ranks: Sequence[RankProcess]) -> MemorySampler | None:
        """Start and return the sampler of the ranks of a measured run; None for other jobs."""
        interval = self.options.interval_seconds
        return MemorySampler(ranks, interval) if job.purpose == "measure" else None
