"""Pairing of the runs of two experiments, such as one stack at two sweep points.

A session runs sweep points one after another, interleaved, or concurrently on separate nodes. Runs
of two points are pairs only if each round of both ended before the next began, on the same nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise

from accel_bench.analysis.aggregate import ExperimentRuns
from accel_bench.analysis.statistics.verdict import RoundKey
from accel_bench.result import Result


def shares_rounds(a: ExperimentRuns, b: ExperimentRuns) -> bool:
    """Return whether two experiments have common completed rounds, all of which are paired."""
    shared = set(a.speeds) & set(b.speeds)
    return bool(shared) and paired_rounds(a, b) == shared


def paired_rounds(a: ExperimentRuns, b: ExperimentRuns) -> set[RoundKey]:
    """Return the paired rounds of two experiments, from sessions in which all rounds are paired.

    A round is paired if both runs began before the next round of either experiment, on the same
    nodes, and did not overlap in time.
    """
    shared = sorted(set(a.speeds) & set(b.speeds))
    sessions = {session: list(keys) for session, keys in groupby(shared, lambda key: key[0])}
    return {key for keys in sessions.values() if _are_pairs(a, b, keys) for key in keys}


def _are_pairs(a: ExperimentRuns, b: ExperimentRuns, keys: Sequence[RoundKey]) -> bool:
    """Return whether the rounds `keys` of one session are pairs."""
    runs = [(a.completed[key], b.completed[key]) for key in keys]
    if any(_ran_apart(*both) or _overlap(*both) for both in runs):
        return False
    begins = [sorted(side.completed[key].started_at for side in (a, b)) for key in keys]
    begins.sort()
    return all(last < first for (_, last), (first, _) in pairwise(begins))


def _ran_apart(one: Result, other: Result) -> bool:
    sizes = {run.experiment.scenario.world_size for run in (one, other)}
    nodes = {frozenset(node.name for node in run.nodes) for run in (one, other)}
    return len(sizes) == 1 and len(nodes) > 1


def _overlap(*runs: Result) -> bool:
    first, second = sorted(runs, key=lambda run: run.started_at)
    began, next_began = (datetime.fromisoformat(run.started_at) for run in (first, second))
    return began < next_began < began + timedelta(seconds=first.seconds)
