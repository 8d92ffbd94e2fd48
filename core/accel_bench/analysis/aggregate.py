"""Aggregation of an experiment's stored runs: their selection, figures and final status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar, cast

from accel_bench.analysis.checks.audit import audit, audit_failures, marked_degraded
from accel_bench.analysis.checks.gradients import gradient_reasons
from accel_bench.analysis.checks.noise import concerns_work
from accel_bench.analysis.metrics.offered_load import (
    OfferedLoad,
    compared_seconds,
    is_saturated,
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
"""Fields of a run (RUN_FACTS) and of its ranks (RANK_FACTS) that tables of experiments need."""

SEED_KEYS = ("train.seed", "data.seed")
"""Keys of seeds: experiments that differ in these alone are repetitions of one another."""

ALIKE = ("experiment", "machine", "nodes", "provenance")
"""Fields of a result that most runs of an experiment share."""

NOTHING_KNOWN: Mapping[str, RunThroughput] = {}

ModelT = TypeVar("ModelT", bound=Frozen)


class PlannedSummary(Frozen):
    """Planned experiment, with the reasons for skipping it."""

    experiment: Experiment
    """The experiment as it was planned."""

    skipped: tuple[str, ...] = ()
    """Reasons for skipping the experiment; empty if it is run."""


class StopReason(NamedTuple):
    """Final status of an experiment or of an interrupted session, with its reasons."""

    status: Status
    reasons: tuple[str, ...] = ()
    """Reasons for a status other than `ok`, without duplicates."""


BY_THE_USER = StopReason(Status.INTERRUPTED, ("it was planned and never run",))
"""Default status of an experiment that was planned and never run."""


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment with its selected runs, their figures and its final status."""

    planned: PlannedSummary
    ending: StopReason
    counted: Mapping[RoundKey, Result]
    """Selected runs by session and round: the last attempt of each, whatever its status."""

    completed: Mapping[RoundKey, Result]
    """Completed runs of `counted`; empty if any run is invalid."""

    speeds: Mapping[RoundKey, RunThroughput]
    """Throughput of each completed run that has one."""

    quantity: Quantity = field(default_factory=Quantity)
    """Compared quantity, with its values by round."""

    failed_audit: tuple[str, ...] = ()
    """Violated invariants of the self-audit in completed runs, which forbid a verdict on them."""

    imported: str = ""
    """Reason why imported runs are ignored; empty for measured runs."""

    repeated: frozenset[int] = frozenset()
    """Rounds that a later session has measured again."""

    gradient_reasons: tuple[str, ...] = ()
    """Differences between the experiment's first gradients and the baseline's."""

    dropped: str = ""
    """Reason why a race dropped the stack before its last round; empty if it did not."""

    apart: Mapping[str, JsonValue] = field(default_factory=dict)
    """Settings that distinguish the experiment from others with the same stack and sweep point."""

    @property
    def name(self) -> str:
        """Label of the experiment: stack, sweep point, and the settings in `apart`."""
        return label_of(self.planned.experiment, self.apart)

    @property
    def usable(self) -> bool:
        """True if the experiment completed with figures that passed the self-audit."""
        return self.ending.status.completed and bool(self.speeds) and not self.failed_audit

    @property
    def other_work(self) -> tuple[str, ...]:
        """Reasons for `degraded` in what was computed, such as other gradients; no duplicates."""
        stored = (reason for run in self.completed.values() for reason in run.reasons)
        return tuple(dict.fromkeys([*filter(concerns_work, stored), *self.gradient_reasons]))

    @property
    def how_it_ended(self) -> str:
        """Verb phrase that says why the experiment cannot be compared, such as `was skipped`."""
        if self.imported:
            return self.imported
        status = self.ending.status
        if status.completed and self.failed_audit:
            return f"failed its self-audit ({join_names(self.failed_audit, 1)})"
        return "was skipped" if status is Status.SKIPPED else f"ended as {status.value}"

    @property
    def compared_seconds(self) -> dict[RoundKey, float]:
        """Seconds per real token by round; median latency instead, if requests arrive at a rate."""
        pairs = (
            (key, compared_seconds(self.completed[key], speed))
            for key, speed in self.speeds.items()
        )
        return {key: seconds for key, seconds in pairs if seconds is not None}

    def not_comparable_with(self, other: ExperimentRuns) -> str:
        """Return the reason why the quantity or the request load of this experiment and `other`
        cannot be compared, or an empty text."""
        by_load = load_obstacle(other.load, self.load)
        return by_load or quantity_obstacle(other.quantity, self.quantity)

    @property
    def rate(self) -> float | None:
        """Requests that arrive per second; None without an arrival rate."""
        return offered_rate(self.planned.experiment.scenario)

    @property
    def saturated(self) -> bool:
        """True if requests arrived faster than a completed run answered them."""
        return any(map(is_saturated, self.completed.values()))

    @property
    def load(self) -> OfferedLoad:
        """Offered load of the experiment, which decides whether latencies are comparable."""
        return OfferedLoad(self.name, self.rate, self.saturated)

    @cached_property
    def tokens_per_second(self) -> Interval | None:
        """Real tokens per second of all devices, with a 95 % interval over runs."""
        return geometric_interval([speed.tokens_per_second for speed in self.speeds.values()])

    @property
    def middle(self) -> Result | None:
        """Completed run of median speed, or the slower of two middle runs; None without runs."""
        keys = sorted(self.speeds, key=lambda key: self.speeds[key].tokens_per_second)
        return self.completed[keys[(len(keys) - 1) // 2]] if keys else None

    @property
    def last(self) -> Result | None:
        """Last completed run; None without completed runs."""
        return list(self.completed.values())[-1] if self.completed else None

    def for_tables(self, whole: Callable[[Result], Result] = lambda run: run) -> ExperimentRuns:
        """Return a copy for tables, in a tenth of the memory: runs keep only the fields RUN_FACTS,
        and ranks only RANK_FACTS. The runs `middle` and `last` keep all fields: each is replaced by
        what `whole` returns for it."""
        kept = {id(run) for run in (self.middle, self.last)}
        first = next(iter(self.counted.values()), None)
        runs = {
            key: whole(run) if id(run) in kept or first is None else _of_tables(run, first)
            for key, run in self.counted.items()
        }
        tokens = {speed.step_tokens: speed.step_tokens for speed in self.speeds.values()}
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
    """Select an experiment's runs from all results, and return them with its final status.

    Runs match by the experiment's id and by the stack's name, since equal stacks share an id. A
    skipped experiment has no runs. Runs that violate an invariant of the self-audit are marked
    degraded. `known` has the speeds, by run id, of runs that have passed the audit: these are not
    audited again, and may lack their samples. `rounds` is the planned number of rounds, `stopped`
    the experiment's status if its runs are missing.
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
    rates = {key: known.get(run.run_id) or run_throughput(run) for key, run in completed.items()}
    speeds = {key: speed for key, speed in rates.items() if speed}
    failed_audit = dict.fromkeys(
        words for key, run in completed.items() for words in audit_failures(run, broken[key])
    )
    again = frozenset(number for _, number in replaced)
    return ExperimentRuns(
        planned,
        end,
        counted,
        completed,
        speeds,
        compared_quantity(experiment.scenario, completed, speeds),
        tuple(failed_audit),
        imported,
        again,
    )


def collect_experiments(results: Sequence[Result]) -> list[ExperimentRuns]:
    """Return the experiments of all results in order of appearance, each with all stored rounds."""
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
    """Return the experiment that `runs` belong to, with all stored rounds. `again` are runs of any
    experiment that repeat an earlier round; `known` is as in `collect_runs`."""
    first = min(runs, key=lambda run: (run.started_at, run.run_id))
    planned = PlannedSummary(experiment=first.experiment)
    return collect_runs(planned, [*runs, *again], rounds=0, known=known)


def _of_tables(run: Result, first: Result) -> Result:
    """Return `run` with only the fields that tables use. Values equal to those of the run `first`
    are the same objects, to save memory."""
    ranks = tuple(_with_fields(RankResult, rank, RANK_FACTS) for rank in run.ranks)
    known, own = vars(first), vars(run)
    alike = {name: known[name] for name in ALIKE if own[name] == known[name]}
    return _with_fields(Result, run, RUN_FACTS, **alike, ranks=ranks)


def _with_fields(model: type[ModelT], old: ModelT, names: Sequence[str], **others: Any) -> ModelT:
    """Return a new `model` with the fields `names` of `old` and the fields `others`; all other
    fields have their defaults."""
    made: Any = copy(_blank(model))
    vars(made).update({name: getattr(old, name) for name in names}, **others)
    return cast(ModelT, made)


@cache
def _blank(model: type[Frozen]) -> Frozen:
    """Return an instance with default values. Copying it is faster than constructing another."""
    return model.model_construct(set())


def _imported(runs: Iterable[Result]) -> str:
    """Return why the first imported run is ignored, with its file and speed; empty without one."""
    run = next((run for run in runs if run.imported), None)
    if run is None:
        return ""
    speeds = (speed for speed in run.metrics if speed.name == "tokens_per_second" and speed.value)
    speed = next((f", which states {speed.value:,.6g} tokens/s" for speed in speeds), "")
    origin = run.provenance
    return f"was imported from {origin.file} ({origin.format}){speed}: it was not measured here"


def _exported(runs: Iterable[Result]) -> str:
    files = (run.provenance.file for run in runs if run.provenance.origin == "exported")
    file = next(files, None)
    return "" if file is None else f"it came with the export {file}: it was not measured here"


def replaced_rounds(results: Iterable[Result]) -> set[RoundKey]:
    """Return the session and round of each run that one of `results` replaces."""
    return {(run.replaces, run.round) for run in results if run.replaces}


def counted_runs(results: Iterable[Result]) -> dict[RoundKey, Result]:
    """Return the selected runs of an experiment by session and round, oldest session first.

    Only the last attempt of a run is selected. A failed run is left out if a later session ran its
    round again, as `--resume` does.
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
    """Return the final status of an experiment from its selected runs, `counted`.

    The status is `invalid` if one run is invalid, `ok` if all of the planned `rounds` ended `ok`,
    and `degraded` if at least half of them completed. Otherwise it is the most frequent failure or,
    if runs are missing and none failed, `stopped`.
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
    """Return `row`, marked `degraded` if its first gradients differ from the baseline's, `base`."""
    reasons = gradient_reasons(base.completed, row.completed)
    if not reasons:
        return row
    ending = StopReason(Status.DEGRADED, (*row.ending.reasons, *reasons))
    return replace(row, ending=ending, gradient_reasons=reasons)


def by_point(rows: Iterable[ExperimentRuns]) -> list[list[ExperimentRuns]]:
    """Group experiments by sweep point, in order of appearance."""
    points: dict[str, list[ExperimentRuns]] = {}
    for row in rows:
        points.setdefault(row.planned.experiment.point, []).append(row)
    return list(points.values())


def obstacle(row: ExperimentRuns, base: ExperimentRuns, called: str) -> str:
    """Return why `row` cannot be compared with `base`; empty if it can. `called` names `base`."""
    if not row.usable:
        return row.how_it_ended
    if row is base:
        return f"this is {called}"
    return "" if base.usable else f"{called} {base.how_it_ended}"


def shared_steps(rows: Sequence[ExperimentRuns]) -> int:
    """Return the number of steps, warm-up included, that all completed runs have taken."""
    counts = [len(speed.losses) for row in rows for speed in row.speeds.values()]
    return min(counts, default=0)
