"""Report section with the fastest stack's counterparts in other training programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.schema import StackRow, Summary
from accel_bench.analysis.wording import label
from accel_bench.documents.base import JsonValue
from accel_bench.report.table import Column, Table
from accel_bench.scenario.models import Stack
from accel_bench_export.configuration import configuration
from accel_bench_export.trainers import trainer_names
from accel_bench_export.writing import settings_text

TITLE = "In your script"
"""Title of the table."""


class StackEquivalents(StackRow):
    """Counterparts of the fastest stack in other training programs."""

    programs: dict[str, dict[str, JsonValue]] = Field(min_length=1)
    """Settings by dotted key, for each program by name."""


def document(summary: Summary, rows: Sequence[ExperimentRuns]) -> list[StackEquivalents] | None:
    """Return a list of one entry, the fastest stack with its settings in other programs, or None.

    Only stacks count that have the verdict `better` and train in the same way as the baseline.
    The result is None without such a stack, or without such settings. `rows` are the runs of the
    experiments of `summary`.
    """
    pairs = zip(summary.experiments, rows, strict=True)
    better = [
        (shown.ratio.median, shown, row.planned.experiment.stack)
        for shown, row in pairs
        if shown.verdict == "better" and shown.ratio and not shown.training_difference
    ]
    if not better:
        return None
    _, shown, stack = max(better, key=lambda pair: pair[0])
    if not (programs := programs_of(stack)):
        return None
    named = shown.model_dump(include={*StackRow.model_fields})
    return [StackEquivalents(**named, programs=programs)]


def tables(summary: Summary, found: Sequence[StackEquivalents]) -> list[Table]:
    """Return a table for each stack in `found`: settings in other programs, an export command."""
    return [Table([Column(label(stack), str)], _lines(stack), TITLE) for stack in found]


def programs_of(stack: Stack) -> dict[str, dict[str, Any]]:
    """Return a stack's settings in other programs, by program and dotted key.

    Programs without such settings are missing. Raises ScenarioError for an unusable file.
    """
    settings_of = {name: configuration(name, stack, None).settings for name in trainer_names()}
    return {name: settings for name, settings in settings_of.items() if settings}


def _lines(one: StackEquivalents) -> list[str]:
    same: dict[str, list[str]] = {}
    for name, settings in one.programs.items():
        same.setdefault(settings_text(settings), []).append(name)
    parts = [f"{', '.join(names)} {text}" for text, names in same.items()]
    first = next(iter(one.programs))
    return [
        "; ".join(parts),
        f"accel-bench export {one.stack} --to {first} --scenario FILE writes it with the work",
    ]
