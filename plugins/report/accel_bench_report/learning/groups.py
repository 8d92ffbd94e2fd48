"""Runs of one stack at one sweep point, grouped by their training seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from accel_bench.analysis.aggregate import SEED_KEYS, ExperimentRuns
from accel_bench.analysis.learning.curves import Reached, validation_curve
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.analysis.tables.experiment_keys import tell_apart
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.result import Result, Status
from accel_bench_report.learning.curve_points import learning_curve, reached_after
from accel_bench_report.learning.schema import LossKind


@dataclass(frozen=True)
class SeedRuns:
    """Runs of an experiment with one seed."""

    seed: str
    """Swept seed keys with their values, as canonical JSON."""

    row: ExperimentRuns

    @cached_property
    def curves(self) -> dict[RoundKey, list[Reached]]:
        """Learning curves of the completed runs, by session and round."""
        curves = {key: learning_curve(run) for key, run in self.row.completed.items()}
        return {key: curve for key, curve in curves.items() if curve}

    @property
    def diverged(self) -> bool:
        """True if a loss was not finite, or the last loss is higher than the first."""
        if any(_is_not_finite(run) for run in self.row.counted.values()):
            return True
        ends = ((curve[0].loss, curve[-1].loss) for curve in self.curves.values())
        return any(last is None or first is None or last > first for first, last in ends)


@dataclass(frozen=True)
class LearningGroup:
    """Runs of one stack at one sweep point, over all seeds."""

    scenario: str
    stack: str
    sweep: dict[str, JsonValue]
    """Values of the swept keys, except seeds."""

    seeds: Sequence[SeedRuns]

    @property
    def tag(self) -> str:
        """Name of the sweep point; empty if seeds are swept."""
        first = self.seeds[0].row.planned.experiment
        return first.tag if first.sweep == self.sweep else ""

    @property
    def apart(self) -> dict[str, JsonValue]:
        """Settings that tell the group from groups with the same stack and sweep values."""
        every = [seed.row.apart for seed in self.seeds]
        return {
            key: value
            for key, value in every[0].items()
            if key not in SEED_KEYS and all(apart.get(key) == value for apart in every)
        }

    @cached_property
    def runs(self) -> list[Result]:
        """Completed runs with a learning curve."""
        return [seed.row.completed[key] for seed in self.seeds for key in seed.curves]

    @cached_property
    def sessions(self) -> set[str]:
        """Ids of the sessions of the group's runs."""
        return {session for seed in self.seeds for session, _ in seed.row.counted}

    @cached_property
    def clusters(self) -> list[list[list[Reached]]]:
        """Lists of learning curves: one list for each seed that has curves."""
        return [list(seed.curves.values()) for seed in self.seeds if seed.curves]

    @cached_property
    def loss_kind(self) -> LossKind:
        """Kind of loss of the curves: validation or training."""
        return "validation" if any(map(validation_curve, self.runs)) else "training"

    @property
    def point(self) -> tuple[str, str]:
        """Scenario name and JSON of the sweep values; stacks with equal ones are compared."""
        return self.scenario, canonical_json(self.sweep)


def learning_groups(rows: Sequence[ExperimentRuns]) -> list[LearningGroup]:
    """Return locally measured experiments grouped over their seeds, in the given order.

    Groups without a learning curve are left out, unless a seed diverged.
    """
    groups: dict[str, list[ExperimentRuns]] = {}
    for row in tell_apart(rows):
        experiment = row.planned.experiment
        names = [experiment.scenario.name, experiment.stack.name]
        groups.setdefault(canonical_json([*names, identity_without(row, SEED_KEYS)]), []).append(
            row
        )
    grouped = [_group(rows) for rows in groups.values()]
    return [group for group in grouped if group.runs or any(seed.diverged for seed in group.seeds)]


def _group(rows: Sequence[ExperimentRuns]) -> LearningGroup:
    first = rows[0].planned.experiment
    seeds = [
        {key: value for key, value in row.planned.experiment.sweep.items() if key in SEED_KEYS}
        for row in rows
    ]
    return LearningGroup(
        scenario=first.scenario.name,
        stack=first.stack.name,
        sweep={key: value for key, value in first.sweep.items() if key not in SEED_KEYS},
        seeds=[SeedRuns(canonical_json(seed), row) for seed, row in zip(seeds, rows, strict=True)],
    )


def identity_without(row: ExperimentRuns, keys: Iterable[str]) -> JsonValue:
    """Return as JSON all settings and versions that give an experiment its id, without `keys`."""
    identity = json.loads(canonical_json(row.planned.experiment.identity))
    for section, _, key in (name.partition(".") for name in keys):
        identity.get("work", {}).get(section, {}).pop(key, None)
    rest: JsonValue = identity
    return rest


def _is_not_finite(run: Result) -> bool:
    return run.status is Status.INVALID and any("not finite" in why for why in run.reasons)


def lasts(group: LearningGroup) -> Iterator[tuple[SeedRuns, float]]:
    """Yield each seed that did not diverge, with its final loss.

    The final loss is read from the seed's first curve, after the last step that all these curves
    have.
    """
    curves = [
        (seed, next(iter(seed.curves.values())))
        for seed in group.seeds
        if seed.curves and not seed.diverged
    ]
    steps = min((curve[-1].steps for _, curve in curves), default=0)
    for seed, curve in curves:
        end = reached_after(curve, steps)
        if end is not None and end.loss is not None:
            yield seed, end.loss
