"""Candidates for a recommendation: a model's stored runs, with obstacles that exclude some."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from accel_bench.analysis.aggregate import ExperimentRuns, collect_experiments
from accel_bench.analysis.checks.comparability import NOT_COMPARABLE
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import training_obstacle
from accel_bench.analysis.compare import numbered
from accel_bench.analysis.device_kinds import DeviceKind, devices_of
from accel_bench.analysis.metrics.offered_load import (
    NO_LATENCY,
    largest_metric,
    rate_obstacle,
    saturation,
)
from accel_bench.analysis.quantity import QUANTITIES, compared_by, run_figures
from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.summary import summarize
from accel_bench.analysis.tables.experiment_keys import tell_apart
from accel_bench.analysis.wording import join_names
from accel_bench.documents.canonical import canonical_json
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.database import Store
from accel_bench.store.sessions import SessionRecord
from accel_bench_advise.recommendation.schema import CandidateOutcome

BATCH_LAYOUT = ("micro_batch_size", "gradient_accumulation", "gradient_checkpointing")
"""Settings of `train` that change how a step is computed, not the training's result."""

SERVING = ("batch_size", "cache", "assistant")
"""Settings of `inference` that change how requests are answered, not the requests."""

NOT_TRAINING = {
    *("name", "description", "metrics", "resources", "parallel", "launcher", "measure", "evaluate"),
}
"""Sections of a scenario that do not define the training."""

OTHER_TRAINING = "it trains something else"
UNCOMPARED = "its loss was compared with nothing: the baseline ran out of memory there"


@dataclass(frozen=True)
class Stored:
    """Stored runs of a model, with their sessions."""

    results: Sequence[Result] = ()
    sessions: Mapping[str, SessionRecord] = field(default_factory=dict)
    store: Store | None = None

    @property
    def baselines(self) -> dict[str, str]:
        """Names of the baselines by session id."""
        return {name: session.baseline for name, session in self.sessions.items()}


@dataclass(frozen=True)
class Candidate:
    """A stack at a sweep point on one kind of device."""

    device: DeviceKind
    training: str
    """Canonical JSON of the training's settings; equal for interchangeable candidates."""

    runs: ExperimentRuns
    row: ExperimentSummary
    is_baseline: bool
    obstacle: str = ""
    """Reason why the candidate may not be recommended; empty if it may."""

    lone: bool = False
    """True for a valid candidate whose baseline ran out of memory."""

    outcome: CandidateOutcome | None = None
    """Obstacle in a few words; None if the candidate may be recommended."""

    @property
    def name(self) -> str:
        """Name of the stack and the sweep point."""
        return self.runs.name

    @property
    def experiment(self) -> Experiment:
        """Experiment of the candidate's runs."""
        return self.runs.planned.experiment

    @property
    def size(self) -> int:
        """Number of plugins that the stack uses and settings that it changes."""
        stack = self.experiment.stack
        return len(stack.uses) + len(stack.settings)

    @property
    def start_seconds(self) -> dict[RoundKey, float]:
        """Seconds before the first step of usual duration, by the run's session and round."""
        starts = {key: start_of(run) for key, run in self.runs.completed.items()}
        return {key: seconds for key, seconds in starts.items() if seconds is not None}

    @property
    def tokens_per_step(self) -> float:
        """Median real tokens per step of all devices together."""
        counts = [
            speed.real_tokens / len(speed.step_seconds) for speed in self.runs.speeds.values()
        ]
        return median(counts)

    def trained_apart(self, why: str) -> Candidate:
        """Return a copy whose obstacle is `why`, a difference of the training; empty means none."""
        different = self.row.not_the_same or why == OTHER_TRAINING
        outcome: CandidateOutcome = "changes the training" if different else "training not compared"
        return replace(self, obstacle=why, outcome=outcome if why else None)

    def job_seconds(self, tokens: float | None) -> dict[RoundKey, float]:
        """Return each run's seconds for a job of `tokens` tokens; if None, its seconds per token.

        For requests that arrive at a rate, the values are median latencies in seconds.
        """
        each = self.runs.compared_seconds
        if tokens is None or self.runs.rate is not None:
            return each
        starts = self.start_seconds
        usual = median(starts.values()) if starts else 0.0
        return {key: starts.get(key, usual) + tokens * seconds for key, seconds in each.items()}


def collect_candidates(results: Sequence[Result], baselines: Mapping[str, str]) -> list[Candidate]:
    """Return a candidate for each stack and sweep point, compared with the baseline of its point.

    `baselines` are the names of the baselines by session id. Sessions with the same baseline
    experiment on one kind of device are compared together.
    """
    measured = [compared_by(result, None) for result in results if not result.imported]
    candidates = [
        candidate
        for (device, *_), block in _blocks(measured, baselines).items()
        for candidate in _candidates(device, block, baselines)
    ]
    named = []
    for device in dict.fromkeys(candidate.device for candidate in candidates):
        own = [candidate for candidate in candidates if candidate.device == device]
        runs = tell_apart([candidate.runs for candidate in own])
        named += [replace(candidate, runs=told) for candidate, told in zip(own, runs, strict=True)]
    return named


def training_of(experiment: Experiment) -> str:
    """Return the settings that define an experiment's training as canonical JSON."""
    work = experiment.scenario.model_dump(mode="json", exclude=NOT_TRAINING)
    sizes = {*BATCH_LAYOUT, *(["global_batch_size"] if experiment.scenario.generates else [])}
    work["train"] = {k: v for k, v in work["train"].items() if k not in sizes}
    work["inference"] = {k: v for k, v in work["inference"].items() if k not in SERVING}
    return canonical_json(work)


