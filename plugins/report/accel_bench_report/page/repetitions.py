"""What those found who repeated a session by its bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select

from accel_bench.analysis.reproduction import (
    ReproductionVerdict,
    reproduce_stacks,
    row_key,
    summarize_results,
)
from accel_bench.analysis.wording import count
from accel_bench.result import Result
from accel_bench.store.database import SessionRecord, Store
from accel_bench.store.schema import RUNS, SESSIONS
from accel_bench.store.sessions import REPEATED

VERDICTS: tuple[ReproductionVerdict, ...] = ("reproduced", "cannot tell", "not reproduced")
"""Verdicts in the order in which they are shown."""


MOST_MACHINES = 20
"""Machines whose repetitions of a session are read: those that repeated it last."""


class Repetition(NamedTuple):
    """The newest repetition of a session on a machine."""

    results: Sequence[Result]
    """Its runs."""

    same_machine: bool
    """True if it ran where the repeated session did."""


class StackRepetition(NamedTuple):
    """What one repetition found of a stack at a sweep point."""

    verdict: ReproductionVerdict
    same_machine: bool


def repeating_sessions(store: Store) -> list[SessionRecord]:
    """Return the sessions that repeat a bundle, the oldest first."""
    query = select(SESSIONS.c.id).where(SESSIONS.c.document.contains(f'"{REPEATED}"'))
    ids = [row["id"] for row in store.fetch(query)]
    return store.sessions(ids) if ids else []


def read_repetitions(
    store: Store, results: Sequence[Result], repeating: Sequence[SessionRecord]
) -> list[Repetition]:
    """Return the repetitions of the sessions of these runs, one for each machine, its newest."""
    repeated = {result.session for result in results}
    own = {result.machine.host for result in results if result.machine}
    found = []
    for host, repetitions in list(_by_machine(store, repeating, repeated).items())[-MOST_MACHINES:]:
        read = (store.results(RUNS.c.session.in_(ids)) for ids in reversed(repetitions))
        if runs := next(filter(None, read), None):
            found.append(Repetition(runs, host in own))
    return found


def _by_machine(
    store: Store, repeating: Sequence[SessionRecord], repeated: set[str]
) -> dict[str, list[list[str]]]:
    """Return the sessions of each repetition, the newest last, by the host that they ran on.

    One with `--resume` goes on with all before it that repeat its bundle on its host. What ran on
    an unknown host stands alone.
    """
    theirs = [session for session in repeating if _repeats(session, repeated)]
    hosts = _hosts(store, [session.id for session in theirs])
    found: dict[str, list[list[str]]] = {}
    of_bundle: dict[tuple[str, str], list[str]] = {}
    for session in theirs:
        host = hosts.get(session.id, session.id)
        before = of_bundle.setdefault((host, str(session.document.get("repeats"))), [])
        before.append(session.id)
        # The machine that repeated it last comes last.
        repetitions = found[host] = found.pop(host, [])
        repetitions.append([*before] if "--resume" in session.command else [session.id])
    return found


def _repeats(session: SessionRecord, repeated: set[str]) -> bool:
    """Return whether a session repeats a bundle that holds one of these sessions."""
    ids = session.document.get(REPEATED)
    return isinstance(ids, list) and not repeated.isdisjoint(map(str, ids))


def _hosts(store: Store, sessions: Sequence[str]) -> dict[str, str]:
    """Return the host of each session, where a run names it."""
    of_these = RUNS.c.session.in_(sessions), RUNS.c.host.is_not(None)
    query = select(RUNS.c.session, RUNS.c.host).where(*of_these).distinct()
    return {row["session"]: row["host"] for row in store.fetch(query)}


def judge_repetitions(
    results: Sequence[Result], repetitions: Sequence[Repetition], baseline: str
) -> dict[tuple[str, str], list[StackRepetition]]:
    """Compare a session's runs with each repetition; return verdicts by `row_key`.

    The baseline has none: it is what ratios are to.
    """
    found: dict[tuple[str, str], list[StackRepetition]] = {}
    for one in repetitions:
        here = summarize_results(one.results, baseline)
        for row in reproduce_stacks(results, here, one.results):
            if row.verdict is not None:
                judged = StackRepetition(row.verdict, one.same_machine)
                found.setdefault(row_key(row.stack, row.sweep), []).append(judged)
    return found


def repetition_badge(repetitions: Sequence[StackRepetition]) -> str:
    """Return `reproduced on 2 machines`, or `on 1 of 3 machines` where not all found the same."""
    good = sum(one.verdict == "reproduced" for one in repetitions)
    of = "" if good == len(repetitions) else f"{good} of "
    return f"reproduced on {of}{count(len(repetitions), 'machine')}"


def repetition_text(repetitions: Sequence[StackRepetition]) -> str:
    """Return what the newest repetition of each machine found, and whether one is the session's."""
    counts = Counter(one.verdict for one in repetitions)
    verdicts = ", ".join(f"{counts[one]} {one}" for one in VERDICTS if counts[one])
    where = ", the session's own among them" if any(one.same_machine for one in repetitions) else ""
    machines = count(len(repetitions), "machine")
    return f"its bundle was repeated on {machines}{where}; the newest of each: {verdicts}"
