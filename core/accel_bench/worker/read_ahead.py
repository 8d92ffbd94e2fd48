"""Reading of micro-batches ahead, in a thread, without changing their order: `data.prefetch`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from accel_bench.engine import Batch
from accel_bench.plugins.active import ActivePlugin, attribute_errors_to
from accel_bench.run_context import Run

JOIN_SECONDS = 30.0
"""Seconds that a run waits at its end for a batch that is being read."""


class ReadAhead(Iterator[Batch]):
    """Iterator over batches in their order, of which a thread reads up to `ahead` in advance.

    The thread starts with the first request for a batch. An error in reading a batch is raised,
    with its traceback, in place of the batch.
    """

    def __init__(self, batches: Iterator[Batch], ahead: int, plugin: ActivePlugin) -> None:
        self._batches = batches
        self._ahead = ahead
        self._plugin = plugin
        self._ready: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._ended: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="read-ahead", daemon=True)

    def __next__(self) -> Batch:
        if self._thread.ident is None:
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            if self._ready:
                batch = self._ready.popleft()
                self._changed.notify_all()
                return batch
            raise self._ended or StopIteration

    def close(self) -> None:
        """End the thread. Raises RuntimeError if it is still reading a batch after JOIN_SECONDS."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is None:
            return
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            raise RuntimeError(f"a batch was still being read {JOIN_SECONDS:g} s after the run")

    def _read(self) -> None:
        try:
            with attribute_errors_to(self._plugin, "build_batches"):
                for batch in self._batches:
                    if not self._put(batch):
                        return
        except BaseException as error:
            self._end(error)
        else:
            self._end(StopIteration())

    def _put(self, batch: Batch) -> bool:
        """Store a batch once there is room for it; return whether to read another one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._ahead or self._closed)
            self._ready.append(batch)
            self._changed.notify_all()
            return not self._closed

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._ended = error
            self._changed.notify_all()


def read_ahead(run: Run, plugin: ActivePlugin | None) -> Iterator[Batch]:
    """Return the run's batches, read ahead in a thread if configured, until the run is closed."""
    ahead = run.scenario.data.prefetch
    if not ahead or plugin is None:
        batches: Iterator[Batch] = run.batches
        return batches
    reader = ReadAhead(run.batches, ahead, plugin)
    with run.calling(plugin):
        run.on_close(reader.close)
    return reader
