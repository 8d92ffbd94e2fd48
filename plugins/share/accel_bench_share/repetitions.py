"""Reproductions of stored sessions by sessions that repeat their bundles, shown on report pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import select

from accel_bench.analysis.statistics.verdict import Finding
from accel_bench.analysis.wording import count
from accel_bench.result import Result
from accel_bench.store.database import SessionRecord, Store
from accel_bench.store.schema import RUNS, SESSIONS
from accel_bench.store.sessions import REPEATED
from accel_bench_share.stack_reproduction import (
    REPRODUCED,
    reproduce_stacks,
    row_key,
    summarize_results,
)

MOST_MACHINES = 20
"""Maximum number of machines whose reproductions are read, the most recent ones."""


class Repetition(NamedTuple):
    """Newest reproduction of a session on one machine."""

    results: Sequence[Result]
    """Runs of the reproduction."""

    same_machine: bool
    """True if the reproduction ran on a host of the original session."""


class StackRepetition(NamedTuple):
    """Verdict on a stack at a sweep point, by one reproduction."""

    verdict: Finding
    same_machine: bool


class Repetitions(NamedTuple):
    """Newest reproductions of the sessions of one command, one from each machine."""

    found: Sequence[Repetition]

    def badges(
        self, results: Sequence[Result], baseline: str
    ) -> dict[tuple[str, str], tuple[str, str]]:
        """Return by stack and sweep point a badge's text, and a text that explains the badge.

        `results` are the runs of the command, and `baseline` is the name of its baseline. The
        baseline has no badge, since it has no ratio to reproduce.
        """
        by_row: dict[tuple[str, str], list[StackRepetition]] = {}
        for key, verdict in self._verdicts(results, baseline):
            by_row.setdefault(key, []).append(verdict)
        return {key: _badge(repetitions) for key, repetitions in by_row.items()}

    def _verdicts(
        self, results: Sequence[Result], baseline: str
    ) -> Iterator[tuple[tuple[str, str], StackRepetition]]:
        for repetition in self.found:
            here = summarize_results(repetition.results, baseline)
            for row in reproduce_stacks(results, here, repetition.results):
                if row.verdict is not None:
                    judged = StackRepetition(row.verdict, repetition.same_machine)
                    yield row_key(row.stack, row.sweep), judged


def read_repetitions(store: Store, commands: Sequence[Sequence[Result]]) -> list[Repetitions]:
    """Return the stored repetitions of each command, whose own runs `commands` lists."""
    query = select(SESSIONS.c.id).where(SESSIONS.c.document.contains(f'"{REPEATED}"'))
    ids = [row["id"] for row in store.fetch(query)]
    repeating = store.sessions(ids) if ids else []
    return [Repetitions(_of_command(store, results, repeating)) for results in commands]


def _badge(repetitions: Sequence[StackRepetition]) -> tuple[str, str]:
    """Return the text of a badge, and an explanation that counts the verdicts on all machines."""
    machines = count(len(repetitions), "machine")
    counts = Counter(repetition.verdict for repetition in repetitions)
    verdicts = ", ".join(
        f"{counts[verdict]} {word}" for verdict, word in REPRODUCED.items() if counts[verdict]
    )
    where = (
        ", the session's own among them"
        if any(repetition.same_machine for repetition in repetitions)
        else ""
    )
    good = counts["holds"]
    return (
        f"reproduced on {'' if good == len(repetitions) else f'{good} of '}{machines}",
        f"its bundle was repeated on {machines}{where}; the newest of each: {verdicts}",
    )


def _of_command(
    store: Store, results: Sequence[Result], repeating: Sequence[SessionRecord]
) -> list[Repetition]:
    """Return each machine's newest reproduction of the sessions of these runs.

    `repeating` are all stored sessions that reproduce other sessions.
    """
    repeated = {result.session for result in results}
    own = {result.machine.host for result in results if result.machine}
    newest = []
    for host, repetitions in list(_by_machine(store, repeating, repeated).items())[-MOST_MACHINES:]:
        read = (store.results(RUNS.c.session.in_(ids)) for ids in reversed(repetitions))
        if runs := next(filter(None, read), None):
            newest.append(Repetition(runs, host in own))
    return newest


def _by_machine(
    store: Store, repeating: Sequence[SessionRecord], repeated: set[str]
) -> dict[str, list[list[str]]]:
    """Return by host the reproductions of the sessions `repeated`, each as a list of session ids.

    The newest is last. A session with `--resume` continues all earlier ones that repeat its bundle
    on its host. A session on an unknown host counts as a machine of its own.
    """
    theirs = [session for session in repeating if _repeats(session, repeated)]
    hosts = _hosts(store, [session.id for session in theirs])
    by_host: dict[str, list[list[str]]] = {}
    of_bundle: dict[tuple[str, str], list[str]] = {}
    for session in theirs:
        host = hosts.get(session.id, session.id)
        before = of_bundle.setdefault((host, str(session.document.get("repeats"))), [])
        before.append(session.id)
        # The machine that repeated it last comes last.
        repetitions = by_host[host] = by_host.pop(host, [])
        repetitions.append([*before] if "--resume" in session.command else [session.id])
    return by_host


def _repeats(session: SessionRecord, repeated: set[str]) -> bool:
    """Return whether a session reproduces a bundle with at least one of the sessions `repeated`."""
    ids = session.document.get(REPEATED)
    return isinstance(ids, list) and not repeated.isdisjoint(map(str, ids))


def _hosts(store: Store, sessions: Sequence[str]) -> dict[str, str]:
    """Return host names by session id, without sessions whose runs name no host."""
    of_these = RUNS.c.session.in_(sessions), RUNS.c.host.is_not(None)
    query = select(RUNS.c.session, RUNS.c.host).where(*of_these).distinct()
    return {row["session"]: row["host"] for row in store.fetch(query)}
