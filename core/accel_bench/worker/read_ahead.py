"""Read micro-batches ahead in a thread, in their order: `data.prefetch`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

from accel_bench.engine import Batch
from accel_bench.plugins.active import ActivePlugin, attribute_errors_to
from accel_bench.run_context import Run

JOIN_SECONDS = 30.0
"""How long the end of a run waits for a batch that is being read."""


class ReadAhead(Iterator[Batch]):
    """The same batches in the same order, up to `ahead` of them read before they are asked for.

    The thread starts with the first batch that is asked for. What reading raises is raised where
    the batch is asked for, with its traceback.
    """

    def __init__(self, batches: Iterator[Batch], ahead: int, plugin: ActivePlugin) -> None:
        self._batches = batches
        self._ahead = ahead
        self._plugin = plugin
        self._reader = ThreadPoolExecutor(1, "read-ahead")
        self._reads: deque[Future[Batch | None]] = deque()

    def __next__(self) -> Batch:
        # The one that is asked for, those that are ready, and one that is being read.
        while len(self._reads) < self._ahead + 2:
            self._reads.append(self._reader.submit(self._read))
        if (batch := self._reads.popleft().result()) is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """End the thread. Raises RuntimeError where a batch keeps it from ending."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        if wait([one for one in self._reads if not one.cancelled()], JOIN_SECONDS).not_done:
            raise RuntimeError(f"a batch was still being read {JOIN_SECONDS:g} s after the run")
        self._reader.shutdown()

    def _read(self) -> Batch | None:
        """Return the next batch; None at the end."""
        with attribute_errors_to(self._plugin, "build_batches"):
            return next(self._batches, None)


def read_ahead(run: Run, plugin: ActivePlugin | None) -> Iterator[Batch]:
    """Return the run's batches, read ahead where its scenario says so, until the run is closed."""
    ahead = run.scenario.data.prefetch
    if not ahead or plugin is None:
        batches: Iterator[Batch] = run.batches
        return batches
    reader = ReadAhead(run.batches, ahead, plugin)
    with run.calling(plugin):
        run.on_close(reader.close)
    return reader
