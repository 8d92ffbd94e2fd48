"""Results and summaries made up for tests of analysis and report: real models, chosen numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.checks.verdict_rules import RULES
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.summary import summarize
from accel_bench.documents.canonical import digest
from accel_bench.effective import EffectiveConfiguration
from accel_bench.machine.info import Device
from accel_bench.result import (
    SKETCH_BUCKETS,
    Metric,
    PluginVersion,
    RankResult,
    Result,
    Sample,
    Status,
    TensorUpdate,
    WeightUpdate,
    Window,
)
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.scenario.uses import Use

TOKENS = 100
"""Real tokens of one rank's step unless a test says otherwise."""

SHORT = {"sequence_length": TOKENS + TOKENS // 10}
"""The data of that one sample, with its padding."""


def make_experiment(
    stack: str = "lora",
    uses: Sequence[Use] = (),
    settings: Mapping[str, Any] | None = None,
    sweep: Mapping[str, Any] | None = None,
    scenario: Mapping[str, Any] | None = None,
) -> Experiment:
    """One planned point; `scenario` are settings of the work."""
    identity = {"uses": [stack], "sweep": dict(sweep or {}), "work": dict(scenario or {})}
    return Experiment(
        id=digest(identity),
        scenario=Scenario.model_validate({"data": SHORT, **(scenario or {})}),
        stack=Stack(name=stack, uses=tuple(uses), settings=dict(settings or {})),
        sweep=dict(sweep or {}),
        identity=identity,
    )


def make_sample(
    step: int, seconds: float = 0.1, loss: float | None = 2.0, tokens: int = TOKENS
) -> Sample:
    """One step; a tenth of its processed tokens is padding on top of `tokens` real ones."""
    return Sample(
        step=step,
        seconds=seconds,
        sequences=1,
        processed_tokens=tokens + tokens // 10,
        real_tokens=tokens,
        supervised_tokens=tokens - 1,
        loss=loss,
    )


def limit(figure: str, case: str) -> float:
    """The limit of one rule of the verdicts."""
    (found,) = (rule.limit for rule in RULES if (rule.figure, rule.case) == (figure, case))
    return found


UPDATE = WeightUpdate(
    steps=0,
    trained_tensors=1,
    trained_elements=100,
    tensors={"head": TensorUpdate(elements=100, sketch=(1.0,) * SKETCH_BUCKETS)},
    weights=(1.0,) * SKETCH_BUCKETS,
    seconds=0.01,
)
"""How training changed the weights of every rank."""


def make_rank(
    rank: int = 0,
    *,
    step_seconds: Sequence[float] = (0.1, 0.1),
    losses: Sequence[float | None] | None = None,
    warmup: int = 1,
    tokens: int = TOKENS,
    peak: int | None = 1000,
    device: Mapping[str, Any] | None = None,
) -> RankResult:
    """A rank that completed; `losses` are those of the warm-up and then of the window."""
    steps = warmup + len(step_seconds)
    losses = [2.0 - 0.01 * step for step in range(steps)] if losses is None else losses
    seconds = [0.5] * warmup + list(step_seconds)
    samples = [make_sample(i, seconds[i], losses[i], tokens) for i in range(steps)]
    return RankResult(
        rank=rank,
        status=Status.OK,
        device=Device(**(device or {"type": "cpu", "name": "a CPU"})),
        window=Window(
            started=10.0,
            ended=10.0 + sum(step_seconds),
            samples=tuple(samples[warmup:]),
            warmup=tuple(samples[:warmup]),
        ),
        metrics=(
            Metric(
                name="peak_memory_bytes",
                figure="peak_memory",
                value=peak,
                unit="bytes",
                scope="rank",
                kind="host RSS",
            ),
        ),
        update=UPDATE.model_copy(update={"steps": steps}),
        effective=EffectiveConfiguration(threads=4),
        evidence={"lora": {"modules": 4}, "data": {"constant_length": True}},
    )


def make_ranks(experiment: Experiment, seconds: float) -> list[RankResult]:
    """All ranks of an experiment, each with its own batch in two steps of `seconds`."""
    train = experiment.scenario.train
    batch = train.micro_batch_size * train.gradient_accumulation
    ranks = []
    for number in range(experiment.scenario.world_size):
        rank = make_rank(number, step_seconds=(seconds, seconds), tokens=TOKENS * batch)
        assert rank.window is not None
        both = {
            part: tuple(
                sample.model_copy(update={"sequences": batch})
                for sample in getattr(rank.window, part)
            )
            for part in ("warmup", "samples")
        }
        window = rank.window.model_copy(update=both)
        ranks.append(rank.model_copy(update={"window": window}))
    return ranks


def make_result(
    experiment: Experiment | None = None,
    *,
    round: int = 0,
    status: Status = Status.OK,
    seconds: float = 0.1,
    session: str = "monday",
    attempt: int = 0,
    reasons: Sequence[str] = (),
    ranks: Sequence[RankResult] | None = None,
    loss_tolerance: float | None = None,
    loss_tolerances: Mapping[str, float] | None = None,
    update_tolerances: Mapping[str, float] | None = None,
    replaces: str = "",
) -> Result:
    """One attempt, of two steps of `seconds` each when it completed."""
    experiment = experiment or make_experiment()
    if ranks is None:
        ranks = [make_rank(step_seconds=(seconds, seconds))] if status.completed else []
    day = 1 + WEEK.index(session)
    return Result(
        run_id=f"{experiment.id}-{session}-{round}-{attempt}",
        session=session,
        experiment=experiment,
        round=round,
        position=0,
        attempt=attempt,
        replaces=replaces,
        status=status,
        reasons=tuple(reasons),
        started_at=f"2026-01-0{day}T00:{round:02}:{attempt:02}Z",
        seconds=1.0,
        ranks=tuple(ranks),
        plugins=(PluginVersion(name="lora", distribution="accel-bench", version="0.1.0"),),
        loss_tolerance=loss_tolerance,
        loss_tolerances=dict(loss_tolerances or {}),
        update_tolerances=dict(update_tolerances or {}),
    )


def make_rounds(experiment: Experiment, seconds: Sequence[float], **changes: Any) -> list[Result]:
    """One completed run for each number of step seconds, in rounds 0, 1, ..."""
    return [
        make_result(experiment, round=index, seconds=value, **changes)
        for index, value in enumerate(seconds)
    ]


LORA, FAST, NF4 = (make_experiment(name) for name in ("lora", "fast", "nf4"))
"""The baseline of most tests, and two stacks beside it."""


def make_failures(
    experiment: Experiment, status: Status, rounds: int = 5, **changes: Any
) -> list[Result]:
    """One run in each round, all of which ended alike."""
    return [make_result(experiment, round=i, status=status, **changes) for i in range(rounds)]


def make_summary(
    experiments: Sequence[Experiment],
    results: Sequence[Result],
    rounds: int = 5,
    skipped: Mapping[str, Sequence[str]] | None = None,
    baseline: str = "lora",
) -> Summary:
    """Summarize; `skipped` gives reasons by stack."""
    planned = [
        PlannedSummary(experiment=e, skipped=tuple((skipped or {}).get(e.stack.name, ())))
        for e in experiments
    ]
    return summarize("peft", baseline, planned, results, rounds)


WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday")
"""Sessions, by their order."""

STEADY = (0.100, 0.1003, 0.0998, 0.1001, 0.0999)
"""Step seconds of five runs with a quarter of a percent of noise."""


def scaled(
    factor: float, noise: Sequence[float] = (1.0, 1.001, 0.999, 1.0005, 0.9995)
) -> list[float]:
    """STEADY, `factor` times as long, with noise of its own."""
    return [factor * n * s for n, s in zip(noise, STEADY, strict=True)]


def with_threads(results: Sequence[Result], threads: int) -> list[Result]:
    """The same runs, computed by another number of threads."""
    changed = []
    for result in results:
        effective = result.ranks[0].effective.model_copy(update={"threads": threads})
        ranks = (result.ranks[0].model_copy(update={"effective": effective}),)
        changed.append(result.model_copy(update={"ranks": ranks}))
    return changed
