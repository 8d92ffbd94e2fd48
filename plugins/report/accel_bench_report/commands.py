"""Selection of a report's runs; only runs of the newest `run` commands are read with samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import ColumnElement, and_, or_, select

from accel_bench.errors import StoreError
from accel_bench.plugins.doors import find_entries
from accel_bench.result import Result, Status
from accel_bench.scenario.uses import TOKENS
from accel_bench.store.database import SessionRecord, Store, begins_with
from accel_bench.store.queries import condition_of, leave_out_damaged
from accel_bench.store.rows import counted, origin_of
from accel_bench.store.schema import CHRONOLOGICAL, RUNS
from accel_bench.store.selection import CommandKey, command_of, result_by_experiment, with_resumed

MOST_RUNS = 400
"""Maximum number of runs that a page reads with their samples; a single command may exceed it."""

MOST_COMMANDS = 8
"""Maximum number of `run` commands whose runs are all read."""

MOST_OF_ONE = 1000
"""Maximum number of runs of one command that are read with their samples."""


class RunLine(NamedTuple):
    """Columns of one stored run in the results store; unknown values are None."""

    command: str
    run_id: str
    session: str
    experiment_id: str
    scenario: str
    stack: str
    sweep: str
    tag: str | None
    round: int
    attempt: int
    status: str
    started_at: str
    tokens_per_second: float | None
    peak_memory_bytes: int | None
    device: str | None
    origin: str = "measured"
    """`measured`, `exported` or `imported`."""

    series: str = ""
    """Identifier shared by runs of the same work on the same kind of device; empty if unknown."""

    counts: str = TOKENS
    """Unit of work that is counted as tokens: `tokens`, `calls`, ..."""

    median_step_seconds: float | None = None

    @property
    def completed(self) -> bool:
        """True if the run ended as `ok` or `degraded`, so that its figures are valid."""
        return self.status in (Status.OK.value, Status.DEGRADED.value)


NEEDED = (*RunLine._fields, "audited_status", "options")
COLUMNS = [RUNS.c[name] for name in NEEDED if name in RUNS.c]
"""Columns of the store that are read for runs shown without their samples."""


REPETITIONS = "accel_bench.repetitions"
"""Entry-point group of functions that find other people's reproductions of stored sessions."""


class Repetitions(Protocol):
    """Reproductions of a command's sessions by other people, which an entry point's function
    finds."""

    def badges(
        self, results: Sequence[Result], baseline: str
    ) -> Mapping[tuple[str, str], tuple[str, str]]:
        """Return a short badge text and its explanation by reproduced stack and sweep point.

        `results` are the runs of the command, and `baseline` is the name of its baseline.
        """


class CommandRuns(NamedTuple):
    """Runs of a scenario from one call of accel-bench, and the record of its first session."""

    id: str
    session: SessionRecord | None
    results: list[Result]

    repetitions: Repetitions | None = None
    """Other people's reproductions of the sessions; None without an entry point for them."""


def select_commands(
    store: Store, words: Sequence[str] = (), where: str | None = None
) -> tuple[list[CommandRuns], list[RunLine], list[str]]:
    """Return the newest commands with their selected runs, the columns of all selected runs, and
    notes on runs that are damaged or shown without samples.

    A word is the name of a scenario, which selects its newest command, or a prefix of the id of a
    session, experiment or run, which selects all commands that contain it. `where` is a condition
    on runs. Without words and condition the newest command is selected. Raises StoreError if a word
    is unknown, or if no run is selected.
    """
    conditions = [condition_of(store, where)] if where is not None else []
    if words or where is None:
        keys = [key for word in words for key in _keys_of(store, word)] or _newest(store)
        conditions.append(or_(*map(_of_command, keys)))
    damaged = leave_out_damaged(store, conditions)
    lines = list(_lines(store, conditions))
    if not lines:
        raise StoreError(f"no run in {store.folder} is selected (`accel-bench results list`)")
    keys = _in_detail(lines)
    commands = [_command(store, key, conditions) for key in keys]
    known = _with_repetitions(store, [command for command in commands if command.results])
    return known, lines, [*_notes(damaged, lines, keys)]


