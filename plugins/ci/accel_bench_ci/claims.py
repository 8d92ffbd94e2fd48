"""Claims about stacks, checked against stored runs.

A value and its 95 % interval are computed as in every comparison, from ratios over paired rounds. A
claim holds if the whole interval is within the claimed limits. It does not hold if the whole
interval is outside, and is inconclusive otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, TypeAlias

from pydantic import Field, model_validator

from accel_bench.analysis.aggregate import ExperimentRuns, PlannedSummary, collect_runs
from accel_bench.analysis.checks.comparability import comparability_of_rounds
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import training_obstacle
from accel_bench.analysis.metrics.offered_load import rate_obstacle, saturation
from accel_bench.analysis.quantity import OF_BUSY_TIME, SHORT_NAMES
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS, Finding, RoundKey
from accel_bench.analysis.wording import significant
from accel_bench.documents.base import Frozen
from accel_bench.documents.validate import LocatedError
from accel_bench.errors import StoreError, did_you_mean
from accel_bench.result import Result
from accel_bench_ci.figures import (
    METRICS,
    REQUEST_LATENCY,
    figure_interval,
    figure_named,
    figures_of,
)

ERROR_RATE = 0.025
"""Probability that the true value lies beyond one given end of a 95 % interval."""

Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


class Claim(Frozen):
    """Claim about a metric of a stack, as written in a file."""

    name: str = ""
    """Name of the claim; by default its description."""

    stack: str
    """Name of the stack that the claim is about."""

    baseline: str | None = None
    """Stack to divide by, in paired rounds. Without it, the claim is about the metric itself."""

    metric: str = "tokens_per_second"
    """Metric of the claim: a column, or `metrics.NAME`."""

    at_least: Number | None = None
    """Smallest claimed value."""

    at_most: Number | None = None
    """Largest claimed value."""

    between: tuple[Number, Number] | None = None
    """Smallest and largest claimed value."""

    where: str | None = None
    """Conditions on runs, as in `--where`."""

    same_training: bool = True
    """True to check a ratio only for a training equivalent to the baseline's."""

    @model_validator(mode="after")
    def _one_range(self) -> Claim:
        if (self.between is None) == (self.at_least is None and self.at_most is None):
            raise ValueError("a claim has at_least, at_most or both of them, or else between")
        low, high = self.limits
        if self.stack == self.baseline:
            raise LocatedError(("baseline",), f"{self.stack!r} cannot be compared with itself")
        if low is not None and high is not None and low > high:
            raise ValueError(f"nothing is at least {low:g} and at most {high:g}")
        return self

    @property
    def figure(self) -> str:
        """Full name of the metric, also if the claim uses its short name."""
        return SHORT_NAMES.get(self.metric, self.metric)

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """Smallest and largest claimed value; None for a missing limit."""
        return self.between or (self.at_least, self.at_most)

    @property
    def text(self) -> str:
        """Description of the claim in words."""
        low, high = self.limits
        over = f" over {self.baseline}" if self.baseline else ""
        ends = [f"at least {low:g}"] if low is not None else []
        ends += [f"at most {high:g}"] if high is not None else []
        return f"{self.metric} of {self.stack}{over} is {' and '.join(ends)}"


class ClaimsFile(Frozen):
    """Content of a file of claims, as `results claims` reads it."""

    claims: tuple[Claim, ...]
    """Claims in the order in which they are checked."""

    @model_validator(mode="after")
    def _some(self) -> ClaimsFile:
        if not self.claims:
            raise LocatedError(
                ("claims",), "there are no claims; write `- {stack: NAME, at_least: 1.2}`"
            )
        return self


class CheckedClaim(Frozen):
    """Result of checking a claim against stored runs."""

    claim: Claim
    text: str
    """Name or description of the claim."""

    verdict: Finding
    value: Interval | None
    """Measured value or ratio with a 95 % interval; null without runs."""

    reason: str
    """Reason for the verdict, in a sentence."""

    rounds: int
    """Number of runs, or paired rounds, behind the value."""

    evidence: tuple[str, ...]
    """Ids of the runs behind the value."""


class ClaimsReport(Document):
    """The JSON document of `accel-bench results claims`."""

    file: str
    claims: tuple[CheckedClaim, ...]
    exit_code: int
    """Exit code: 0 if all claims hold, 1 if one does not, 5 if one is inconclusive."""

    error_rate: float = ERROR_RATE
    """Maximum probability that a wrong claim gets the verdict `holds`."""


def report_of(file: str, checked: Sequence[CheckedClaim]) -> ClaimsReport:
    """Return the report on the checked claims of a file; their worst verdict decides its exit code.

    `file` is the file's name.
    """
    verdicts = Counter(claim.verdict for claim in checked)
    code = 1 if verdicts["does not hold"] else 5 if verdicts["inconclusive"] else 0
    return ClaimsReport(file=file, claims=tuple(checked), exit_code=code)


