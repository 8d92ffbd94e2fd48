"""Selection of stored runs by words: ids, or names of stacks within a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, select

from accel_bench.analysis.aggregate import (
    ExperimentRuns,
    collect_experiment,
    collect_experiments,
)
from accel_bench.analysis.tables.experiment_keys import tell_apart
from accel_bench.analysis.wording import join_names
from accel_bench.errors import StoreError, did_you_mean
from accel_bench.result import Result
from accel_bench.store.database import SessionRecord, Store, begins_with
from accel_bench.store.queries import condition_of
from accel_bench.store.records import readable
from accel_bench.store.rows import stored_throughput
from accel_bench.store.schema import CHRONOLOGICAL, IMPORTED, RUNS

Runs = list[Result]
"""Runs of one experiment under one stack name."""

CommandKey = tuple[str, str]
"""Id of the first session of a command, with a scenario's name."""

CONDITION_SIGNS = ("=", "<", ">", "~", " in ", " is ")
"""Texts that mark a condition: no id and no stack name contains them."""

MOST_NAMED = 20
"""Largest number of stacks that an error names."""

NAMING = "run_id session scenario started_at stack audited_status".split()
"""Columns needed by a selection."""

NamedRun = Mapping[str, Any]
"""Columns of a run by which a word may name it, and its `command`."""


def command_of(session: str) -> str:
    """Return the id that all sessions of one command share: a session's id up to the dot."""
    return session.partition(".")[0]


def select_pairs(
    a: str, b: str, store: Store, store_b: Store | None = None
) -> list[tuple[Runs, Runs]]:
    """Return pairs of lists, the runs of A and of B, for each sweep point that both have.

    If A and B have one sweep point each, these are paired even if they differ. The words `a` and
    `b` are each a stack's name (`nf4`), a stack's name within sessions (`SESSION/nf4`, `/nf4` for
    all sessions), or the beginning of the id of an experiment or a run. A bare name means the
    newest command that ran both stacks, else the newest command that ran the stack. `store_b` is
    B's store, if it is another one. Raises StoreError for an unknown or ambiguous word, and if A
    and B share no point.
    """
    left, right = _candidates(store, a), _candidates(store_b or store, b)
    command = None
    if store_b is None:
        shared = {run["command"] for run in right}
        both = [run for run in left if run["command"] in shared]
        command = max(both, key=itemgetter("started_at"))["command"] if both else None
    at_a = _by_point(a, _runs_of(store, a, left, command))
    at_b = _by_point(b, _runs_of(store_b or store, b, right, command))
    if len(at_a) == len(at_b) == 1:
        return [(next(iter(at_a.values())), next(iter(at_b.values())))]
    points = [point for point in at_a if point in at_b]
    if not points:
        raise StoreError(f"{a!r} and {b!r} share no sweep point; name experiments by id")
    return [(at_a[point], at_b[point]) for point in points]


def select_runs(store: Store, text: str = "") -> Runs:
    """Return the runs that a text selects, or all runs for an empty text. The text is a scenario's
    name, a word as in `select_pairs`, or a condition as in `--where`. Raises StoreError if it
    selects no run."""
    if any(sign in text for sign in CONDITION_SIGNS):
        runs = store.results(condition_of(store, text))
        if not runs:
            raise StoreError(f"no run in {store.folder} fits the condition {text!r}")
        return runs
    named = _named(store, [RUNS.c.scenario == text] if text else [])
    if not text and not named:
        raise StoreError(f"there are no runs in {store.folder}")
    return _read(store, named or _candidates(store, text))


def select_experiments(
    store: Store, *conditions: ColumnElement[bool]
) -> tuple[list[ExperimentRuns], dict[str, str]]:
    """Return experiments of intact runs in the order of their first runs, and the name of each
    session's baseline by session id.

    Only one experiment's samples are in memory at a time, so that a store of any size can be read;
    most samples are not even parsed.
    """
    again = store.results(RUNS.c.replaces != "", *conditions)
    entries = []
    for rows in store.by_experiment(*conditions):
        speeds = {run["run_id"]: speed for run in rows if (speed := stored_throughput(run))}
        read = (readable(run, run["run_id"] not in speeds) for run in rows)
        if runs := [run for run in read if run is not None]:
            row, first = collect_experiment(runs, again, speeds), runs[0]
            lean = {run["run_id"]: run for run in rows if run["run_id"] in speeds}
            begin = (first.started_at, first.round, first.position, first.attempt, first.run_id)
            ran = {run.session for run in runs}
            entries.append((begin, ran, row.for_tables(partial(_with_samples, lean))))
    entries.sort(key=itemgetter(0))
    sessions = store.sessions({session for _, ran, _ in entries for session in ran})
    return [row for *_, row in entries], {session.id: session.baseline for session in sessions}


