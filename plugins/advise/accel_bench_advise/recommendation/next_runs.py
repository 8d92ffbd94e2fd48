"""Commands whose runs would complete a recommendation, with minutes and dollars."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from operator import mul
from pathlib import Path

import typer

from accel_bench.analysis.session_command import without_options
from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.analysis.wording import assignments, count, join_names
from accel_bench.cli.request import single_draft
from accel_bench.cli.run import RunCommandOptions, run, run_request
from accel_bench.errors import AccelBenchError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, make_plan
from accel_bench.runner.sweep_point import missing_rounds
from accel_bench.scenario.experiment import Experiment
from accel_bench.store.database import Store
from accel_bench.store.sessions import SessionRecord
from accel_bench_advise.estimates.estimator import DeviceEstimate
from accel_bench_advise.recommendation.candidates import Candidate, Stored
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
"""Options that a repeated command replaces or drops, with their number of values."""


def more_rounds(
    ranked: Ranked,
    tokens: float | None,
    earlier: Stored,
    usd_per_hour: float | None,
) -> NextRun | None:
    """Return a command for more rounds of the best stack and the runner-up.

    None if there is no runner-up, or if the difference between them is already certain. `tokens` is
    the size of the job, and `earlier` the stored runs whose command is repeated. The new runs'
    dollars are their hours times `usd_per_hour`.
    """
    best, other = ranked.best, ranked.runner_up
    if best is None or other is None or ranked.sure:
        return None
    done = len(best.runs.speeds)
    rounds, why = rounds_needed(best, other, tokens)
    if rounds <= done:
        return NextRun(why=why, command="")
    words = _resumed(best, other, earlier.sessions, rounds)
    if words[1:2] != ["run"]:
        return NextRun(why=why, command=shlex.join(words))
    try:
        plan = _plan_of_run(words[2:])
    except AccelBenchError as error:
        why = f"{why}; the command cannot be planned here: {error}"
        return NextRun(why=why, command=shlex.join(words))
    what, share = _missing(plan, earlier.store, done > 0)
    whole = plan.seconds(earlier.store)
    hours = None if whole is None else whole * share / 3600
    return NextRun(
        why=f"{why}; {what}",
        command=shlex.join(words),
        minutes=None if hours is None else hours * 60,
        usd=hours * usd_per_hour if hours is not None and usd_per_hour else None,
    )


def _plan_of_run(words: Sequence[str]) -> Plan:
    """Return the plan for the arguments `words` of `accel-bench run`.

    Raises AccelBenchError if they cannot be planned on this machine.
    """
    app = typer.Typer()
    app.command()(run)
    command = typer.main.get_command(app)
    options = RunCommandOptions(**command.make_context("run", list(words)).params)
    draft = single_draft(options.files[0] if options.files else "quickstart", "recommend")
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        return make_plan(draft, read_machine(), run_request(replace(options, dry_run=True)))


def _missing(plan: Plan, store: Store | None, any_stored: bool) -> tuple[str, float]:
    """Return how many runs of a plan are not stored, in words, and as a fraction of its runs.

    `any_stored` is true if earlier rounds are stored; if none of them counts, the words say why.
    """
    points: dict[str, list[Experiment]] = {}
    for planned in plan.runnable:
        points.setdefault(planned.experiment.point, []).append(planned.experiment)
    rounds = plan.rounds
    ids = [planned.experiment.id for planned in plan.runnable]
    stored = store.results(experiment_ids=ids) if store else []
    missing = [len(missing_rounds(stored, needed, rounds)) for needed in points.values()]
    runs = sum(map(mul, missing, map(len, points.values())))
    what = f"the command runs {count(max(missing, default=0), 'round')}, {count(runs, 'run')}"
    if any_stored and not any(number < rounds for number in missing):
        what += ": no stored round counts, since the code or a setting has changed"
    return what, runs / (rounds * len(ids)) if ids else 0.0


def rounds_needed(best: Candidate, other: Candidate, tokens: float | None) -> tuple[int, str]:
    """Return how many rounds are needed to tell two candidates apart, and a sentence that says why.

    The number is 0 if no reasonable number of rounds would do.
    """
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


def first_run(found: DeviceEstimate, scenario: str) -> NextRun:
    """Return the command that measures an experiment, estimated in `found`, of a `scenario`."""
    estimator = found.estimator
    changed = {**dict(estimator.request.overrides), **found.settings}
    device = estimator.chosen.name if estimator.chosen else "this machine"
    return NextRun(
        why=f"nothing that is stored answers this; run it on {device}",
        command=shlex.join(["accel-bench", "run", scenario, *assignments(changed)]),
    )


def _resumed(
    best: Candidate, other: Candidate, sessions: Mapping[str, SessionRecord], rounds: int
) -> list[str]:
    """Return the command of the best candidate's last run, changed to resume it for more rounds.

    It runs both stacks up to `rounds` rounds. The list of its words is empty if the command is
    unknown or neither `run` nor `scaling`.
    """
    last = list(best.runs.counted.values())[-1]
    session = sessions.get(last.session)
    words = list(session.command) if session else []
    if len(words) < 2 or words[1] not in ("run", "scaling"):
        return []
    kept = without_options(words[2:], REPLACED)
    stacks = dict.fromkeys(
        candidate.row.stack for candidate in (best, other) if not candidate.is_baseline
    )
    only = [word for name in stacks for word in ("--only", name)]
    tags = dict.fromkeys(candidate.experiment.tag for candidate in (best, other))
    tagged = [] if "" in tags else [word for tag in tags for word in ("--tag", tag)]
    resumed = ["--resume", "--rounds", str(rounds)]
    if words[1] == "run" and best.experiment.point != other.experiment.point:
        resumed.append("--interleave")  # else drift would count as difference again
    return [Path(words[0]).name, words[1], *kept, *only, *tagged, *resumed]