def check_claim(claim: Claim, results: Sequence[Result]) -> CheckedClaim:
    """Return the verdict on a claim with its reason, judged by the stored runs `results`."""
    names = [name for name in (claim.stack, claim.baseline) if name is not None]
    sides = [_newest(results, name) for name in names]
    unclear = _unclear(names, sides)
    rows = [] if unclear else [side[0] for side in sides]
    values = [_values(row, claim.figure) for row in rows]
    keys = [key for key in values[0] if all(key in by_round for by_round in values)] if rows else []
    value = None
    obstacle = unclear or next(_obstacles(claim, rows, values, keys), "")
    if not obstacle:
        base = values[1] if len(rows) == 2 else dict.fromkeys(keys, 1.0)
        value = figure_interval([values[0][key] / base[key] for key in keys])
    verdict, reason = _verdict(claim, value, len(keys)) if value else ("inconclusive", obstacle)
    return CheckedClaim(
        claim=claim,
        text=claim.name or claim.text,
        verdict=verdict,
        value=value,
        reason=reason,
        rounds=len(keys),
        evidence=tuple(row.completed[key].run_id for row in rows for key in keys),
    )


def check_metric(claim: Claim, results: Sequence[Result]) -> None:
    """Raise StoreError if a claim's metric is unknown, or looks like a plugin's metric misspelled.

    It looks so if the runs `results` lack a metric of this name, but have one of a similar name.
    """
    if not claim.metric.startswith(METRICS):
        figure_named(claim.metric, results)
        return
    known = {name for run in results for name in figures_of(run)}
    if claim.metric not in known and get_close_matches(claim.metric, known):
        raise StoreError(f"no run has a figure {claim.metric!r}{did_you_mean(claim.metric, known)}")


def _unclear(names: Sequence[str], sides: Sequence[Sequence[ExperimentRuns]]) -> str:
    """Return the reason why a stack has not exactly one usable experiment, or an empty string.

    `sides` has the experiments of each stack in `names`.
    """
    for name, rows in zip(names, sides, strict=True):
        if not rows:
            return f"no measured run of {name} is stored, or none that `where` chooses"
        if len(rows) > 1:
            return f"{name} has {len(rows)} scenarios or sweep points: name one with `where`"
        if not rows[0].usable:
            return f"{rows[0].name} {rows[0].how_it_ended}"
    return ""


def _newest(results: Sequence[Result], stack: str) -> list[ExperimentRuns]:
    """Return the runs of a stack's newest measured experiment at each sweep point."""
    own = [run for run in results if run.experiment.stack.name == stack and not run.imported]
    newest = {
        (run.experiment.scenario.name, run.experiment.point): run.experiment
        for run in sorted(own, key=lambda run: run.started_at)
    }
    return [
        collect_runs(PlannedSummary(experiment=experiment), own, 0)
        for experiment in newest.values()
    ]


def _values(row: ExperimentRuns, figure: str) -> dict[RoundKey, float]:
    figures = {key: figures_of(run).get(figure) for key, run in row.completed.items()}
    return {key: value for key, value in figures.items() if value is not None}


def _obstacles(
    claim: Claim,
    rows: Sequence[ExperimentRuns],
    values: Sequence[Mapping[RoundKey, float]],
    keys: Sequence[RoundKey],
) -> Iterator[str]:
    """Yield the reasons why a claim cannot be checked.

    `rows` and `values` are the runs and values of the stack and, for a claimed ratio, of the
    baseline. `keys` are the rounds with all these values.
    """
    if len(rows) == 2 and not set(rows[0].completed) & set(rows[1].completed):
        yield f"{rows[0].name} and {rows[1].name} have no round in common"
    if not keys:
        yield f"no completed run or round has {claim.metric}"
    if len(rows) == 1:
        return
    stack, baseline = rows
    if any(values[1][key] == 0 for key in keys):
        yield f"{claim.metric} of {baseline.name} is 0"
    yield from filter(None, [comparability_of_rounds(baseline.completed, stack.completed).refusal])
    yield from _load_obstacles(claim.figure, baseline, stack)
    if claim.same_training:
        training = compare_training(baseline.completed, stack.completed)
        if obstacle := training_obstacle(training):
            yield f"{obstacle} (same_training: false allows that)"


def _load_obstacles(figure: str, baseline: ExperimentRuns, stack: ExperimentRuns) -> Iterator[str]:
    """Yield the reasons why the rate of requests forbids comparing a figure of two stacks."""
    yield from filter(None, [rate_obstacle(baseline.load, stack.load)])
    if baseline.rate is not None and figure in OF_BUSY_TIME:
        yield (
            f"requests arrive at a rate, and {figure} is that of busy time "
            f"(metric: {REQUEST_LATENCY.name})"
        )
    if full := [row.load for row in (baseline, stack) if row.saturated]:
        yield saturation(*full)


def _verdict(claim: Claim, value: Interval, rounds: int) -> tuple[Finding, str]:
    """Return the verdict on a claim, and its reason, by the 95 % interval of `value`.

    `rounds` is the number of runs or paired rounds behind the value.
    """
    low, high = claim.limits
    middle = significant(value.median, 4)
    if rounds < MINIMUM_ROUNDS or value.low is None or value.high is None:
        return "inconclusive", f"{middle}, in {rounds} of the {MINIMUM_ROUNDS} rounds that it needs"
    ends = f"[{significant(value.low, 4)}, {significant(value.high, 4)}]"
    reason = f"{middle} {ends} in {rounds} rounds"
    if (low is None or value.low >= low) and (high is None or value.high <= high):
        return "holds", reason
    if (low is not None and value.high < low) or (high is not None and value.low > high):
        return "does not hold", reason
    return "inconclusive", f"{reason}: the interval reaches across a limit"
