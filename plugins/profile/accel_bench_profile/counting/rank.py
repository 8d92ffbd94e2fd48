"""One rank's ledger: build the run, take steps until they are alike, count the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from accel_bench.engine import Batch, PhaseName, Stopwatch
from accel_bench.errors import InvalidRunError
from accel_bench.run_context import Run
from accel_bench.worker.measurement import Rank
from accel_bench_profile.counting.compiled import (
    count_compilations,
    counting_kernels,
    has_compiled,
    keep_provenance,
)
from accel_bench_profile.counting.counter import StepCounter
from accel_bench_profile.counting.sites import Sites
from accel_bench_profile.ledger.schema import RankLedger

WARMUP_STEPS = 3
"""Steps before the one that is counted: optimizers make their state in the first, data-parallel
models their buckets, and a compiler may compile the second shape again."""

COMPILED = (
    "of compiled code, the bytes and FLOPs of generated kernels and calls such as Tensor.cpu() are "
    "not counted"
)


def count(rank: Rank) -> RankLedger:
    """Return the ledger of a step of the run that a rank builds: a purpose of a worker."""
    return count_step(rank.run, partial(rank.take_steps, rank.build()))


def count_step(run: Run, take_steps: Callable[[Stopwatch], None]) -> RankLedger:
    """Return the ledger of the step after the warm-up. Raises InvalidRunError without that step."""
    keep_provenance()  # after the run is built, before anything is compiled
    steps = CountedSteps(run)
    try:
        take_steps(steps)
    finally:
        steps.close()
    if steps.counter is None or steps.running:
        raise InvalidRunError(["the engine returned before the step that is counted had ended"])
    compiled = has_compiled()
    if compiled:
        count_compilations(steps.counter)
    return RankLedger(entries=steps.counter.entries(), left_out=(COMPILED,) if compiled else ())


class CountedSteps:
    """The stopwatch of the counted step: nothing is timed."""

    def __init__(self, run: Run) -> None:
        self.running = True
        self.counter: StepCounter | None = None
        self._run = run
        self._done = 0
        self._counting = ExitStack()

    def resume(self) -> None:
        """Do nothing: no time is measured."""

    def mark(self, phase: PhaseName) -> None:
        """Pass on which part of the step has ended."""
        if self.counter is not None:
            self.counter.sites.mark(phase)

    def lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a step: one of the warm-up, or the one that is counted."""
        self._done += 1
        if self.counter is not None:
            self.close()
            self.running = False
        elif self._done == WARMUP_STEPS + self._run.trains_from:
            self._start()

    def close(self) -> None:
        """Stop counting, unless that is done."""
        self._counting.close()

    def _start(self) -> None:
        model, state = self._run.unwrapped_model, _numbers(self._run.optimizer)
        kept = [*model.parameters(), *model.buffers()] if hasattr(model, "parameters") else []
        self.counter = StepCounter(Sites(model), kept, state)
        self._counting.callback(self.counter.stop)
        self.counter.start(host_calls=not has_compiled())
        self._counting.enter_context(counting_kernels(self.counter))


def _numbers(optimizer: Any) -> list[Any]:
    """Return the optimizer's state that lies in host memory on every device: numbers of steps."""
    values = (one for state in getattr(optimizer, "state", {}).values() for one in state.values())
    return [one for one in values if getattr(one, "numel", lambda: 0)() == 1 and one.is_cpu]
