"""Document and tables of `accel-bench tune`: trials, winner, and the winner's check."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias

from accel_bench.analysis.learning.curves import Reached
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.analysis.wording import (
    count,
    grouped_by_reason,
    milliseconds,
    plain_value,
    rate,
    significant,
    size,
)
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.report.table import Column, Report, Section, Table, columns_of, reader
from accel_bench.result import Status

Goal: TypeAlias = Literal["tokens_per_second", "request_seconds", "loss"]
"""Goal of tuning; `request_seconds` is the median request latency."""

Unit: TypeAlias = Literal["seconds", "dollars", "tokens"]
"""Unit of the training budget after which the loss is read."""

TrialOutcome: TypeAlias = Literal["ok", "infeasible", "out of memory", "failed", "not run"]
"""Outcome of a trial; an `infeasible` trial ran and violates a constraint."""


class Objective(Frozen):
    """Goal, training budget and memory limit by which trials are judged."""

    goal: Goal
    """Goal: speed at an equivalent loss, latency with equal answers (requests at a rate), or
    the loss itself."""

    unit: Unit | None = None
    """Unit of `amount`; null for speed."""

    amount: float | None = None
    """Training budget after which the loss is read; null for speed."""

    usd_per_hour: float | None = None
    """Dollars per hour of all machines, if `unit` is dollars."""

    memory_below_bytes: int | None = None
    """Upper bound of a device's peak memory in bytes; null without one."""

    @property
    def seconds(self) -> float | None:
        """Training seconds after which the loss is read; None for a budget of tokens, or speed."""
        if self.unit == "dollars" and self.usd_per_hour and self.amount:
            return self.amount / self.usd_per_hour * 3600
        return self.amount if self.unit == "seconds" else None

    @property
    def limit(self) -> float:
        """Tokens or seconds after which the loss is read."""
        limit = self.amount if self.unit == "tokens" else self.seconds
        assert limit is not None
        return limit

    def used(self, point: Reached) -> float:
        """Return the tokens or seconds that a run had used at a point of its training curve."""
        return point.tokens if self.unit == "tokens" else point.seconds

    @property
    def words(self) -> str:
        """Description of the objective, such as `loss at 60 seconds`."""
        if self.goal == "loss":
            return f"loss at {self.amount:g} {self.unit}"
        if self.goal == "request_seconds":
            return "latency of the median request"
        return "tokens/s with an equivalent loss"

    @property
    def better(self) -> int:
        """1 if larger values of the objective are better, -1 if smaller values are."""
        return 1 if self.goal == "tokens_per_second" else -1

    def text(self, value: float) -> str:
        """Return a value of the objective as text with its unit."""
        if self.goal == "request_seconds":
            return f"{milliseconds(value)} ms"
        return f"{rate(value)} tokens/s" if self.better > 0 else significant(value, 4)

    @property
    def is_speed(self) -> bool:
        """True if the goal is speed, for which only trainings equivalent to the baseline count."""
        return self.goal != "loss"


class TuneTrial(Frozen):
    """A trial: one set of values, its run and its outcome."""

    number: int | None
    """Number of the trial in the study; null for the baseline."""

    parameters: dict[str, JsonValue]
    """Values by key; empty for the baseline."""

    outcome: TrialOutcome
    """Outcome of the trial."""

    value: float | None = None
    """Value of the objective; null if it has none."""

    reason: str = ""
    """Reason for a missing or excluded value."""

    status: Status | None = None
    """Status of the trial's run; null if it was not run."""

    run_id: str = ""
    """Id of the trial's stored run; empty if it was not run."""

    tokens_per_second: float | None = None
    """Real tokens per second of all devices, from one run without interval."""

    peak_memory_bytes: int | None = None
    """Largest peak memory of a rank, per device."""

    last_loss: float | None = None
    """Loss at the end of the trial's run, possibly after the point of the objective."""


class TuneCheck(Comparison):
    """Comparison of the winner with the baseline by new runs of both.

    The ratio is the winner's speed (or loss, over seeds) divided by that of the baseline.
    """

    reason: str
    """Result of the check in a sentence."""

    session: str
    """Session that ran both winner and baseline."""


class TuneReport(Document):
    """The JSON document of `accel-bench tune`."""

    scenario: str
    """Name of the scenario."""

    stack: str
    """Name of the tuned stack."""

    stack_sets: tuple[str, ...] = ()
    """Keys set by the stack itself, which `--set` does not change."""

    study: str
    """Name of the study in the results database."""

    objective: Objective
    """Objective of the search."""

    baseline: TuneTrial
    """Trial of the unchanged stack."""

    trials: tuple[TuneTrial, ...] = ()
    """All trials of the study."""

    best: TuneTrial | None = None
    """The best trial that satisfies all constraints."""

    check: TuneCheck | None = None
    """Check of the best trial against the baseline; null if no trial is better than it."""

    answer: str = ""
    """Conclusion of the search in sentences."""

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if any trial satisfies all constraints, else 1."""
        return 0 if self.best else 1


def tune_view(report: TuneReport) -> Report:
    """Return a report with the answer, then a row for the baseline and for each trial."""
    rows = [report.baseline, *report.trials]
    reasons = [(_name(row), f"{row.outcome}: {row.reason}") for row in rows if row.reason]
    section = Section(
        title=report.scenario,
        headline=report.answer,
        tables=[Table(_columns(report), rows)],
        notes=[
            _counted(report),
            *grouped_by_reason(reasons),
            f"study {report.study}; the same command goes on with it, --trials N adds to it",
        ],
    )
    return Report([section], report, Table(FLAT, rows))


def _columns(report: TuneReport) -> list[Column]:
    keys = dict.fromkeys(key for row in report.trials for key in row.parameters)
    goal = report.objective.words
    form = milliseconds if report.objective.goal == "request_seconds" else _four_digits
    unit = f"{goal}, ms" if form is milliseconds else goal
    value = Column(goal, reader("value"), "objective", unit, form, "number")
    return [
        Column("trial", _name, kind="name"),
        *(_parameter(key) for key in keys),
        *([value] if report.objective.goal != "tokens_per_second" else []),
        Column("speed", reader("tokens_per_second"), "", "tokens/s", rate, "number"),
        Column("memory", reader("peak_memory_bytes"), "", "peak", size, "number", 1),
        Column("last loss", reader("last_loss"), form=_four_digits, kind="number", rank=2),
        Column("outcome", reader("outcome"), kind="word"),
    ]


def _parameter(key: str) -> Column:
    title = key.rpartition(".")[2].replace("_", " ")

    def cell(row: TuneTrial) -> object:
        return row.parameters.get(key)

    return Column(key, cell, title, form=_value, kind="name")


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else plain_value(value)  # type: ignore[arg-type]


def _four_digits(value: float) -> str:
    return significant(value, 4)


def _name(row: TuneTrial) -> str:
    return "baseline" if row.number is None else str(row.number)


def _counted(report: TuneReport) -> str:
    """Return the numbers of trials by outcome as text: `20 trials: 14 ok, 6 out of memory; …`."""
    counts = Counter(trial.outcome for trial in report.trials).most_common()
    listed = ", ".join(f"{number} {outcome}" for outcome, number in counts)
    return f"{count(len(report.trials), 'trial')}: {listed}; speeds are of one run each"


FLAT = columns_of(TuneTrial)
"""CSV columns of `tune`."""
