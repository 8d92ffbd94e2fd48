"""The engine that asks a confined process for steps, and reads all its answers."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from accel_bench import Run, Stopwatch
from accel_bench_judge.engine import StepOptions
from accel_bench_judge.step_files import digest_of
from accel_bench_judge.trial_impl import Trial


def start_trial(run: Run, options: StepOptions) -> Trial:
    """Start the process of the step, which ends with the run."""
    cache = run.cache_folder / "judge" / digest_of(options.file)
    trial = Trial(options.reference, options.file, cache, fewer_flops=options.fewer_flops)
    run.on_close(trial.end)
    return trial


class StepEngine:
    """Engine that asks for a step for each lap; between laps the process stands still."""

    def __init__(self, run: Run) -> None:
        self._trial: Trial = run.model
        self._warmup = run.scenario.measure.warmup
        self._batch = [next(iter(run.batches))]

    def run(self, stopwatch: Stopwatch) -> None:
        """Show a batch, let the clock run for one step, and keep what it has computed."""
        trial, batch = self._trial, self._batch
        trial.count()
        for number in itertools.count():
            if not stopwatch.running:
                return
            if number == self._warmup:
                trial.watch()
            trial.begin()
            stopwatch.resume()
            answer = trial.ask()
            stopwatch.lap(batch, 0.0)
            trial.keep(answer)


def evidence(run: Run) -> dict[str, Any]:
    """Return the judgement as JSON evidence. Raises InvalidRunError for another training."""
    trial: Trial = run.model
    trial.end()
    found = trial.judge()
    summary = f"update {found.training} in {found.steps} steps"
    judgement = {**dataclasses.asdict(found), "unconfined": trial.confinement.gaps}
    return {"summary": summary, "judgement": judgement}