def start_of(run: Result) -> float | None:
    """Return a run's seconds of start-up before its measured window; None if they are not stored.

    Warm-up steps count as start-up only with the time by which they exceed a usual step.
    """
    starts = []
    for rank in run.ranks:
        reached = {stage.name: stage.seconds for stage in reversed(rank.stages)}
        if "warm-up" not in reached or rank.window is None:
            return None
        usual = median(sample.seconds for sample in rank.window.samples)
        start = reached["warm-up"] - usual * len(rank.window.warmup)
        if reached.get("evaluate", math.inf) < reached["warm-up"]:
            start -= reached["evaluate"] - reached["build_engine"]
        starts.append(max(0.0, start))
    return max(starts, default=None)


def _blocks(
    results: Sequence[Result], baselines: Mapping[str, str]
) -> dict[tuple[DeviceKind, str, str, str], list[Result]]:
    """Return the results, grouped by device, scenario, sweep point and baseline."""
    places = [
        # A gate's looks are sessions of one command.
        (
            device,
            result.experiment.scenario.name,
            result.experiment.point,
            result.session.partition(".")[0],
        )
        for result, device in zip(results, devices_of(results), strict=True)
    ]
    bases = {
        place: result.experiment.id
        for place, result in zip(places, results, strict=True)
        if result.experiment.stack.name == baselines.get(result.session)
    }
    blocks: dict[tuple[DeviceKind, str, str, str], list[Result]] = {}
    for place, result in zip(places, results, strict=True):
        device, scenario, point, command = place
        key = (device, scenario, point, bases.get(place, command))
        blocks.setdefault(key, []).append(result)
    return blocks


def _candidates(
    device: DeviceKind, block: Sequence[Result], baselines: Mapping[str, str]
) -> Iterator[Candidate]:
    names = [baselines.get(result.session) for result in block]
    baseline = next(filter(None, reversed(names)), "")
    every = collect_experiments(block)
    planned = [runs.planned for runs in every]
    summary = summarize(block[0].experiment.scenario.name, baseline, planned, block, rounds=0)
    base = next((runs for runs in every if runs.planned.experiment.stack.name == baseline), None)
    too_large = base is not None and base.ending.status is Status.OOM
    training = training_of((base or every[0]).planned.experiment)
    for runs, row in zip(every, summary.experiments, strict=True):
        is_baseline = row.stack == baseline
        lone = too_large and runs.usable and training_of(runs.planned.experiment) == training
        lone = lone and not row.other_work
        candidate = Candidate(device, training, runs, row, is_baseline, lone=lone)
        other_rate = rate_obstacle(base.load, runs.load) if base and runs.usable else ""
        yield _judged(candidate, UNCOMPARED if lone else other_rate)


def _judged(candidate: Candidate, apart: str) -> Candidate:
    """Return the candidate, with an obstacle if it may not be recommended at any speed.

    `apart` says why the candidate cannot be compared with its baseline; empty if it can.
    """
    runs, row = candidate.runs, candidate.row
    if runs.ending.status is Status.OOM:
        return replace(candidate, obstacle="it ran out of memory", outcome="does not fit")
    if not runs.usable:
        return replace(candidate, obstacle=f"it {runs.how_it_ended}", outcome="not usable")
    if apart or candidate.is_baseline:
        return candidate.trained_apart(apart)
    if row.verdict_reason.startswith(NOT_COMPARABLE):
        return candidate.trained_apart(row.verdict_reason)
    if (why := training_obstacle(row, row.verdict_reason)) or not row.other_work:
        return candidate.trained_apart(why)
    degraded = f"it is degraded: {join_names(row.other_work)}"
    return replace(candidate, obstacle=degraded, outcome="degraded")


def within_limits(candidate: Candidate, at_most: Mapping[str, float]) -> Candidate:
    """Return the candidate, with an obstacle if its requests pile up or a metric exceeds its limit.

    `at_most` maps names of metrics to their largest values.
    """
    if candidate.obstacle and not candidate.lone:
        return candidate
    runs = candidate.runs
    if runs.saturated:
        return replace(candidate, obstacle=saturation(runs.load), lone=False, outcome="saturated")
    if not runs.compared_seconds:
        return replace(candidate, obstacle=NO_LATENCY, lone=False, outcome="not usable")
    for metric, limit in at_most.items():
        value = largest(runs, metric)
        reason = f"its worst run has {value:,.4g}" if value is not None else "it was not measured"
        if value is None or value > limit:
            why = f"{metric} may be {limit:,.4g} at most: {reason}"
            return replace(candidate, obstacle=why, lone=False, outcome="over a limit")
    return candidate


def largest(runs: ExperimentRuns, metric: str) -> float | None:
    """Return the largest value over runs of an engine's metric or a figure such as
    `peak_memory_bytes`; None if a run lacks it."""
    values = [
        run_figures(run, runs.speeds.get(key))[metric]
        if metric in QUANTITIES
        else largest_metric(run, metric)
        for key, run in runs.completed.items()
    ]
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def same_training(base: Candidate, other: Candidate) -> str:
    """Return the reason why two candidates may train differently; empty if they do not."""
    if base.training != other.training:
        return OTHER_TRAINING
    runs = numbered(base.runs.completed), numbered(other.runs.completed)
    obstacle = training_obstacle(compare_training(*runs))
    return f"compared with {base.name}: {obstacle}" if obstacle else ""
