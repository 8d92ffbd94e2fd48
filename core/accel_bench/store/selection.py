"""Select the stored runs that two words mean: ids, or names of stacks within a session."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.documents.canonical import canonical_json
from accel_bench.errors import StoreError
from accel_bench.result import Result
from accel_bench.store.database import Row, Store

Runs = list[Result]
"""Runs of one experiment, by one name of its stack."""


def select_pairs(
    a: str, b: str, store: Store, store_b: Store | None = None
) -> list[tuple[Runs, Runs]]:
    """Return the runs of A and B for each sweep point that both have. Raises StoreError.

    A word is the name of a stack (`nf4`), the same within sessions (`SESSION/nf4`, `/nf4` for all
    of them), or the beginning of the id of an experiment or a run. A bare name means the newest
    command that ran both, else the newest one that ran it. `store_b` is where B lies, if elsewhere.
    """
    left = _candidates(store, a)
    right = _candidates(store_b or store, b)
    if store_b is None:
        left, right = _of_one_command((a, left), (b, right))
    left, right = _newest(a, left), _newest(b, right)
    return _by_point((a, left), (b, right))


def _candidates(store: Store, word: str) -> Runs:
    """Return all runs that the word may mean."""
    session, slash, name = word.rpartition("/")
    rows = [row for row in store.rows() if not row.corrupt]
    named = [row for row in rows if row.stack == (name if slash else word)]
    if slash:
        named = [row for row in named if row.session.startswith(session)]
        if not named:
            raise StoreError(
                f"no session in {store.folder} begins with {session!r} and has a stack called "
                f"{name!r} (`accel-bench results list` shows all)"
            )
    return _results(store, named) if named else store.find(word)


def _results(store: Store, rows: Sequence[Row]) -> Runs:
    wanted = {row.run_id for row in rows}
    found = store.results(experiment_ids={row.experiment_id for row in rows})
    return [result for result in found if result.run_id in wanted]


def _is_name(word: str, runs: Runs) -> bool:
    """Return whether the word is a bare name of a stack, which means one command."""
    return all(result.experiment.stack.name == word for result in runs)


def _of_one_command(a: tuple[str, Runs], b: tuple[str, Runs]) -> tuple[Runs, Runs]:
    """Keep the runs of the newest command that ran both, where the words are bare names."""
    shared = {_command(run) for run in b[1]}
    both = [run for run in a[1] if _command(run) in shared]
    newest = _command(max(both, key=lambda run: run.started_at)) if both else None
    left, right = (
        [run for run in runs if newest in (None, _command(run))] if _is_name(word, runs) else runs
        for word, runs in (a, b)
    )
    return left, right


def _newest(word: str, runs: Runs) -> Runs:
    """Return the runs of the newest command, for a bare name."""
    if not _is_name(word, runs):
        return runs
    newest = _command(max(runs, key=lambda run: run.started_at))
    return [run for run in runs if _command(run) == newest]


def _command(run: Result) -> tuple[str, str]:
    """Return the command and scenario of a run: a gate's looks are sessions of one command."""
    return run.session.partition(".")[0], run.experiment.scenario.name


def _by_point(a: tuple[str, Runs], b: tuple[str, Runs]) -> list[tuple[Runs, Runs]]:
    """Return a pair for each sweep point, or of two experiments whatever their points."""
    left, right = _grouped(a), _grouped(b)
    if len(left) == len(right) == 1:
        return [(next(iter(left.values())), next(iter(right.values())))]
    shared = [point for point in left if point in right]
    if not shared:
        raise StoreError(f"{a[0]!r} and {b[0]!r} share no sweep point; name experiments by id")
    return [(left[point], right[point]) for point in shared]


def _grouped(selected: tuple[str, Runs]) -> dict[str, Runs]:
    """Group runs by sweep point; each must have one experiment."""
    word, runs = selected
    found: dict[str, dict[tuple[str, str, str], Runs]] = {}
    for run in runs:
        name = (run.experiment.scenario.name, run.experiment.stack.name, run.experiment.id)
        point = canonical_json(run.experiment.sweep)
        found.setdefault(point, {}).setdefault(name, []).append(run)
    for meanings in found.values():
        if len(meanings) > 1:
            listed = ", ".join(f"{stack} ({id} of {name})" for name, stack, id in meanings)
            raise StoreError(
                f"{word!r} means several experiments: {listed}; give an id, or SESSION/STACK"
            )
    return {point: next(iter(meanings.values())) for point, meanings in found.items()}
