"""Engine that requests steps from a confined process, and records the process's answers."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from accel_bench import Run, Stopwatch
from accel_bench_judge.engine import StepOptions
from accel_bench_judge.step_files import digest_of
from accel_bench_judge.trial_impl import Trial


def start_trial(run: Run, options: StepOptions) -> Trial:
    """Start the process of a judged step, which ends with the run, and return the trial that
    controls it."""
    cache = run.cache_folder / "judge" / digest_of(options.file)
    trial = Trial(options.reference, options.file, cache, fewer_flops=options.fewer_flops)
    run.on_close(trial.end)
    return trial


class StepEngine:
    """Engine that requests each timed step from a process, which is stopped in between."""

    def __init__(self, run: Run) -> None:
        self._trial: Trial = run.model
        self._warmup = run.scenario.measure.warmup
        self._batch = [next(iter(run.batches))]

    def run(self, stopwatch: Stopwatch) -> None:
        """For each step until the stopwatch stops: share a batch, time the step, record its answer.

        Before that, one untimed step counts the FLOPs.
        """
        trial, batch = self._trial, self._batch
        trial.count()
        for number in itertools.count():
            if not stopwatch.running:
                return
            if number == self._warmup:
                trial.watch()
            trial.begin()
            stopwatch.resume()
            reply = trial.ask()
            stopwatch.lap(batch, 0.0)
            trial.keep(reply)


def evidence(run: Run) -> dict[str, Any]:
    """End the step's process, and return the judgement as JSON evidence. Raises InvalidRunError if
    the training differs."""
    trial: Trial = run.model
    trial.end()
    judged = trial.judge()
    summary = f"update {judged.training} in {judged.steps} steps"
    judgement = {**dataclasses.asdict(judged), "unconfined": trial.confinement.gaps}
    return {"summary": summary, "judgement": judgement}
