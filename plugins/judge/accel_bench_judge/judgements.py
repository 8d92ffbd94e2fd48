"""Report section `judgements`: each judged step compared with the reference, over all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.schema import Summary
from accel_bench.result import Result
from accel_bench_judge.scenario import ENGINE

NAME = "judgements"
"""Entry-point name of the section."""


def document(summary: Summary, rows: Sequence[ExperimentRuns]) -> list[dict[str, Any]] | None:
    """Return a list with the joint judgement of each stack's runs, or None if no run judged a step.

    `rows` are the runs of the experiments of a session.
    """
    judged = {row.name: [*filter(None, map(_judgement, row.completed.values()))] for row in rows}
    return [{"stack": name, **_of_all(runs)} for name, runs in judged.items() if runs] or None


def _judgement(run: Result) -> Mapping[str, Any]:
    """Return the judgement that the engine has stored with a run; empty if it has stored none."""
    for rank in run.ranks:
        evidence = rank.evidence.get(ENGINE)
        if isinstance(evidence, Mapping) and isinstance(made := evidence.get("judgement"), Mapping):
            return made
    return {}


def _of_all(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the joint judgement of runs: the least exact update, and the largest distance."""
    furthest = max(runs, key=lambda run: run["distance"])
    updates = {run["training"] for run in runs}
    return {
        "update": updates.pop() if len(updates) == 1 else "equivalent",
        "distance": furthest["distance"],
        "allowed": furthest["allowed"],
        "flops": min(run["flops"] for run in runs),
        "flops_of_reference": max(run["reference_flops"] for run in runs),
        "unconfined": list(dict.fromkeys(gap for run in runs for gap in run["unconfined"])),
    }
