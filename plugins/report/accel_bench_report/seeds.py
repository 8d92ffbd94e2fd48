"""The report section `seeds`: an equivalence test on the final loss over several seeds.

Equal final losses over several seeds show an equal outcome even if single loss curves differ. The
relative difference of final losses from the baseline's is computed for each seed; stacks are
equivalent if the 90 % t interval of its mean lies within the tolerance: two one-sided tests of 5 %
each (Schuirmann 1987, "A comparison of the two one-sided tests procedure"). The minimum detectable
difference is shown with the verdict.
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
"""Entry-point name of the section."""

MINIMUM_SEEDS = 3
"""Minimum number of seeds for a verdict."""


class SeedEquivalence(Frozen):
    """Relative difference of a stack's final loss from the baseline's, over seeds."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the other swept keys."""

    seeds: int
    """Number of seeds with which both stacks completed."""

    lost: int = 0
    """Number of seeds with which only the baseline trained; one makes the verdict `different`."""

    verdict: Training
    """Verdict on the final loss against the baseline's."""

    difference: float | None = None
    """Mean relative difference of the final loss; 0.01 is 1 % above the baseline."""

    minimum_detectable_difference: float | None = None
    """Smallest relative difference beyond the tolerance that this many seeds detect in 80 % of
    cases; null with one seed."""

    low: float | None = None
    """Lower end of the mean difference's 90 % interval."""

    high: float | None = None
    """Upper end of the mean difference's 90 % interval."""

    tolerance: float | None = None
    """Allowed relative difference; null if nothing was compared."""

    tolerance_by: tuple[str, ...] = ()
    """Plugins that declare the tolerance; empty if none does."""


def document(
    summary: Summary, rows: Sequence[ExperimentRuns]
) -> tuple[SeedEquivalence, ...] | None:
    """Return the comparison of every stack with the baseline by final loss over seeds.

    None if no seed is swept.
    """
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
    """Return no table: the notes hold all values of the section."""
    return []


def notes(summary: Summary, found: Sequence[SeedEquivalence]) -> list[str]:
    """Return a note on the final loss of each stack; `found` is the section's document."""
    return [_note(row) for row in found]


def _note(row: SeedEquivalence) -> str:
    """Return a note such as `name: loss at the end over 5 seeds equivalent: +0.01% (90 % ...)`."""
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
    """Return the verdict of the equivalence test on relative differences of the loss.

    Without significance it is `inconclusive`, with fewer than three seeds `not tested`.
    """
    if len(differences) < MINIMUM_SEEDS:
        return "not tested"
    low, high = _interval_90(differences)
    if -tolerance <= low and high <= tolerance:
        return "equivalent"
    return "different" if low > tolerance or high < -tolerance else "inconclusive"


def detectable_difference(differences: Sequence[float], tolerance: float) -> float | None:
    """Return the smallest relative difference of the loss that is detected in 80 % of cases.

    `differences` are the measured ones, one for each seed. The result includes the allowed
    difference, `tolerance`. It is None with one seed.
    """
    if len(differences) < 2:
        return None
    return tolerance + t_bound(differences, 0.95) + t_bound(differences, POWER)


def _interval_90(values: Sequence[float]) -> tuple[float, float]:
    half = t_bound(values, 0.95)
    return fmean(values) - half, fmean(values) + half


def _compare(
    name: str, baseline: Mapping[str, ExperimentRuns], stack: Mapping[str, ExperimentRuns]
) -> SeedEquivalence:
    """Return the comparison of the stack `name` with the baseline at one sweep point.

    `baseline` and `stack` are their runs by seed.
    """
    pairs = [
        (baseline[seed], row)
        for seed, row in stack.items()
        if seed in baseline and not (row.failed_audit or baseline[seed].failed_audit)
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
    """Return the verdict on relative differences of the loss.

    `allowed` holds the tolerance. The verdict is `different by design` if the loss is within the
    tolerance only because plugins declare more than the usual one, or if they declare other
    training.
    """
    verdict = judge_differences(differences, allowed.tolerance)
    beyond = judge_differences(differences, allowed.usual) != "equivalent"
    if verdict == "equivalent" and (allowed.other_training or beyond):
        return "different by design"
    return verdict


def _ends(before: ExperimentRuns, after: ExperimentRuns) -> tuple[float | None, float | None]:
    """Return the final losses of both stacks at the last step that both reached.

    Stacks may differ in steps, since an unstable window is measured again.
    """
    steps = shared_steps([before, after])
    return loss_at_end(before, steps), loss_at_end(after, steps)


def loss_at_end(row: ExperimentRuns, steps: int) -> float | None:
    """Return the mean of the last five of the first `steps` losses; None if one of them is missing.

    Losses are those of the first completed run, since runs with one seed have equal losses.
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
