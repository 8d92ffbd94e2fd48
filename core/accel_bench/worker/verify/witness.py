"""Watch a run from its first step to the end of its window, without touching the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from accel_bench.effective import EffectiveConfiguration
from accel_bench.result import Window
from accel_bench.run_context import Run
from accel_bench.worker.verify.drift import State, changes, read_state
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.optimizer_steps import (
    Reading,
    StepCounter,
    node_reasons,
    progress_reasons,
    read_progress,
    window_reasons,
)


class WindowWitness:
    """Reads the state at the end of the first step and after the window, and counts steps.

    In the warm-up it reads before each lap; in the window it does nothing.
    """

    def __init__(self, run: Run, probe: FirstStepProbe) -> None:
        self._run = run
        self._probe = probe
        self._first: State | None = None
        self._counter = StepCounter(run.model.parameters())
        self._readings: list[Reading] = []

    def between_laps(self, lap: Callable[..., None]) -> Callable[..., None]:
        """Return the lap of warm-up steps with a reading before it."""

        def watched_lap(*arguments: Any) -> None:
            if not self._probe.frozen:
                self._first = self._first or read_state(self._run)
            self._probe.end_step()
            self._counter.see_step()
            if not self._readings:
                self.read(steps=1)
            lap(*arguments)

        return watched_lap

    def read(self, steps: int) -> None:
        """Read weights and counters after so many steps, outside of windows."""
        self._readings.append(self._counter.read(steps, self._optimizers()))

    def computed_less(self, later: Sequence[int]) -> Iterator[str]:
        """Yield that autograd saw less in the kept window than around it.

        `later` are the nodes that it made in each of some steps after the window.
        """
        opened, ended = self._readings[-2:]
        yield from node_reasons(self._counter.nodes, opened, ended, later)

    def _optimizers(self) -> list[Any]:
        return list(self._probe.optimizers.values()) or [self._run.optimizer]

    def check(
        self, window: Window, effective: EffectiveConfiguration
    ) -> tuple[EffectiveConfiguration, list[str], list[str]]:
        """Read everything again after the window.

        Return the configuration with it, reasons for `degraded`, and reasons for `invalid`.
        """
        steps = window.samples[-1].step + 1
        self.read(steps)
        progress = read_progress(self._optimizers(), steps, self._counter)
        degraded, invalid = progress_reasons(self._run.scenario, progress)
        found = window_reasons(self._run.scenario, self._counter, self._readings)
        invalid = invalid or [*found]
        flow = self._probe.flow
        if self._first is not None and flow is not None:
            changed = changes(self._first, read_state(self._run), flow.gradient_norms)
            degraded, invalid = [*degraded, *changed[0]], [*invalid, *changed[1]]
        return effective.model_copy(update={"optimizer_progress": progress}), degraded, invalid