def _keys_of(store: Store, word: str) -> list[CommandKey]:
    named = _keys(store, RUNS.c.scenario == word)
    if named:
        return named[-1:]
    keys = next(filter(None, (_keys(store, condition) for condition in store.named_by(word))), [])
    if not keys:
        raise store.unknown(word)
    return keys


def _keys(store: Store, *conditions: ColumnElement[bool]) -> list[CommandKey]:
    query = select(RUNS.c.session, RUNS.c.scenario).where(*conditions).order_by(*CHRONOLOGICAL)
    keys = ((command_of(row["session"]), row["scenario"]) for row in store.fetch(query))
    return list(dict.fromkeys(keys))


def _newest(store: Store) -> list[CommandKey]:
    query = select(RUNS.c.session).order_by(RUNS.c.started_at.desc()).limit(1)
    sessions = [row["session"] for row in store.fetch(query)]
    if not sessions:
        raise StoreError(f"there are no runs in {store.folder}: `accel-bench run` makes some")
    return _keys(store, begins_with(RUNS.c.session, command_of(sessions[0])))


def _of_command(key: CommandKey) -> ColumnElement[bool]:
    command, scenario = key
    further = begins_with(RUNS.c.session, f"{command}.")
    return and_(or_(RUNS.c.session == command, further), RUNS.c.scenario == scenario)


def _lines(store: Store, conditions: Sequence[ColumnElement[bool]]) -> Iterator[RunLine]:
    query = select(*COLUMNS).where(*conditions).order_by(*CHRONOLOGICAL)
    rows = list(store.fetch(query))
    # What an id stands for does not differ between runs: one of each is read.
    known = {name: result.experiment for name, result in result_by_experiment(store, rows).items()}
    series = {name: experiment.series for name, experiment in known.items()}
    for row in rows:
        yield RunLine(
            command=command_of(str(row["session"])),
            status=str(row["audited_status"] or row["status"]),
            counts=counted(row["options"]),
            origin=origin_of(row),
            series=series.get(row["experiment_id"], str(row["experiment_id"])),
            **{key: row[key] for key in RunLine._fields if key in row and key != "status"},
        )


def _in_detail(lines: Sequence[RunLine]) -> list[CommandKey]:
    """Return the commands whose runs are read with their samples, the newest first.

    They are at most `MOST_COMMANDS` commands with at most `MOST_RUNS` runs in sum; the newest is
    included if it has at most `MOST_OF_ONE` runs.
    """
    runs: dict[CommandKey, int] = {}
    for line in reversed(lines):
        key = (line.command, line.scenario)
        runs[key] = runs.get(key, 0) + 1
    chosen: list[CommandKey] = []
    total = 0
    for key, number in list(runs.items())[:MOST_COMMANDS]:
        total += number
        if total > (MOST_RUNS if chosen else MOST_OF_ONE):
            break
        chosen.append(key)
    return chosen


def _command(
    store: Store, key: CommandKey, conditions: Sequence[ColumnElement[bool]]
) -> CommandRuns:
    results = store.results(_of_command(key), *conditions)
    records = store.sessions({result.session for result in results})
    whole = with_resumed(store, results, records)
    first = records[0] if records else None
    return CommandRuns(key[0], first, whole)


def _with_repetitions(store: Store, commands: list[CommandRuns]) -> list[CommandRuns]:
    """Return the commands with other people's reproductions, if an entry point can find them."""
    entry = next(iter(find_entries(REPETITIONS, "repetition").values()), None)
    if entry is None:
        return commands
    read = entry.load()
    with entry.blamed():
        repeated = read(store, [command.results for command in commands])
    return [
        command._replace(repetitions=own) for command, own in zip(commands, repeated, strict=True)
    ]


def _notes(
    damaged: Sequence[str], lines: Sequence[RunLine], keys: Sequence[CommandKey]
) -> Iterator[str]:
    if damaged:
        yield f"left out as corrupt: {', '.join(damaged)}"
    others = {(line.command, line.scenario) for line in lines} - set(keys)
    if others:
        yield (
            f"{len(keys)} of {len(keys) + len(others)} commands are shown in detail, the newest; "
            "of the others the figures that are stored with each run, without samples"
        )