def result_by_experiment(store: Store, rows: Sequence[Mapping[str, Any]]) -> dict[str, Result]:
    """Return one result of each experiment by its id; `rows` are columns of runs. One result
    suffices, since all runs of an experiment share its settings."""
    # A completed run comes last, since it has the metrics too.
    ordered = sorted(rows, key=lambda row: row["tokens_per_second"] is not None)
    ids = list({row["experiment_id"]: row["run_id"] for row in ordered}.values())
    return {run.experiment.id: run for run in store.with_ids(ids)}


def _with_samples(rows: Mapping[str, Mapping[str, Any]], run: Result) -> Result:
    return (readable(rows[run.run_id]) if run.run_id in rows else None) or run


def _candidates(store: Store, word: str) -> list[NamedRun]:
    """Return the columns of all runs that a word may mean; their results are not read."""
    session, slash, name = word.rpartition("/")
    conditions = [RUNS.c.stack == (name if slash else word)]
    if slash and session:
        conditions.append(begins_with(RUNS.c.session, session))
    if runs := _named(store, conditions):
        # A bare name means what was measured; imported runs of it are named by session or id.
        measured = [] if slash else [run for run in runs if run["audited_status"] != IMPORTED]
        return measured or runs
    if slash:
        raise StoreError(
            f"no session in {store.folder} begins with {session!r} and has a stack called "
            f"{name!r} (`accel-bench results list` shows all)"
        )
    for condition in store.named_by(word):
        if runs := _named(store, [condition]):
            return runs
    raise _unknown(store, word)


def _unknown(store: Store, word: str) -> StoreError:
    """Return the error for a word that is neither a stack nor an id, with the known stacks."""
    query = select(RUNS.c.stack).distinct().order_by(RUNS.c.stack)
    stacks = [str(row["stack"]) for row in store.fetch(query)]
    if not stacks:
        return store.unknown(word)
    near = did_you_mean(word, stacks)
    if "did you mean" not in near:
        near = f"; there are {join_names(stacks, most=MOST_NAMED)}"
    return StoreError(f"no stack is called {word!r}{near}; {store.unknown(word)}")


def _named(store: Store, conditions: Sequence[ColumnElement[bool]]) -> list[NamedRun]:
    query = select(*(RUNS.c[name] for name in NAMING)).where(*conditions)
    rows = store.fetch(query.order_by(*CHRONOLOGICAL))
    return [{**row, "command": (command_of(row["session"]), row["scenario"])} for row in rows]


def _read(store: Store, named: Sequence[NamedRun]) -> Runs:
    """Return the results of the given runs. Raises StoreError if no result can be read."""
    ids = [run["run_id"] for run in named]
    results = store.with_ids(ids)
    if not results:
        raise StoreError(f"none of {', '.join(ids[:10])} can be read, since they are damaged")
    return results


def _of_one_command(word: str, runs: list[NamedRun], command: CommandKey | None) -> list[NamedRun]:
    """Return `runs`; if `word` is a stack's name, only those of `command` or the newest command."""
    if any(run["stack"] != word for run in runs):
        return runs
    command = command or max(runs, key=itemgetter("started_at"))["command"]
    return [run for run in runs if run["command"] == command]


def _runs_of(store: Store, word: str, runs: list[NamedRun], command: CommandKey | None) -> Runs:
    """Return the results of `runs`, which a word may mean. If the word is only a stack's name,
    return those of one command, and of the earlier rounds that the command resumed."""
    results = _read(store, _of_one_command(word, runs, command))
    if any(run["stack"] != word for run in runs):
        return results
    return with_resumed(store, results, store.sessions({run.session for run in results}))


def with_resumed(store: Store, runs: Runs, sessions: Sequence[SessionRecord]) -> Runs:
    """Return `runs`, preceded by the earlier runs that a session with `--resume` continued."""
    if not any("--resume" in session.command for session in sessions):
        return runs
    own = {run.session for run in runs}
    stacks = {run.experiment.stack.name for run in runs}
    first = min(run.started_at for run in runs)
    results = store.results(
        RUNS.c.started_at < first, experiment_ids={run.experiment.id for run in runs}
    )
    earlier = (run for run in results if run.session not in own)
    return [*(run for run in earlier if run.experiment.stack.name in stacks), *runs]


def _by_point(word: str, runs: Runs) -> dict[str, Runs]:
    """Return runs by sweep point. Raises StoreError if a point has runs of several experiments."""
    points: dict[str, dict[tuple[str, str, str], Runs]] = {}
    for run in runs:
        name = (run.experiment.scenario.name, run.experiment.stack.name, run.experiment.id)
        points.setdefault(run.experiment.point, {}).setdefault(name, []).append(run)
    for meanings in points.values():
        if len(meanings) > 1:
            rows = tell_apart(collect_experiments([runs[0] for runs in meanings.values()]))
            listed = join_names([f"{row.name}, {row.planned.experiment.id}" for row in rows])
            raise StoreError(
                f"{word!r} means several experiments: {listed}; give an id, or SESSION/STACK"
            )
    return {point: next(iter(meanings.values())) for point, meanings in points.items()}
