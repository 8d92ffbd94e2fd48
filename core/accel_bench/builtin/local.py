"""Launcher `local`: starts each rank as a process on this machine, in an OS session of its own."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench import Job, LocalProcess, Options, Plugin, RankProcess, hookimpl


class Local(Plugin[Options]):
    """Starts one process for each rank on this machine."""

    single_node = True

    @hookimpl
    def launch_ranks(self, job: Job) -> Sequence[RankProcess]:
        """Start and return one process for each rank; if one fails to start, end all and raise."""
        started: list[LocalProcess] = []
        try:
            for rank in range(job.world_size):
                started.append(LocalProcess(job, rank))
        except BaseException:
            for process in started:
                process.sweep()
            raise
        return started
