"""Judgement of a study's trials: objective, constraints, best trial, and answer."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean

from accel_bench.analysis.checks.audit import audit_failures
from accel_bench.analysis.checks.comparability import comparability
from accel_bench.analysis.checks.convergence import SMOOTHING_STEPS
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.learning.curves import Reached, training_curve, validation_curve
from accel_bench.analysis.metrics.memory import peak_memory
from accel_bench.analysis.metrics.offered_load import NO_LATENCY, compared_seconds, is_saturated
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.statistics.verdict import ALIKE, Direction, Policy, compare_logs
from accel_bench.analysis.tables.experiment_keys import place
from accel_bench.analysis.wording import (
    assignments,
    count,
    interval_text,
    percent,
    ratio,
    settings,
    size,
)
from accel_bench.documents.base import JsonValue
from accel_bench.result import Result, Status
from accel_bench_search.tune_report import (
    Objective,
    TrialOutcome,
    TuneCheck,
    TuneReport,
    TuneTrial,
)

GROWS_WITH_MEMORY = ("train.micro_batch_size", "data.sequence_length")
"""Keys whose larger values never need less memory."""


def loss_at(run: Result, objective: Objective) -> float | None:
    """Return the loss of a run once it has used the objective's budget; None if it ended before.

    The loss is read from the first evaluation after the budget. Without evaluations, it is the mean
    training loss of the last 5 steps. A non-finite loss counts as infinite.
    """
    curve = training_curve(run)
    passed = [n for n, point in enumerate(curve) if objective.used(point) >= objective.limit]
    if not passed:
        return None
    losses = [
        point.loss for point in curve[max(0, passed[0] + 1 - SMOOTHING_STEPS) : passed[0] + 1]
    ]
    if evaluated := validation_curve(run):
        later = (point.loss for point in evaluated if objective.used(point) >= objective.limit)
        losses = list(islice(later, 1))
    known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if len(known) < len(losses):
        return math.inf
    return fmean(known) if known else None


def steps_to_reach(curve: Sequence[Reached], objective: Objective) -> int:
    """Return the estimated number of steps in which a run uses up the objective's budget.

    The pace is that of `curve`, the training curve of a shorter run. A tenth is added as a margin,
    and the number of steps over which the loss is smoothed.
    """
    paced = curve[1:] if len(curve) > 1 else curve  # the first step holds what happens once
    each = (objective.used(curve[-1]) - objective.used(curve[0])) / max(len(paced), 1)
    each = each or objective.used(curve[-1])
    return math.ceil(1.1 * objective.limit / each) + SMOOTHING_STEPS


def judge_trial(
    number: int | None,
    parameters: dict[str, JsonValue],
    run: Result,
    baseline: Result,
    objective: Objective,
) -> TuneTrial:
    """Return a judged trial: the value of its objective, or the reason for having none.

    `number` is its number in the study, None for the baseline. `baseline` is the baseline's run.
    """
    outcome, value, reason = _judge(run, baseline, objective)
    speed = run_throughput(run) if run.status.completed else None
    return TuneTrial(
        number=number,
        parameters=parameters,
        outcome=outcome,
        value=value,
        reason=reason,
        status=run.status,
        run_id=run.run_id,
        tokens_per_second=speed.tokens_per_second if speed else None,
        peak_memory_bytes=peak_memory([run])[0] if speed else None,
        last_loss=speed.losses[-1] if speed else None,
    )


def _judge(
    run: Result, baseline: Result, objective: Objective
) -> tuple[TrialOutcome, float | None, str]:
    if run.status is Status.OOM:
        return "out of memory", None, "; ".join(run.reasons)
    speed = run_throughput(run)
    if not run.status.completed or speed is None:
        return "failed", None, f"{run.status.value}: {'; '.join(run.reasons)}"
    if reason := next(_broken(run, baseline, objective), ""):
        return "infeasible", None, reason
    if objective.goal == "tokens_per_second":
        return "ok", speed.tokens_per_second, ""
    if objective.goal == "request_seconds":
        latency = compared_seconds(run, speed)
        return ("ok", latency, "") if latency else ("failed", None, NO_LATENCY)
    return _judge_loss(run, objective)


def _judge_loss(run: Result, objective: Objective) -> tuple[TrialOutcome, float | None, str]:
    loss = loss_at(run, objective)
    if loss is None:
        return "infeasible", None, f"it ended before {objective.amount:g} {objective.unit}"
    if math.isinf(loss):
        return "infeasible", None, "its loss is not finite"
    return "ok", loss, ""


def _broken(run: Result, baseline: Result, objective: Objective) -> Iterator[str]:
    """Yield a clause for each constraint that a completed run violates, without a full stop."""
    if figures := audit_failures(run):
        yield f"its own figures contradict each other ({', '.join(figures)})"
    peak, most = peak_memory([run])[0], objective.memory_below_bytes
    if most is not None and peak is None:
        yield "its memory was not measured"
    elif most is not None and peak is not None and peak >= most:
        yield f"its peak of {size(peak)} is not below {size(most)}"
    if is_saturated(run):
        yield "it is saturated: requests pile up at this rate"
    if objective.is_speed and run.run_id != baseline.run_id:
        yield from _other_training(run, baseline)


def _other_training(run: Result, baseline: Result) -> Iterator[str]:
    """Yield reasons to doubt that a run's training is equivalent to the baseline's."""
    training = compare_training({("", 0): baseline}, {("", 0): run})
    yield from filter(None, (comparability([baseline], [run]).refusal, training.not_the_same))
    if training.untested:
        yield training.untested
    if training.generated:
        return  # What else than the same answers is among the differences.
    if training.loss_verdict not in ALIKE and not training.loss_excused:
        yield (
            f"its loss was not shown to be equivalent: {training.loss_reason}; --objective loss "
            "compares what trains otherwise"
        )


def dominated(parameters: dict[str, JsonValue], trials: Sequence[TuneTrial]) -> TuneTrial | None:
    """Return a trial that ran out of memory at values no larger than `parameters`.

    None if there is no such trial.
    """
    return next(
        (
            trial
            for trial in trials
            if trial.outcome == "out of memory"
            and all(
                _at_least(key, value, trial.parameters.get(key))
                for key, value in parameters.items()
            )
        ),
        None,
    )


def _at_least(key: str, value: JsonValue, other: JsonValue) -> bool:
    if key in GROWS_WITH_MEMORY and isinstance(value, int) and isinstance(other, int):
        return value >= other
    return value == other


def best_of(trials: Sequence[TuneTrial], objective: Objective) -> TuneTrial | None:
    """Return the trial with the best value, the first of equals; None if no trial has a value."""
    known = [(trial.value, trial) for trial in trials if trial.value is not None]
    return max(known, key=lambda pair: objective.better * pair[0])[1] if known else None


def beats(best: TuneTrial | None, baseline: TuneTrial, objective: Objective) -> bool:
    """Return whether a trial's value is better than the baseline's, so that it must be checked."""
    if best is None or best.value is None or best.run_id == baseline.run_id:
        return False
    return baseline.value is None or objective.better * (best.value - baseline.value) > 0


DIVERGED: tuple[tuple[int, Direction, str], ...] = (
    (0, "inconclusive", "has no ratio to the baseline's, which is"),
    (1, "worse", "is worse than the baseline's: it is"),
)
"""Reason and verdict if losses are not finite: the baseline's (0), or the winner's (1)."""


def check_losses(
    pairs: Sequence[tuple[float, float]], words: str, session: str, looks: int = 1
) -> TuneCheck:
    """Return the comparison of pairs of losses (baseline, winner), one pair for each seed.

    The verdict has no practical floor. The usual error rate is shared by all `looks` (interim
    analyses), one for each session that added seeds. If a loss of the baseline is not finite, the
    verdict is inconclusive; if only a loss of the winner is not finite, the verdict is `worse`.
    `words` is the name of the loss in the reason, and `session` the id of the last session.
    """
    seeds = count(len(pairs), "seed")
    for side, verdict, what in DIVERGED:
        if without := sum(not math.isfinite(losses[side]) for losses in pairs):
            reason = f"over {seeds} its {words} {what} not finite with {count(without, 'seed')}"
            return TuneCheck(rounds=len(pairs), verdict=verdict, reason=reason, session=session)
    less = [math.log(base / winner) for base, winner in pairs if base > 0 and winner > 0]
    compared = compare_logs({words: less}, {words: looks}, Policy(floor=0.0))[words]
    if compared.ratio is None:
        return TuneCheck(reason=f"no seed with a {words}", session=session)
    inverse = compared.ratio.mapped(lambda ratio: 1 / ratio)
    change = percent(abs(inverse.median - 1))
    lower = f"{change} {'lower' if inverse.median < 1 else 'higher'}"
    sure = "surely" if compared.verdict in ("better", "worse") else "not surely"
    reason = (
        f"over {count(len(less), 'seed')} its {words} is {sure} {lower} than the baseline's "
        f"({interval_text(inverse, ratio)} times it)"
    )
    losses = compared.model_copy(update={"ratio": inverse})
    return TuneCheck(**dict(losses), reason=reason, session=session)


def with_answer(report: TuneReport) -> TuneReport:
    """Return the report with its answer: first which values fit, then the best trial."""
    sentences = [_fit(report), _best(report)]
    if report.check:
        sentences.append(f"Run beside the baseline, {report.check.reason}")
        sentences.append(_advice(report))
    return report.model_copy(
        update={"answer": " ".join(f"{sentence}." for sentence in sentences if sentence)}
    )


def _fit(report: TuneReport) -> str:
    """Return a sentence, without full stop, on the trials that ran out of memory."""
    oom = [trial for trial in report.trials if trial.outcome == "out of memory"]
    if report.baseline.outcome == "out of memory":
        return (
            "First fit: the baseline itself runs out of memory; `accel-bench fit` finds what does"
        )
    if not oom:
        return "First fit: no trial ran out of memory"
    smallest = min(
        oom, key=lambda trial: [place(trial.parameters.get(key)) for key in GROWS_WITH_MEMORY]
    )
    return (
        f"First fit: {len(oom)} of {count(len(report.trials), 'trial')} ran out of memory, such as "
        f"{settings(smallest.parameters)}"
    )


def _best(report: TuneReport) -> str:
    goal = "fast" if report.objective.is_speed else "good"
    base, best = report.baseline, report.best
    if best is None:
        why = next((trial.reason for trial in (base, *report.trials) if trial.reason), "")
        return f"Then {goal}: no trial counts; the first reason is: {why}"
    named = settings(best.parameters) or "the baseline"
    value, before = (
        f"none ({trial.reason})" if trial.value is None else report.objective.text(trial.value)
        for trial in (best, base)
    )
    end = "" if report.check else ": nothing tried is better than it"
    return (
        f"Then {goal}: the best {report.objective.words} has {named} with {value} in one run; the "
        f"baseline has {before}{end}"
    )


def _advice(report: TuneReport) -> str:
    assert report.check and report.best
    if report.check.wins:
        return f"Use {_use(report, report.best.parameters)}"
    return "So keep the baseline, or settle it with more --check-rounds"


def _use(report: TuneReport, parameters: Mapping[str, JsonValue]) -> str:
    """Return instructions for using a trial's values: options, and YAML for the stack's keys."""
    own = {key: value for key, value in parameters.items() if key in report.stack_sets}
    changed = {key: value for key, value in parameters.items() if key not in own}
    parts = [shlex.join(assignments(changed))] if changed else []
    entry = ", ".join(f"{key}: {json.dumps(value)}" for key, value in own.items())
    parts += [f"`set: {{{entry}}}` in the stack {report.stack} of the scenario"] if own else []
    return ", and ".join(parts)
