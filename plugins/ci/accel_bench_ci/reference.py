"""Comparison of runs with a reference set, by rows of runs with equal keys such as stack and model.

Runs of the two sets are unpaired: `gate` or `history --confirm` must confirm regressions in fresh
processes, side by side.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

from accel_bench.analysis.aggregate import counted_runs, replaced_rounds
from accel_bench.analysis.checks.audit import with_audit
from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.metrics.offered_load import (
    OfferedLoad,
    load_obstacle,
    offered_load,
)
from accel_bench.analysis.quantity import Quantity
from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.estimators import Interval, holm, unpaired_ratio
from accel_bench.analysis.statistics.verdict import Direction
from accel_bench.analysis.tables.listing import differing_keys
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.errors import StoreError
from accel_bench.result import Result, Status
from accel_bench.scenario.draft import look_up
from accel_bench_ci.figures import (
    METRICS,
    REQUEST_LATENCY,
    change_of,
    compared_figure,
    figures_of,
)
from accel_bench_ci.reference_keys import DEFAULT_KEYS, rows_of
from accel_bench_ci.steps import MAD_TO_SIGMA

DEFAULT_FIGURES = ("tokens_per_second", "peak_memory_bytes", "last_loss")
"""Names of the figures that are compared by default."""

TOLERANCE = 0.05
"""Relative change of a median that still counts as the same."""

ERROR_RATE = 0.05
"""Maximum probability that any unchanged figure is called better or worse."""

FEWEST_ROWS = 5
"""Minimum number of rows for a search for outliers."""

DEVIATIONS = 3.5
"""Distance of an outlier from the median log-ratio, in robust standard deviations."""

NO_FAILURES = (Status.INTERRUPTED, Status.INFRA_ERROR, Status.SKIPPED)
"""Statuses of interrupted or skipped runs, which do not count as failures."""

State: TypeAlias = Literal[
    "compared", "new", "missing", "newly failing", "newly saturated", "newly passing", "failing"
]
"""State of a row by the statuses of its runs in both sets, not a verdict on a figure."""


class ReferenceFigure(Frozen):
    """Comparison of one figure of one row: medians over the runs of both sets.

    Its verdict differs in kind from the verdict of a `Comparison`: the runs are not paired, and the
    error rate is divided over all rows and figures.
    """

    name: str
    unit: str
    better: str
    reference: float | None
    current: float | None

    ratio: Interval | None = None
    """Ratio of current to reference, with Welch's 95 % interval; null unless both are positive."""

    p_value: float | None = None
    """p-value of the ratio by Welch's t test, adjusted by Holm's method for all rows and figures;
    null with fewer than two runs on a side."""

    verdict: Direction | Literal["different"]
    """`same` within the tolerance; `different` beyond it for a figure without a better side;
    `inconclusive` with a single run on a side, or a p-value above 0.05; `worse` also for the
    latency of requests that saturate only the current runs at the same rate."""

    reason: str = ""
    """Reason not to compare requests that arrive at a rate; empty otherwise."""

    outlier: bool = False
    """True if the ratio is an outlier among the ratios of all rows."""


class ReferenceRow(Frozen):
    """Row of a comparison: both sets' runs with the same key, their state and their figures."""

    key: dict[str, JsonValue]
    state: State
    """State of the row; `newly saturated` if a current run saturates at a rate at which no
    reference run did."""

    reference_runs: tuple[str, ...]
    """Ids of the reference's runs that are compared."""

    current_runs: tuple[str, ...]

    reference_status: str
    """Distinct statuses of the reference's runs; empty without runs."""

    current_status: str
    imported: bool = False
    """True if another program measured the runs of either set."""

    figures: tuple[ReferenceFigure, ...] = ()
    reasons: tuple[str, ...] = ()
    """Reasons why current runs failed."""

    differing: tuple[Difference, ...] = ()
    """Settings and environment that differ between the sets, except differences of all rows."""

    @property
    def worse(self) -> bool:
        """True if the row regressed in any figure or in its state."""
        newly = self.state in ("newly failing", "newly saturated")
        return newly or any(figure.verdict == "worse" for figure in self.figures)


class ReferenceComparison(Document):
    """The JSON document of `accel-bench results regressions`."""

    reference: str
    """Name of the reference set: a file, a results folder, or a selection."""

    tolerance: float
    aliases: dict[str, str]
    rows: tuple[ReferenceRow, ...]

    differing: tuple[Difference, ...]
    """Differences that all rows with runs in both sets have in common."""

    worse: int
    """Number of rows with a regression."""

    exit_code: int
    """Exit code: 1 with a regression, else 0."""


Loads: TypeAlias = tuple[OfferedLoad, OfferedLoad]
"""Offered loads of the reference and of the current runs."""


class ComparisonRule(NamedTuple):
    """Figures, keys and tolerance of a comparison."""

    figures: Sequence[Quantity]
    keys: Sequence[str] = DEFAULT_KEYS

    aliases: Mapping[str, str] = {}
    """New names by old names of the reference, mostly of models."""

    tolerance: float = TOLERANCE


