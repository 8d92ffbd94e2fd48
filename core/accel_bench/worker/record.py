"""Record of one rank: filled by core and plugins, checked, and turned into the rank's result."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from accel_bench.documents.canonical import unreadable_part
from accel_bench.effective import EffectiveConfiguration
from accel_bench.errors import HookError, InvalidRunError
from accel_bench.flops.workload import Workload
from accel_bench.machine.info import Device
from accel_bench.machine.scheduling import Scheduling
from accel_bench.plugins.active import (
    ActivePlugin,
    ActivePlugins,
    attribute_errors_to,
    refuse_unreadable,
    wrong_return_type,
)
from accel_bench.result import (
    Answers,
    Communication,
    LearningCurve,
    Metric,
    PhaseSplit,
    RankResult,
    Sample,
    Status,
    WeightUpdate,
    Window,
)
from accel_bench.run_context import Run
from accel_bench.scenario.environment import recorded
from accel_bench.worker import failure


@dataclass
class RankRecord:
    """Record of a rank's run so far, which is written however the run ends.

    Its fields are named like those of `RankResult`.
    """

    window: Window | None = None
    learning: LearningCurve | None = None
    steps_after: tuple[Sample, ...] = ()
    phases: PhaseSplit | None = None
    communication: Communication | None = None
    profiled_steps: int = 0
    checked_steps: int = 0
    observed_steps: int = 0
    workload: Workload | None = None
    workload_reason: str = ""
    metrics: list[Metric] = field(default_factory=list)
    effective: EffectiveConfiguration = field(default_factory=EffectiveConfiguration)
    scheduling: Scheduling | None = None
    update: WeightUpdate | None = None
    answers: Answers | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    degraded: list[str] = field(default_factory=list)
    device: Device | None = None
    environment: dict[str, str] = field(default_factory=lambda: recorded(os.environ))


def changed_at_import(active: ActivePlugins) -> list[str]:
    """Return a text on each plugin whose import changed environment variables, which was undone."""
    return [
        f"plugin {plugin.name!r} ({plugin.distribution}) changed {', '.join(plugin.set_at_import)} "
        "at its import, which was undone: let it do so in prepare_process, or set it in the "
        "scenario's `environment`, for all stacks"
        for plugin in active.plugins
        if plugin.set_at_import
    ]


def collect_metrics(active: ActivePlugins, run: Run, record: RankRecord, window: Window) -> None:
    """Record plugins' metrics on the measured window. Raises HookError if a value is no metric."""
    for plugin, hook, metrics in _measured(active, run, window):
        for metric in metrics:
            if not isinstance(metric, Metric):
                raise wrong_return_type(plugin, hook, "Metric objects", metric)
            refuse_unreadable(plugin, hook, metric.model_dump(), metric.name)
        record.metrics += (m.model_copy(update={"plugin": plugin.name}) for m in metrics)


def _measured(
    active: ActivePlugins, run: Run, window: Window
) -> Iterator[tuple[ActivePlugin, str, list[Any]]]:
    """Yield triples: a plugin, the name of its hook or callback, and the metrics from that."""
    for plugin, metrics in active.call_lists("finish_metrics", run=run, window=window):
        yield plugin, "finish_metrics", metrics
    for plugin, report in run.metric_callbacks:
        with attribute_errors_to(plugin, "on_metrics"), run.calling(plugin):
            metrics = list(report(window))
        yield plugin, "on_metrics", metrics


def collect_evidence(active: ActivePlugins, run: Run, record: RankRecord) -> None:
    """Record the evidence of every plugin: the JSON objects of its hook and its callbacks."""
    for plugin, hook, shown in _reports(active, run):
        if shown is None:
            continue
        if not isinstance(shown, dict):
            raise wrong_return_type(plugin, hook, "a dict", shown)
        try:
            plain = json.loads(json.dumps(shown, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"returned what is not JSON: {error}"
            raise HookError(plugin.name, plugin.distribution, hook, problem) from error
        refuse_unreadable(plugin, hook, plain)
        # A stack may use what a slot uses too, and only one of the two acts.
        record.evidence.setdefault(plugin.name, {}).update(plain)


def _reports(active: ActivePlugins, run: Run) -> Iterator[tuple[ActivePlugin, str, Any]]:
    """Yield triples: a plugin, the name of its hook or callback, and the evidence from that."""
    for plugin in active.plugins:
        yield plugin, "report_evidence", active.call_plugin(plugin, "report_evidence", run=run)
        for owner, report in run.evidence_callbacks:
            if owner is plugin:
                with attribute_errors_to(plugin, "on_evidence"), run.calling(plugin):
                    shown = report()
                yield plugin, "on_evidence", shown


def check_window(window: Window, generates: bool = False) -> None:
    """Raise InvalidRunError if a loss is not finite or no token was supervised. For a run that
    `generates` answers, raise it only if a step has generated no token."""
    steps = (*window.warmup, *window.samples)
    if generates:
        if not all(sample.real_tokens for sample in steps):
            raise InvalidRunError(["a step generated no token"])
        return
    reasons = []
    if any(sample.loss is None for sample in steps):
        first = next(sample.step for sample in steps if sample.loss is None)
        reasons.append(f"the loss of step {first} is not finite")
    if not any(sample.supervised_tokens for sample in steps):
        reasons.append("no token was supervised, so there was nothing to learn from")
    if reasons:
        raise InvalidRunError(reasons)


def rank_result(
    run: Run, record: RankRecord, error: BaseException | None, phase: str
) -> RankResult:
    """Return the rank's result from its record; `error` ended the run in `phase`, or is None."""
    ended = Status.DEGRADED if record.degraded else Status.OK
    known = {name: value for name, value in vars(record).items() if name in RankResult.model_fields}
    known["metrics"] = tuple(record.metrics)
    known["effective"] = record.effective.model_copy(update={"scheduling": record.scheduling})
    result = RankResult(
        rank=run.rank,
        status=ended if error is None else failure.status_of(error),
        reasons=tuple(record.degraded) if error is None else failure.reasons_of(error, phase),
        phase=phase,
        error=None if error is None else failure.failure_of(error, phase),
        stages=tuple(run.trace.stages),
        **known,
    )
    fault = unreadable_part(result.model_dump())
    return _without_measurements(result, fault) if fault else result


def _without_measurements(result: RankResult, fault: str) -> RankResult:
    """Return the result without its measurements, which cannot be stored; `fault` says why."""
    reasons = () if result.status.completed else result.reasons
    return RankResult(
        rank=result.rank,
        status=Status.INVALID if result.status.completed else result.status,
        reasons=(*reasons, f"what rank {result.rank} has measured cannot be stored: {fault}"),
        phase=result.phase,
        error=result.error,
    )
