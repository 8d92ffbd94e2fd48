"""The section of several seeds: an equivalence test on the loss at the end.

One seed says whether the curves are the same; several say whether the outcome is, although the
curves are not. The difference of the losses at the end, relative to the baseline's, is taken for
each seed; they are equivalent when the 90 % t interval of its mean lies within the tolerance: two
one-sided tests of 5 % each (Schuirmann 1987, "A comparison of the two one-sided tests procedure").
What so many seeds could have shown stands beside the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from accel_bench.analysis.aggregate import SEED_KEYS, ExperimentRuns, shared_steps
from accel_bench.analysis.checks.allowance import Allowance, allowance
from accel_bench.analysis.checks.convergence import POWER, SMOOTHING_STEPS
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.statistics.estimators import t_bound
from accel_bench.analysis.statistics.verdict import Training
from accel_bench.analysis.wording import count, group_label, training_word
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.report.table import Table
from accel_bench.result import Status

NAME = "seeds"
"""Name of the entry point."""

MINIMUM_SEEDS = 3
"""Fewer seeds get no verdict."""


class SeedEquivalence(Frozen):
    """One stack's loss at the end against the baseline's, over seeds; relative differences."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the other swept keys."""

    seeds: int
    """Seeds with which both completed."""

    lost: int = 0
    """Seeds with which the baseline trained and the stack did not: one makes it `different`."""

    verdict: Training
    """Verdict on the loss beside the baseline's."""

    difference: float | None = None
    """Mean relative difference of the loss at the end; 0.01 is 1 % above the baseline."""

    minimum_detectable_difference: float | None = None
    """Smallest relative difference that so many seeds, with their scatter, show to be beyond the
    tolerance in 80 % of cases; null with one seed."""

    low: float | None = None
    """Lower end of its 90 % interval."""

    high: float | None = None
    """Upper end of its 90 % interval."""

    tolerance: float | None = None
    """Relative difference that is allowed; null where nothing was compared."""

    tolerance_by: tuple[str, ...] = ()
    """Plugins that declare it; empty where none does."""


def document(
    summary: Summary, rows: Sequence[ExperimentRuns]
) -> tuple[SeedEquivalence, ...] | None:
    """Compare every stack with the baseline; None when no seed is swept."""
    if not any(key in row.planned.experiment.sweep for row in rows for key in SEED_KEYS):
        return None
    baseline = summary.baseline
    groups: dict[tuple[str, str], dict[str, ExperimentRuns]] = {}
    for row in rows:
        experiment = row.planned.experiment
        seeds = {key: value for key, value in experiment.sweep.items() if key in SEED_KEYS}
        key = (canonical_json(_without_seeds(experiment.sweep)), experiment.stack.name)
        groups.setdefault(key, {})[canonical_json(seeds)] = row
    return tuple(
        _compare(name, groups.get((point, baseline), {}), by_seed)
        for (point, name), by_seed in groups.items()
        if name != baseline
    )


def tables(summary: Summary, found: Sequence[SeedEquivalence]) -> list[Table]:
    """Return no table: a note for each stack says it all."""
    return []


def notes(summary: Summary, found: Sequence[SeedEquivalence]) -> list[str]:
    """Return a sentence for each stack."""
    return [_note(row) for row in found]


def _note(row: SeedEquivalence) -> str:
    """Return `name: loss at the end over 5 seeds equivalent: +0.01% (90 % interval ...)`."""
    name = group_label(row.stack, row.sweep)
    word = training_word(row.verdict, row.tolerance_by)
    text = f"{name}: loss at the end over {count(row.seeds, 'seed')} {word}"
    if row.lost:
        text += f" ({row.lost} more on which it did not train)"
    if row.difference is None or row.low is None or row.high is None or row.tolerance is None:
        return text
    interval = f"90 % interval {row.low:+.2%} to {row.high:+.2%}"
    text = f"{text}: {row.difference:+.2%} ({interval}), {row.tolerance:.2g} allowed"
    if row.minimum_detectable_difference is None:
        return text
    visible = f"{row.minimum_detectable_difference:.2%}"
    return f"{text}; {count(row.seeds, 'seed')} show differences above {visible}"


