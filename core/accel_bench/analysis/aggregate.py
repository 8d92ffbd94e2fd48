"""How an experiment ended, which of its runs count, and the numbers of the completed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar, cast

from accel_bench.analysis.checks.audit import audit, disowning, marked_degraded
from accel_bench.analysis.checks.gradients import gradient_reasons
from accel_bench.analysis.checks.noise import concerns_work
from accel_bench.analysis.metrics.offered_load import (
    OfferedLoad,
    compared_seconds,
    is_saturated,
    largest_metric,
    load_obstacle,
    offered_rate,
)
from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.analysis.quantity import Quantity, compared_quantity, quantity_obstacle
from accel_bench.analysis.statistics.estimators import (
    Interval,
    geometric_interval,
)
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.too_large import too_large
from accel_bench.analysis.wording import join_names, label_of
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import RankResult, Result, Status
from accel_bench.scenario.experiment import Experiment

RUN_FACTS = tuple(
    "run_id session experiment round position attempt replaces status reasons started_at seconds "
    "metrics machine nodes provenance".split()
)
RANK_FACTS = ("rank", "status", "device", "metrics", "evidence")
"""Fields of a run and of its ranks from which tables of experiments are made."""

SEED_KEYS = ("train.seed", "data.seed")
"""Swept keys that make repetitions of the same experiment, not others."""

ALIKE = ("experiment", "machine", "nodes", "provenance")
"""Fields that most runs of an experiment share."""

NOTHING_KNOWN: Mapping[str, RunThroughput] = {}

ModelT = TypeVar("ModelT", bound=Frozen)


class PlannedSummary(Frozen):
    """Planned experiment, with the reasons for skipping it."""

    experiment: Experiment
    """The experiment as it was planned."""

    skipped: tuple[str, ...] = ()
    """Reasons for leaving it out; empty when it is run."""


class StopReason(NamedTuple):
    """How an experiment ended, or what ended a session before its time."""

    status: Status
    reasons: tuple[str, ...] = ()
    """Why it is not `ok`; each once."""


BY_THE_USER = StopReason(Status.INTERRUPTED, ("it was planned and never run",))
"""What ends a session early when nothing else has."""


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment with the runs that count."""

    planned: PlannedSummary
    ending: StopReason
    counted: Mapping[RoundKey, Result]
    """Runs that count, however they ended."""

    completed: Mapping[RoundKey, Result]
    """Runs of `counted` whose numbers may be used: none when any is invalid."""

    speeds: Mapping[RoundKey, RunThroughput]
    """What the completed ones measured."""

    quantity: Quantity = field(default_factory=Quantity)
    """Compared quantity, with its values by round."""

    disowned: tuple[str, ...] = ()
    """Invariants that completed runs break: no verdict rests on figures that contradict them."""

    imported: str = ""
    """Why no figure of it is used, where its runs were imported; empty where they were measured."""

    repeated: frozenset[int] = frozenset()
    """Rounds that were measured again, whatever became of that."""

    gradient_reasons: tuple[str, ...] = ()
    """Differences of the gradients of its first step from the baseline's."""

    dropped: str = ""
    """Why it ran no more rounds in a race; empty where it ran all of them."""

    apart: Mapping[str, JsonValue] = field(default_factory=dict)
    """Settings that tell it apart from others whose stack and sweep point are called the same."""

    @property
    def name(self) -> str:
        """The stack's name, with its sweep point and the settings that tell it apart."""
        return label_of(self.planned.experiment, self.apart)

    @property
    def usable(self) -> bool:
        """True if it may be compared with others."""
        return self.ending.status.completed and bool(self.speeds) and not self.disowned

    @property
    def other_work(self) -> tuple[str, ...]:
        """Reasons for `degraded` of completed runs that concern what was computed, each once."""
        stored = (reason for run in self.completed.values() for reason in run.reasons)
        return tuple(dict.fromkeys([*filter(concerns_work, stored), *self.gradient_reasons]))

    @property
    def how_it_ended(self) -> str:
        """The ending as a verb, for the reason why there is no figure."""
        if self.imported:
            return self.imported
        status = self.ending.status
        if status.completed and self.disowned:
            return f"is disowned by its self-audit ({join_names(self.disowned, 1)})"
        return "was skipped" if status is Status.SKIPPED else f"ended as {status.value}"

    @property
    def compared_seconds(self) -> dict[RoundKey, float]:
        """Seconds per real token of every completed run or, where requests arrive at a rate, the
        latency of the median request."""
        found = (
            (key, compared_seconds(self.completed[key], one)) for key, one in self.speeds.items()
        )
        return {key: seconds for key, seconds in found if seconds is not None}

    def not_comparable_with(self, other: ExperimentRuns) -> str:
        """Return why the two quantities, or loads of requests, are not compared; empty if they
        are."""
        by_load = load_obstacle(other.load, self.load)
        return by_load or quantity_obstacle(other.quantity, self.quantity)

    @property
    def rate(self) -> float | None:
        """Requests that arrived per second; None where they arrived at no rate."""
        return offered_rate(self.planned.experiment.scenario)

    @property
    def saturated(self) -> bool:
        """True if requests piled up in a completed run."""
        return any(map(is_saturated, self.completed.values()))

    @property
    def load(self) -> OfferedLoad:
        """What decides whether its latencies may be compared."""
        return OfferedLoad(self.name, self.rate, self.saturated)

    def largest(self, metric: str) -> float | None:
        """Return the largest value over runs of a metric of the engine; None where one lacks it."""
        found = [largest_metric(run, metric) for run in self.completed.values()]
        known = [value for value in found if value is not None]
        return max(known) if known and len(known) == len(found) else None

    @cached_property
    def tokens_per_second(self) -> Interval | None:
        """Real tokens per second, global, over runs."""
        return geometric_interval([speed.tokens_per_second for speed in self.speeds.values()])

    @property
    def middle(self) -> Result | None:
        """The completed run of median speed, the slower of two."""
        keys = sorted(self.speeds, key=lambda key: self.speeds[key].tokens_per_second)
        return self.completed[keys[(len(keys) - 1) // 2]] if keys else None

    @property
    def last(self) -> Result | None:
        """The last completed run."""
        return list(self.completed.values())[-1] if self.completed else None

    def for_tables(self, whole: Callable[[Result], Result] = lambda run: run) -> ExperimentRuns:
        """Return the same with a tenth of the memory: tables need nothing but RUN_FACTS and the
        speeds of runs, and all that is stored of `middle` and `last`, which `whole` returns."""
        kept = {id(run) for run in (self.middle, self.last)}
        first = next(iter(self.counted.values()), None)
        runs = {
            key: whole(run) if id(run) in kept or first is None else _of_tables(run, first)
            for key, run in self.counted.items()
        }
        tokens = {one.step_tokens: one.step_tokens for one in self.speeds.values()}
        return replace(
            self,
            counted=runs,
            completed={key: runs[key] for key in self.completed},
            speeds={
                k: replace(v, step_tokens=tokens[v.step_tokens]) for k, v in self.speeds.items()
            },
        )


def collect_runs(
    planned: PlannedSummary,
    results: Sequence[Result],
    rounds: int,
    stopped: StopReason = BY_THE_USER,
    known: Mapping[str, RunThroughput] = NOTHING_KNOWN,
) -> ExperimentRuns:
    """Select the experiment's runs from all results and return how it ended.

    Stacks that do the same have the same identity, so the stack's name must agree too. A skipped
    experiment has no runs, whatever an earlier session left. Runs whose figures disagree with one
    another are degraded, also those that were stored long ago; `known` are the speeds of runs that
    have passed the self-audit, by id: these are not audited again, and may lack their samples.
    """
    experiment = planned.experiment
    later = (run for run in results if run.replaces)
    replaced = replaced_rounds(run for run in later if run.experiment.point == experiment.point)
    own = [
        result
        for result in results
        if not planned.skipped
        and (result.session, result.round) not in replaced
        and result.experiment.id == experiment.id
        and result.experiment.stack.name == experiment.stack.name
    ]
    rows = counted_runs(own)
    broken = {key: [] if run.run_id in known else audit(run) for key, run in rows.items()}
    counted = {key: marked_degraded(run, broken[key]) for key, run in rows.items()}
    end = ending(planned, list(counted.values()), rounds, stopped)
    if not counted and not planned.skipped:
        last = {(run.experiment.id, run.session, run.round): run for run in results}
        failed = (run.experiment for run in last.values() if run.status is Status.OOM)
        if reason := too_large(experiment, failed):
            end = StopReason(Status.SKIPPED, (reason,))
    valid = end.status is not Status.INVALID
    imported = _imported(counted.values())
    if imported:
        end = StopReason(end.status, (*end.reasons, f"it {imported}"))
    elif exported := _exported(counted.values()):
        end = StopReason(end.status, (*end.reasons, exported))
    completed = {
        key: run
        for key, run in counted.items()
        if valid and run.status.completed and not run.imported
    }
    found = {key: known.get(run.run_id) or run_throughput(run) for key, run in completed.items()}
    speeds = {key: speed for key, speed in found.items() if speed}
    disowned = dict.fromkeys(
        words for key, run in completed.items() for words in disowning(run, broken[key])
    )
    again = frozenset(number for _, number in replaced)
    return ExperimentRuns(
        planned,
        end,
        counted,
        completed,
        speeds,
        compared_quantity(experiment.scenario, completed, speeds),
        tuple(disowned),
        imported,
        again,
    )


def collect_experiments(results: Sequence[Result]) -> list[ExperimentRuns]:
    """Return every experiment among results, in their order; all of its stored rounds count."""
    again = [result for result in results if result.replaces]
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        key = (result.experiment.id, result.experiment.stack.name)
        groups.setdefault(key, []).append(result)
    return [collect_experiment(runs, again) for runs in groups.values()]


def collect_experiment(
    runs: Sequence[Result],
    again: Sequence[Result],
    known: Mapping[str, RunThroughput] = NOTHING_KNOWN,
) -> ExperimentRuns:
    """Return an experiment with all of its stored rounds.

    `again` are runs of any experiment that measured a round a second time, `known` as for
    `collect_runs`.
    """
    first = min(runs, key=lambda run: (run.started_at, run.run_id))
    planned = PlannedSummary(experiment=first.experiment)
    return collect_runs(planned, [*runs, *again], rounds=0, known=known)


def _of_tables(run: Result, first: Result) -> Result:
    """Return what tables show of a run beside its speed; parts like those of the first are its."""
    ranks = tuple(_with_fields(RankResult, rank, RANK_FACTS) for rank in run.ranks)
    known, own = vars(first), vars(run)
    alike = {name: known[name] for name in ALIKE if own[name] == known[name]}
    return _with_fields(Result, run, RUN_FACTS, **alike, ranks=ranks)


def _with_fields(model: type[ModelT], one: ModelT, names: Sequence[str], **others: Any) -> ModelT:
    """Return a model with these fields of another one; all further ones have their defaults."""
    made: Any = copy(_blank(model))
    vars(made).update({name: getattr(one, name) for name in names}, **others)
    return cast(ModelT, made)


@cache
def _blank(model: type[Frozen]) -> Frozen:
    """Return a model of defaults: to copy one is faster than to make one."""
    return model.model_construct(set())


def _imported(runs: Iterable[Result]) -> str:
    """Return that runs were imported, from where and with which speed; empty where none was."""
    run = next((run for run in runs if run.imported), None)
    if run is None:
        return ""
    speeds = (one for one in run.metrics if one.name == "tokens_per_second" and one.value)
    speed = next((f", which states {one.value:,.6g} tokens/s" for one in speeds), "")
    origin = run.provenance
    return f"was imported from {origin.file} ({origin.format}){speed}: it was not measured here"


def _exported(runs: Iterable[Result]) -> str:
    """Return that runs came with an export of another store; empty where none did."""
    files = (run.provenance.file for run in runs if run.provenance.origin == "exported")
    file = next(files, None)
    return "" if file is None else f"it came with the export {file}: it was not measured here"


def replaced_rounds(results: Iterable[Result]) -> set[RoundKey]:
    """Return the rounds of one sweep point that a later session has measured again."""
    return {(run.replaces, run.round) for run in results if run.replaces}


def counted_runs(results: Iterable[Result]) -> dict[RoundKey, Result]:
    """Return the runs of one experiment that count, by session and round, oldest session first.

    Of the attempts of a run only the last counts. A run that failed does not count either when a
    later session ran its round again, since that is how a run is resumed.
    """
    last: dict[RoundKey, Result] = {}
    for result in sorted(results, key=lambda result: (result.started_at, result.attempt)):
        key = (result.session, result.round)
        if key not in last or result.attempt >= last[key].attempt:
            last[key] = result
    sessions = list(dict.fromkeys(session for session, _ in last))
    latest = {key[1]: max(sessions.index(s) for s, r in last if r == key[1]) for key in last}
    kept = {
        key: result
        for key, result in last.items()
        if result.status.completed or sessions.index(key[0]) == latest[key[1]]
    }
    return dict(sorted(kept.items(), key=lambda item: (sessions.index(item[0][0]), item[0][1])))


def ending(
    planned: PlannedSummary,
    counted: Sequence[Result],
    rounds: int,
    stopped: StopReason = BY_THE_USER,
) -> StopReason:
    """Apply the rule: all ok is ok, half completed is degraded, one invalid run spoils all.

    `stopped` is how an experiment ended whose runs were never made, or not to the end.
    """
    if not counted:
        return StopReason(Status.SKIPPED, planned.skipped) if planned.skipped else stopped
    statuses = [result.status for result in counted]
    reasons = tuple(dict.fromkeys(reason for result in counted for reason in result.reasons))
    if Status.INVALID in statuses:
        return StopReason(Status.INVALID, reasons)
    planned_runs = max(rounds, len(counted))
    completed = sum(status.completed for status in statuses)
    failures = Counter(status for status in statuses if not status.completed).most_common()
    if completed < planned_runs:
        listed = ", ".join(f"{status.value} {count}" for status, count in failures)
        listed = f": {listed}" if listed else ""
        reasons = (*reasons, f"{completed} of {planned_runs} runs completed{listed}")
    if 2 * completed < planned_runs:
        return StopReason(failures[0][0] if failures else stopped.status, reasons)
    if completed == planned_runs and set(statuses) == {Status.OK}:
        return StopReason(Status.OK)
    return StopReason(Status.DEGRADED, reasons)


def beside_baseline(row: ExperimentRuns, base: ExperimentRuns) -> ExperimentRuns:
    """Return the row, degraded where its first step did not have the baseline's gradients."""
    reasons = gradient_reasons(base.completed, row.completed)
    if not reasons:
        return row
    ending = StopReason(Status.DEGRADED, (*row.ending.reasons, *reasons))
    return replace(row, ending=ending, gradient_reasons=reasons)


def by_point(rows: Iterable[ExperimentRuns]) -> list[list[ExperimentRuns]]:
    """Return the rows of each sweep point together, in their order."""
    points: dict[str, list[ExperimentRuns]] = {}
    for row in rows:
        points.setdefault(row.planned.experiment.point, []).append(row)
    return list(points.values())


def obstacle(row: ExperimentRuns, base: ExperimentRuns, called: str) -> str:
    """Return why a row is not compared with another one, `called` so; empty where it may be."""
    if not row.usable:
        return row.how_it_ended
    if row is base:
        return f"this is {called}"
    return "" if base.usable else f"{called} {base.how_it_ended}"


def shared_steps(rows: Sequence[ExperimentRuns]) -> int:
    """Return how many steps every completed run of these rows took, warm-up included."""
    counts = [len(speed.losses) for row in rows for speed in row.speeds.values()]
    return min(counts, default=0)
