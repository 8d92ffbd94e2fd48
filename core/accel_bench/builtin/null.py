"""Plugin `null`: a model, data and an engine without torch that do nothing, to time the harness."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from accel_bench import Batch, Engine, Options, Plugin, Run, Stopwatch, TokenCounts, hookimpl


class NullOptions(Options):
    """Options of `null`."""

    step_seconds: float = Field(0.0, ge=0)
    """Seconds that a step of the engine sleeps."""


class NullModel:
    """A model without parameters."""


class NullEngine:
    """Engine whose steps sleep; the loss falls as 1 / (1 + step), whatever the data."""

    def __init__(self, run: Run, step_seconds: float) -> None:
        self._run = run
        self._step_seconds = step_seconds

    def run(self, stopwatch: Stopwatch) -> None:
        """Sleep in each step and record it by `stopwatch.lap`, while `stopwatch.running`."""
        accumulation = self._run.scenario.train.gradient_accumulation
        for step in itertools.count():
            if not stopwatch.running:
                return
            if self._step_seconds:
                time.sleep(self._step_seconds)
            batches = list(itertools.islice(self._run.batches, accumulation))
            stopwatch.lap(batches, 1 / (1 + step) / self._run.world_size)


class Null(Plugin[NullOptions]):
    """Stands in for a model, data, an optimizer and an engine, without torch."""

    Options = NullOptions
    modes = frozenset({"train"})

    uses_torch = False

    @hookimpl
    def load_data(self, run: Run) -> Any:
        """Return an empty dataset."""
        return ()

    @hookimpl
    def load_model(self, run: Run) -> NullModel:
        """Return the empty model."""
        return NullModel()

    @hookimpl
    def build_optimizer(self, run: Run) -> NullModel:
        """Return an empty object in place of an optimizer."""
        return NullModel()

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield the same empty batch endlessly, with token counts."""
        train, length = run.scenario.train, run.scenario.data.sequence_length
        tokens = train.micro_batch_size * length
        supervised = train.global_batch_size * (length - 1)
        counts = TokenCounts(tokens, tokens, train.micro_batch_size * (length - 1))
        return itertools.repeat(Batch({}, train.micro_batch_size, counts, supervised))

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine whose steps sleep."""
        return NullEngine(run, self.options.step_seconds)

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        """Return the evidence `{"trains": False}`: nothing was trained."""
        return {"trains": False}
