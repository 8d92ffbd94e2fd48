"""The command that answers what stored runs cannot, with its minutes and dollars."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from operator import mul
from pathlib import Path
from typing import NamedTuple, TypeAlias

from accel_bench.analysis.repeated import without_options
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.analysis.wording import count, join_names
from accel_bench.errors import AccelBenchError
from accel_bench.planning.duration import plan_seconds
from accel_bench.planning.plan import Plan
from accel_bench.runner.sweep_point import missing_rounds
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.database import Store
from accel_bench.store.sessions import SessionRecord
from accel_bench_advise.recommendation.candidates import Candidate
from accel_bench_advise.recommendation.ranking import Ranked, pairs_of, verdict_between
from accel_bench_advise.recommendation.schema import NextRun

REPLACED = {
    "--rounds": 1,
    "--resume": 0,
    "--only": 1,
    "--tag": 1,
    "--dry-run": 0,
    "--race": 0,
    "--interleave": 0,
    "--repeat-round": 1,
    "--format": 1,
}
"""Options of a command that its repetition gives anew or leaves out, and how many values each
takes."""

PlanOf: TypeAlias = Callable[[Sequence[str]], Plan]
"""Returns the plan of the arguments of `accel-bench run`, for this machine."""


class Earlier(NamedTuple):
    """What is needed to repeat a stored command."""

    sessions: Mapping[str, SessionRecord]
    store: Store | None
    plan_of: PlanOf | None
    """None where commands cannot be planned."""


def more_rounds(
    ranked: Ranked,
    tokens: float | None,
    earlier: Earlier,
    usd_per_hour: float | None,
) -> NextRun | None:
    """Return what would settle whether the best is better than the runner-up; None if settled."""
    best, other = ranked.best, ranked.runner_up
    if best is None or other is None or ranked.sure:
        return None
    done = len(best.runs.speeds)
    rounds, why = rounds_needed(best, other, tokens)
    if rounds <= done:
        return NextRun(why=why, command="")
    words = _resumed(best, other, earlier.sessions, rounds)
    work = _work_of(words, earlier)
    if isinstance(work, str):
        return NextRun(why=f"{why}{work}", command=shlex.join(words))
    return NextRun(
        why=f"{why}; {work.describe(done)}",
        command=shlex.join(words),
        minutes=work.seconds / 60 if work.seconds else None,
        usd=work.seconds / 3600 * usd_per_hour if work.seconds and usd_per_hour else None,
    )


class Work(NamedTuple):
    """What a command would run beside what is stored and counts."""

    rounds: int
    runs: int
    seconds: float | None
    """None where not all of it has run here before."""

    counts: bool
    """True if a stored round counts."""

    def describe(self, done: int) -> str:
        """Return what runs, and why the stored rounds do not count where they do not."""
        runs = f"the command runs {count(self.rounds, 'round')}, {count(self.runs, 'run')}"
        if self.counts or not done:
            return runs
        return f"{runs}: no stored round counts, since the code or a setting has changed"


def _work_of(words: Sequence[str], earlier: Earlier) -> Work | str:
    """Return what a command would run, or why that is not known."""
    if not words or words[1] != "run" or earlier.plan_of is None:
        return ""
    try:
        plan = earlier.plan_of(words[2:])
    except AccelBenchError as error:
        return f"; the command cannot be planned here: {error}"
    points: dict[str, list[Experiment]] = {}
    for one in plan.runnable:
        points.setdefault(one.experiment.point, []).append(one.experiment)
    rounds = plan.file.measure.rounds
    ids = [one.experiment.id for one in plan.runnable]
    stored = earlier.store.results(experiment_ids=ids) if earlier.store else []
    missing = [len(missing_rounds(stored, needed, rounds)) for needed in points.values()]
    runs = sum(map(mul, missing, map(len, points.values())))
    seconds = plan_seconds(plan, earlier.store)
    share = runs / (rounds * len(ids)) if ids else 0.0
    counts = any(one < rounds for one in missing)
    part = None if seconds is None else seconds * share
    return Work(max(missing, default=0), runs, part, counts)


def rounds_needed(best: Candidate, other: Candidate, tokens: float | None) -> tuple[int, str]:
    """Return how many rounds in all would settle two candidates, and why; 0 where none would."""
    names, done = join_names([best.name, other.name]), len(best.runs.speeds)
    between = verdict_between(best, other, tokens)
    if between is None:
        rounds = max(MINIMUM_ROUNDS, 2 * done)
        apart = "did not run in the same rounds, so that drift counts as difference"
        narrowed = f"{count(rounds, 'round')} would narrow it down"
        return rounds, f"{names} {apart}; {narrowed}, there are {done}"
    # Rounds that are no pairs do not count beside those that are.
    others = done - len(pairs_of(best, other))
    needed = max(MINIMUM_ROUNDS, between.rounds_needed or 0) + others
    if needed <= done:
        return 0, f"{names} cannot be told apart by a number of rounds worth running"
    return needed, f"{count(needed, 'round')} would settle {names}; there are {done}"


def _resumed(
    best: Candidate, other: Candidate, sessions: Mapping[str, SessionRecord], rounds: int
) -> list[str]:
    """Return the session's own command, for these stacks and so many rounds; empty if unknown."""
    last = list(best.runs.counted.values())[-1]
    session = sessions.get(last.session)
    words = list(session.command) if session else []
    if len(words) < 2 or words[1] not in ("run", "scaling"):
        return []
    kept = without_options(words[2:], REPLACED)
    stacks = dict.fromkeys(one.row.stack for one in (best, other) if not one.is_baseline)
    only = [word for name in stacks for word in ("--only", name)]
    tags = dict.fromkeys(one.experiment.tag for one in (best, other))
    tagged = [] if "" in tags else [word for tag in tags for word in ("--tag", tag)]
    resumed = ["--resume", "--rounds", str(rounds)]
    if words[1] == "run" and best.experiment.point != other.experiment.point:
        resumed.append("--interleave")  # else drift would count as difference again
    return [Path(words[0]).name, words[1], *kept, *only, *tagged, *resumed]
