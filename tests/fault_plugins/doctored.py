"""Plugins that do what a comparison must find out: go slower, learn otherwise, train nothing."""

from __future__ import annotations

import itertools
import time
from typing import Any

from accel_bench import Options, Plugin, hookimpl

STEP_SECONDS = 0.01
"""What a step takes where nothing makes it slower."""


class SleepyOptions(Options):
    """What is wrong with the steps."""

    sleeps: int = 1
    """Times that a step sleeps: with 2 it takes twice as long."""

    loss_factor: float = 1.0
    """What every loss is multiplied by."""


class SleepyEngine:
    """Sleeps instead of computing."""

    def __init__(self, run: Any, options: SleepyOptions) -> None:
        self._run, self._options = run, options

    def run(self, stopwatch: Any) -> None:
        """Lap until the window is full."""
        for step in itertools.count():
            if not stopwatch.running:
                return
            for _ in range(self._options.sleeps):
                time.sleep(STEP_SECONDS)
            loss = self._options.loss_factor / (1 + step)
            stopwatch.lap([next(self._run.batches)], loss)


class Sleepy(Plugin[SleepyOptions]):
    """Steps that take a known time."""

    Options = SleepyOptions

    @hookimpl
    def build_engine(self, run: Any) -> SleepyEngine:
        return SleepyEngine(run, self.options)


class Frozen(Plugin[Options]):
    """Trains nothing, which is very fast."""

    @hookimpl
    def accelerate_model(self, run: Any) -> None:
        run.model.requires_grad_(False)