def judge_differences(differences: Sequence[float], tolerance: float) -> Training:
    """Return `equivalent` surely within the tolerance, `different` surely beyond, else open."""
    if len(differences) < MINIMUM_SEEDS:
        return "not tested"
    low, high = _interval_90(differences)
    if -tolerance <= low and high <= tolerance:
        return "equivalent"
    return "different" if low > tolerance or high < -tolerance else "inconclusive"


def detectable_difference(differences: Sequence[float], tolerance: float) -> float | None:
    """Return the difference that is called `different` in 80 % of cases; None with one seed."""
    if len(differences) < 2:
        return None
    return tolerance + t_bound(differences, 0.95) + t_bound(differences, POWER)


def _interval_90(values: Sequence[float]) -> tuple[float, float]:
    half = t_bound(values, 0.95)
    return fmean(values) - half, fmean(values) + half


def _compare(
    name: str, baseline: Mapping[str, ExperimentRuns], stack: Mapping[str, ExperimentRuns]
) -> SeedEquivalence:
    """Compare one stack at one point of the other axes."""
    pairs = [
        (baseline[seed], row)
        for seed, row in stack.items()
        if seed in baseline and not (row.disowned or baseline[seed].disowned)
    ]
    ends = [_ends(before, after) for before, after in pairs]
    differences = [after / before - 1 for before, after in ends if before and after is not None]
    lost = sum(_is_lost(before, after) for before, after in pairs)
    sweep = _without_seeds(next(iter(stack.values())).planned.experiment.sweep)
    if not differences:
        verdict: Training = "different" if lost else "not tested"
        return SeedEquivalence(stack=name, sweep=sweep, seeds=0, lost=lost, verdict=verdict)
    completed = next((b.last, a.last) for b, a in pairs if b.last and a.last)
    allowed = allowance("loss", completed)
    low, high = _interval_90(differences) if len(differences) > 1 else (None, None)
    return SeedEquivalence(
        stack=name,
        sweep=sweep,
        seeds=len(differences),
        lost=lost,
        verdict="different" if lost else _verdict(differences, allowed),
        difference=fmean(differences),
        minimum_detectable_difference=detectable_difference(differences, allowed.tolerance),
        low=low,
        high=high,
        tolerance=allowed.tolerance,
        tolerance_by=allowed.plugins,
    )


def _verdict(differences: Sequence[float], allowed: Allowance) -> Training:
    """Return the verdict; `different by design` for what is beyond the usual tolerance."""
    verdict = judge_differences(differences, allowed.tolerance)
    beyond = judge_differences(differences, allowed.usual) != "equivalent"
    if verdict == "equivalent" and (allowed.other_training or beyond):
        return "different by design"
    return verdict


def _ends(before: ExperimentRuns, after: ExperimentRuns) -> tuple[float | None, float | None]:
    """Return both losses at the end of the steps that both took.

    An unstable window makes more steps of one of them.
    """
    steps = shared_steps([before, after])
    return loss_at_end(before, steps), loss_at_end(after, steps)


def loss_at_end(row: ExperimentRuns, steps: int) -> float | None:
    """Return the mean of the last five of `steps` losses; None where one is missing.

    It is that of the first completed run: the runs of one seed share it.
    """
    first = next(iter(row.speeds.values()), None)
    last = first.losses[:steps][-SMOOTHING_STEPS:] if first else ()
    known = [loss for loss in last if loss is not None]
    return fmean(known) if known and len(known) == len(last) else None


def _is_lost(before: ExperimentRuns, after: ExperimentRuns) -> bool:
    base, end = _ends(before, after)
    diverged = after.ending.status is Status.INVALID or (bool(after.speeds) and end is None)
    return diverged and (base is not None or bool(before.speeds))


def _without_seeds(sweep: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: value for key, value in sweep.items() if key not in SEED_KEYS}
