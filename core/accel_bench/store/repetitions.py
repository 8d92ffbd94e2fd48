"""Read which stored sessions repeat others by their bundle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from sqlalchemy import select

from accel_bench.analysis.repetitions import Repetition
from accel_bench.result import Result
from accel_bench.store.database import SessionRecord, Store
from accel_bench.store.schema import SESSIONS

REPEATED = "repeated_sessions"
"""Key of a session's document: ids of the sessions in the bundle that it repeats."""

MOST_REPETITIONS = 20
"""Repetitions of a session that are read, the newest."""


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
    machines = _machines(results)
    newest: dict[object, Repetition] = {}
    for sessions in list(_together(repeating, repeated))[-MOST_REPETITIONS:]:
        found = [run for session in sessions for run in store.results(session=session.id)]
        if found:
            theirs = _machines(found)
            place: object = theirs or sessions[-1].id
            newest[place] = Repetition(found, bool(theirs & machines))
    return list(newest.values())


def _together(
    repeating: Iterable[SessionRecord], repeated: set[str]
) -> Iterator[list[SessionRecord]]:
    """Yield the sessions of each repetition: one with `--resume` goes on with all before it."""
    by_bundle: dict[str, list[list[SessionRecord]]] = {}
    for session in repeating:
        ids = session.document.get(REPEATED)
        if not isinstance(ids, list) or repeated.isdisjoint(map(str, ids)):
            continue
        groups = by_bundle.setdefault(str(session.document.get("repeats")), [])
        if "--resume" in session.command:
            groups[:] = [[*chain(*groups), session]]
        else:
            groups.append([session])
    for groups in by_bundle.values():
        yield from groups


def _machines(results: Iterable[Result]) -> frozenset[str]:
    """Return the names of the machines that took part."""
    return frozenset(result.machine.host for result in results if result.machine)
