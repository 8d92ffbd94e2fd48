"""Benchmark: runs each plan in a session and summarizes the results, for commands and Python."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count, pairwise
from statistics import fmean
from typing import Any, NamedTuple

from accel_bench.analysis.aggregate import BY_THE_USER, StopReason
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.statistics.sequential import look_sizes
from accel_bench.analysis.statistics.verdict import MOST_ROUNDS
from accel_bench.analysis.wording import duration
from accel_bench.errors import StoreError
from accel_bench.launcher import Allocation
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan
from accel_bench.result import Result, Status
from accel_bench.runner.interrupted import open_results
from accel_bench.runner.session import Reporter, Session, new_id
from accel_bench.store.database import Store

JOB = "ACCEL_BENCH_JOB"
"""Environment variable with a job's name: the same job, started again, continues its sessions."""

WITHIN = 180.0
"""Default seconds in which `measure.rounds: auto` may add rounds."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Settings for running plans, the same for all plans of a command."""

    results: str
    """Path of the results folder, or address of a database."""

    machine: Machine
    allocation: Allocation | None = None

    command: tuple[str, ...] = ()
    """Command-line arguments of the program, for the record."""

    retries: int = 0
    """Number of retries of a run whose failure may be transient."""

    resume: bool = False
    """True to count rounds that are already complete in the store."""

    session: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each `Session`, by name."""

    within: float = WITHIN
    """Seconds in which `measure.rounds: auto` may add rounds."""

    progress: Callable[[], AbstractContextManager[Reporter]]
    """Function that returns a context with the reporter of progress, open while sessions run."""


class Measured(NamedTuple):
    """Results of all plans of a benchmark, also of one that was interrupted."""

    summaries: list[Summary]
    sessions: list[Session]
    results: list[Result]
    """Runs that the summaries count, with those of earlier sessions."""

    store: Store
    """Store of the results, open until the benchmark returns."""


def run_plans(
    plans: Sequence[Plan], benchmark: Benchmark, on_end: Callable[[Measured], None]
) -> None:
    """Run each plan in a session; then, even after an error, call `on_end` with the results. Raises
    StoreError if results cannot be stored, KeyboardInterrupt once the interrupted run is stored."""
    by_plan: list[tuple[Plan, list[Session]]] = []
    stopped = BY_THE_USER
    with open_results(benchmark.results, write=True) as store:
        try:
            with benchmark.progress() as reporter:
                new_session = session_maker(benchmark, store, reporter)
                by_plan += [(plan, [new_session(**benchmark.session)]) for plan in plans]
                for plan, own in by_plan:
                    _run_looks(plan, own, new_session, benchmark)
        except StoreError as error:
            stopped = StopReason(Status.INFRA_ERROR, (str(error),))
            raise
        finally:
            results = [own[-1].results(plan) for plan, own in by_plan]
            summaries = [
                plan.summarize(runs, stopped)
                for (plan, _), runs in zip(by_plan, results, strict=True)
            ]
            sessions = [session for _, own in by_plan for session in own]
            on_end(Measured(summaries, sessions, [run for runs in results for run in runs], store))


def _run_looks(
    plan: Plan, sessions: list[Session], new_session: Callable[..., Session], benchmark: Benchmark
) -> None:
    """Run a plan in a session, and inconclusive stacks with `rounds: auto` in further sessions.

    `sessions` holds the first session; the further ones are added to it. Each further session ends
    with a look, an interim analysis of a group-sequential test; `look_sizes` gives the number of
    rounds. No session starts that would end more than `within` seconds after the first began.
    """
    started = time.monotonic()
    sessions[0].run_plan(plan)
    if not (plan.adds_rounds and plan.runnable):
        return
    settings = {**benchmark.session, "repeat_round": None}
    results = sessions[0].results(plan)
    summary = plan.summarize(results)
    more = plan
    for before, rounds in pairwise(look_sizes(plan.rounds, MOST_ROUNDS)):
        more, last = plan.of_open(summary, rounds, more), more
        if not more.runnable:
            more = last
            continue
        needed = (rounds - before) * len(more.runnable) * fmean(run.seconds for run in results)
        if time.monotonic() - started + needed > benchmark.within:
            time_left = f"--within {duration(benchmark.within)} has no time for {rounds} rounds"
            sessions[0].reporter.on_warning(f"verdicts stay open: {time_left}")
            return
        sessions.append(new_session(after=sessions, **settings))
        sessions[-1].run_plan(more)
        results = sessions[-1].results(plan)
        summary = plan.summarize(results)


def session_maker(benchmark: Benchmark, store: Store, reporter: Reporter) -> Callable[..., Session]:
    """Return the function that creates the sessions of a command, whose ids differ by a number.

    The function takes fields of `Session`. A session continues the earlier sessions of the same job
    that have the same number; with `continues`, it continues all sessions of the job and the listed
    ones. With `after`, a list of sessions, it adds rounds to the results of those sessions.
    """
    first, numbers, job = new_id(), count(1), os.environ.get(JOB, "")
    before = [row for row in store.sessions() if row.document.get("job") == job] if job else []

    def new_session(
        continues: Sequence[str] | None = None, after: Sequence[Session] = (), **settings: Any
    ) -> Session:
        number = next(numbers)
        suffix = "" if number == 1 else f".{number}"
        of_number = [
            row.id
            for row in before
            if str(row.document.get("look_of") or row.id)[len(first) :] == suffix
        ]
        if after:
            of_number = [*after[0].continues, *(session.id for session in after)]
        elif continues is not None:
            of_number = [*(row.id for row in before), *continues]
        return Session(
            store,
            benchmark.machine,
            reporter,
            retries=benchmark.retries,
            command=benchmark.command,
            allocation=benchmark.allocation,
            continues=tuple(of_number),
            look_of=after[0].id if after else "",
            job=job,
            id=f"{first}{suffix}",
            **{"resume": benchmark.resume, **settings},
        )

    return new_session
