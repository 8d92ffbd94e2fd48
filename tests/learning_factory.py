"""Results with learning curves made up for tests: chosen losses, seconds and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis_factory import make_experiment, make_rank, make_result, make_sample

from accel_bench.result import Evaluation, LearningCurve, MemoryReading, Result, Status
from accel_bench.scenario.experiment import Experiment

WINDOW_STEPS = 3
"""Steps before the learning curve: one of the warm-up, two of the window."""


def evaluation(step: int, loss: float | None, seconds: float = 2.0) -> Evaluation:
    return Evaluation(
        step=step,
        loss=loss,
        seconds=seconds,
        batches=1,
        sequences=10,
        real_tokens=400,
        supervised_tokens=390,
    )


def learned(
    losses: Sequence[float | None],
    *,
    experiment: Experiment | None = None,
    round: int = 0,
    step_seconds: float = 0.1,
    memory: Sequence[int] = (),
) -> Result:
    """A run evaluated before training, after the window, then after each further step.

    Each step takes `step_seconds` but the first, which takes 0.5 s, and has 100 tokens.
    """
    further = max(0, len(losses) - 2, len(memory))
    steps = [0, *range(WINDOW_STEPS, WINDOW_STEPS + len(losses) - 1)]
    places = range(WINDOW_STEPS, WINDOW_STEPS + further)
    curve = LearningCurve(
        evaluations=tuple(map(evaluation, steps, losses)),
        steps=tuple(make_sample(step, step_seconds) for step in places),
        memory=tuple(
            MemoryReading(step=step + 1, host_bytes=size)
            for step, size in zip(places, memory, strict=False)
        ),
    )
    rank = make_rank(step_seconds=(step_seconds, step_seconds))
    rank = rank.model_copy(update={"learning": curve})
    return make_result(experiment, round=round, ranks=(rank,), seconds=step_seconds)


def learned_at(losses: Mapping[int, float], experiment: Experiment) -> Result:
    """A run evaluated after the given steps, the last of which ends its window."""
    rank = make_rank(warmup=max(losses) - 2)
    curve = LearningCurve(evaluations=tuple(evaluation(*one) for one in losses.items()))
    return make_result(experiment, ranks=(rank.model_copy(update={"learning": curve}),))


def seeded(stack: str, seed: int, rate: float | None = None) -> Experiment:
    """An experiment at one seed, and one learning rate where that is swept."""
    sweep: dict[str, Any] = {"train.seed": seed}
    train: dict[str, Any] = {"seed": seed}
    if rate is not None:
        sweep["train.learning_rate"] = train["learning_rate"] = rate
    found = make_experiment(stack, sweep=sweep, scenario={"train": train})
    return found.model_copy(update={"identity": {"uses": [stack], "work": {"train": train}}})


def diverged(experiment: Experiment) -> Result:
    """A run whose loss was not finite."""
    return make_result(
        experiment, status=Status.INVALID, reasons=("the loss of step 3 is not finite",)
    )