def compare_with_reference(
    name: str, reference: Sequence[Result], current: Sequence[Result], rule: ComparisonRule
) -> ReferenceComparison:
    """Return the comparison of two sets of results row by row, current rows first.

    `name` is the name of the reference set. Raises StoreError if no row has runs in both sets.
    """
    sides_of = rows_of(reference, current, rule.keys, rule.aliases)
    if not any(all(sides) for sides in sides_of.values()):
        before, after = ([key for key, sides in sides_of.items() if sides[n]] for n in (0, 1))
        raise StoreError(
            f"no row of {name} has a key of the current runs ({', '.join(rule.keys)}): "
            f"{_some_keys(before)} there, {_some_keys(after)} here; choose columns with --key, or "
            "name what has another name with --alias OLD=NEW"
        )
    rows = _judged([_row(key, *sides, rule) for key, sides in sides_of.items()], rule)
    shared = _shared([row.differing for row in rows if row.reference_runs and row.current_runs])
    for place, row in enumerate(rows):
        own = tuple(difference for difference in row.differing if difference not in shared)
        rows[place] = row.model_copy(update={"differing": own})
    worse = sum(row.worse for row in rows)
    return ReferenceComparison(
        reference=name,
        tolerance=rule.tolerance,
        aliases=dict(rule.aliases),
        rows=tuple(rows),
        differing=shared,
        worse=worse,
        exit_code=1 if worse else 0,
    )


def _some_keys(groups: Sequence[str]) -> str:
    names = groups[:2]
    return f"{', '.join(names)}{' ...' if len(groups) > 2 else ''}" if names else "nothing"


def _row(
    key: str, reference: Sequence[Result], current: Sequence[Result], rule: ComparisonRule
) -> ReferenceRow:
    before, after = _counted(reference), _counted(current)
    loads = offered_load("the reference", before), offered_load("the current runs", after)
    state = _state(before, after, loads)
    figures = _figures(before, after, loads, rule) if before and after else []
    known = [
        figure
        for figure in figures
        if (figure.reference, figure.current) != (None, None) or figure.reason
    ]
    imported = any(run.imported for run in (*before, *after))
    failed = [run for run in after if not run.status.completed]
    return ReferenceRow(
        key=json.loads(key),
        state=state,
        reference_runs=tuple(run.run_id for run in before),
        current_runs=tuple(run.run_id for run in after),
        reference_status=_statuses(before),
        current_status=_statuses(after),
        imported=imported,
        figures=tuple(known) if state in ("compared", "newly saturated") else (),
        reasons=tuple(dict.fromkeys(reason for run in failed for reason in run.reasons)),
        differing=_differing(before, after, imported) if before and after else (),
    )


def _counted(results: Sequence[Result]) -> list[Result]:
    """Return the last attempts of a row's runs, without rounds that were measured again."""
    replaced = replaced_rounds(results)
    kept = [run for run in results if (run.session, run.round) not in replaced]
    by_experiment: dict[str, list[Result]] = {}
    for result in kept:
        by_experiment.setdefault(result.experiment.id, []).append(result)
    # Rows of an import share their session and round, and are told apart by their experiments.
    return [with_audit(run) for own in by_experiment.values() for run in counted_runs(own).values()]


def _passes(runs: Sequence[Result]) -> bool:
    """Return whether at least half of a row's runs completed and none is invalid."""
    completed = sum(run.status.completed for run in runs)
    return 2 * completed >= len(runs) and all(run.status.value != "invalid" for run in runs)


def _any_failed(runs: Sequence[Result]) -> bool:
    """Return whether any of a row's runs failed; interrupted and skipped runs did not."""
    return any(not run.status.completed and run.status not in NO_FAILURES for run in runs)


def _state(before: Sequence[Result], after: Sequence[Result], loads: Loads) -> State:
    if not before:
        return "new"
    if not after:
        return "missing"
    if _any_failed(after) and not _any_failed(before):
        return "newly failing"
    if not _passes(after):
        return "newly failing" if _passes(before) else "failing"
    if not _passes(before):
        return "newly passing"
    return "newly saturated" if _newly_saturated(*loads) else "compared"


def _statuses(runs: Sequence[Result]) -> str:
    counts = Counter(run.status.value for run in runs)
    return ", ".join(f"{status} {count}" for status, count in counts.items())


def _figures(
    before: Sequence[Result], after: Sequence[Result], loads: Loads, rule: ComparisonRule
) -> list[ReferenceFigure]:
    """Return the comparison of each figure of a row.

    `before` are the reference's runs, `after` the current ones, and `loads` the arrival of requests
    in both. If requests arrive at a rate, their latency replaces figures computed from busy time,
    such as throughput.
    """
    rate = next((load.rate for load in loads if load.rate is not None), None)
    compared = (compared_figure(figure, rate) for figure in rule.figures)
    asked = {figure.name: figure for figure in compared}.values()
    figures = [_figure(figure, before, after, _obstacle(figure, *loads)) for figure in asked]
    if not _newly_saturated(*loads):
        return figures
    worse = {"verdict": "worse"}
    return [figure.model_copy(update=worse) if figure.name == REQUEST_LATENCY.name else figure
            for figure in figures]  # fmt: skip


