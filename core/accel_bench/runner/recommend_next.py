"""The command that answers what stored runs cannot, with its minutes and dollars."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from accel_bench.analysis.estimates.schema import CostEstimate
from accel_bench.analysis.recommendation.candidates import Candidate
from accel_bench.analysis.recommendation.ranking import Ranked, point_of, verdict_between
from accel_bench.analysis.recommendation.schema import NextRun
from accel_bench.analysis.repeated import without_options
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.analysis.wording import join_names
from accel_bench.catalog.hardware import NamedHardware
from accel_bench.planning.duration import estimate_time
from accel_bench.planning.plan import Plan
from accel_bench.runner.device_estimates import DeviceEstimator
from accel_bench.store.database import Store
from accel_bench.store.records import SessionRecord

REPLACED = {"--rounds": 1, "--resume": 0, "--only": 1, "--tag": 1, "--dry-run": 0}
"""Options of a command that its repetition gives anew, and how many values each takes."""


def more_rounds(
    ranked: Ranked,
    tokens: float | None,
    sessions: Mapping[str, SessionRecord],
    usd_per_hour: float | None,
) -> NextRun | None:
    """Return what would settle whether the best is better than the runner-up; None if settled."""
    best, other = ranked.best, ranked.runner_up
    if best is None or other is None or ranked.sure:
        return None
    done = len(best.runs.speeds)
    rounds, why = _rounds_needed(best, other, tokens)
    if rounds <= done:
        return NextRun(why=why, command="")
    seconds = (rounds - done) * _round_seconds(best, other, ranked)
    return NextRun(
        why=why,
        command=_resumed(best, other, sessions, rounds),
        minutes=seconds / 60,
        usd=seconds / 3600 * usd_per_hour if usd_per_hour else None,
        basis="median seconds of these stacks' stored runs",
    )


def _rounds_needed(best: Candidate, other: Candidate, tokens: float | None) -> tuple[int, str]:
    """Return how many rounds in all would settle two candidates, and why; 0 where none would."""
    names, done = join_names([best.name, other.name]), len(best.runs.speeds)
    between = verdict_between(best, other, tokens)
    if between is None:
        rounds = max(MINIMUM_ROUNDS, 2 * done)
        apart = "did not run in the same rounds, so that drift counts as difference"
        return rounds, f"{names} {apart}; {rounds} rounds would narrow it down, there are {done}"
    needed = max(MINIMUM_ROUNDS, between.rounds_needed or 0)
    if needed <= done:
        return 0, f"{names} cannot be told apart by a number of rounds worth running"
    return needed, f"{needed} rounds would settle {names}; there are {done}"


def first_run(
    estimator: DeviceEstimator,
    target: tuple[NamedHardware | None, Plan],
    words: Sequence[str],
    store: Store | None,
    cost: CostEstimate | None,
) -> NextRun:
    """Return the command that measures a plan; `words` are the scenario and its changes."""
    chosen, plan = target
    time = estimate_time(plan, estimator.on(chosen), store)
    usd_per_hour = cost.usd_per_hour if cost else None
    device = chosen.name if chosen else "this machine"
    return NextRun(
        why=f"nothing that is stored answers this; run it on {device}",
        command=shlex.join(["accel-bench", "run", *words]),
        minutes=time.seconds / 60,
        usd=time.seconds / 3600 * usd_per_hour if usd_per_hour else None,
        basis=time.basis,
    )


def _resumed(
    best: Candidate, other: Candidate, sessions: Mapping[str, SessionRecord], rounds: int
) -> str:
    """Return the session's own command, for these stacks and so many rounds; empty if unknown."""
    last = list(best.runs.counted.values())[-1]
    session = sessions.get(last.session)
    words = list(session.command) if session else []
    if len(words) < 2 or words[1] not in ("run", "scaling"):
        return ""
    kept = without_options(words[2:], REPLACED)
    stacks = dict.fromkeys(one.row.stack for one in (best, other) if not one.is_baseline)
    only = [word for name in stacks for word in ("--only", name)]
    tags = dict.fromkeys(one.experiment.tag for one in (best, other))
    tagged = [] if "" in tags else [word for tag in tags for word in ("--tag", tag)]
    resumed = ["--resume", "--rounds", str(rounds)]
    return shlex.join([Path(words[0]).name, words[1], *kept, *only, *tagged, *resumed])


def _round_seconds(best: Candidate, other: Candidate, ranked: Ranked) -> float:
    """Return the seconds of a round of both stacks and their baselines at their points."""
    stacks = {one.row.stack for one in (best, other)}
    points = {point_of(one) for one in (best, other)}
    found = [
        median(run.seconds for run in one.runs.counted.values())
        for one in (*ranked.eligible, *ranked.refused)
        if point_of(one) in points and (one.is_baseline or one.row.stack in stacks)
    ]
    return sum(found)