def _obstacle(figure: Quantity, before: OfferedLoad, after: OfferedLoad) -> str:
    """Return the reason why the load of requests forbids comparing a figure, or an empty string."""
    of_load = figure == REQUEST_LATENCY or figure.name.startswith(METRICS)
    return load_obstacle(before, after) if of_load else ""


def _figure(
    figure: Quantity, before: Sequence[Result], after: Sequence[Result], obstacle: str
) -> ReferenceFigure:
    """Return the medians, ratio and p-value of a figure in two sets of runs. `_judged` later sets
    its verdict together with all rows.

    `obstacle` is the reason not to compare, or empty.
    """
    old, new = ([*_values(runs, figure.name)] for runs in (before, after))
    positive = bool(old and new) and min(*old, *new) > 0 and not obstacle
    ratio, p_value = unpaired_ratio(new, old) if positive else (None, None)
    return ReferenceFigure(
        name=figure.name,
        unit=figure.unit,
        better=figure.better,
        reference=median(old) if old else None,
        current=median(new) if new else None,
        ratio=ratio,
        p_value=p_value,
        verdict="not tested",
        reason=obstacle,
    )


def _values(runs: Sequence[Result], name: str) -> Iterator[float]:
    """Yield the value of the figure `name` in each completed run that has it. Imported runs have
    the value that their file states."""
    for run in runs:
        stated = (
            {metric.name: metric.value for metric in run.metrics}
            if run.imported
            else figures_of(run)
        )
        value = stated.get(name, stated.get(name.removeprefix("metrics.")))
        if value is not None and run.status.completed:
            yield float(value)


def _judged(rows: Sequence[ReferenceRow], rule: ComparisonRule) -> list[ReferenceRow]:
    """Return the rows with verdicts and outliers set. p-values are adjusted over all tests, and a
    shift common to all rows makes no row an outlier."""
    figures = [figure for row in rows for figure in row.figures]
    adjusted = iter(holm([figure.p_value for figure in figures if figure.p_value is not None]))
    directions = {figure.name: figure for figure in (*rule.figures, REQUEST_LATENCY)}
    logs: dict[str, list[float]] = {}
    for figure in figures:
        if figure.ratio is not None:
            logs.setdefault(figure.name, []).append(math.log(figure.ratio.median))
    limits = {name: _limits(values, rule.tolerance) for name, values in logs.items()}

    def judged(one: ReferenceFigure) -> ReferenceFigure:
        if one.ratio is None:
            return one
        p_value = None if one.p_value is None else next(adjusted)
        (low, high), change = limits[one.name], math.log(one.ratio.median)
        verdict: Direction | Literal["different"] = "inconclusive"
        if p_value is not None and abs(change) <= math.log1p(rule.tolerance):
            verdict = "same"
        elif p_value is not None and p_value <= ERROR_RATE:
            verdict = change_of(directions[one.name], change)
        outlier = not low <= change <= high
        update = {"p_value": p_value, "verdict": verdict, "outlier": outlier}
        return one.model_copy(update=update)

    return [row.model_copy(update={"figures": tuple(map(judged, row.figures))}) for row in rows]


def _limits(values: Sequence[float], tolerance: float) -> tuple[float, float]:
    """Return the lowest and highest log-ratio that is no outlier, given the log-ratios of a figure
    in all rows.

    A log-ratio within log(1 + `tolerance`) of their median is never an outlier.
    """
    if len(values) < FEWEST_ROWS:
        return -math.inf, math.inf
    middle = median(values)
    spread = MAD_TO_SIGMA * median(abs(value - middle) for value in values)
    allowed = max(DEVIATIONS * spread, math.log1p(tolerance))
    return middle - allowed, middle + allowed


def _differing(
    before: Sequence[Result], after: Sequence[Result], imported: bool
) -> tuple[Difference, ...]:
    """Return the settings and versions that differ between the newest runs of both sets. Of
    imported runs, only settings stated in a file are compared."""
    left, right = before[-1], after[-1]
    if not imported:
        pairs = differing_keys(left.experiment.identity, right.experiment.identity)
        return tuple(Difference(key=key, a=a, b=b) for key, a, b in pairs)
    sides = [run.experiment.scenario.model_dump(mode="json") for run in (left, right)]
    stated = {*left.provenance.stated, *right.provenance.stated}
    values = [(f"work.{key}", look_up(sides[0], key)[1], look_up(sides[1], key)[1])
              for key in sorted(stated)]  # fmt: skip
    return tuple(Difference(key=key, a=a, b=b) for key, a, b in values if a != b)


def _shared(differing: Sequence[Sequence[Difference]]) -> tuple[Difference, ...]:
    """Return the differences that all rows have, given those of each row; () for a single row."""
    if len(differing) < 2:
        return ()
    return tuple(item for item in differing[0] if all(item in row for row in differing))


def _newly_saturated(base: OfferedLoad, row: OfferedLoad) -> bool:
    """Return whether requests pile up under the load `row`, but not under `base` at equal rate."""
    same = row.rate is not None and row.rate == base.rate
    return same and row.saturated and not base.saturated
