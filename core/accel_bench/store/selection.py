"""Select the stored runs that two words mean: ids, or names of stacks within a session."""

from __future__ import annotations

from accel_bench.errors import StoreError
from accel_bench.result import Result
from accel_bench.store.database import Store

Runs = list[Result]
"""Runs of one experiment, by one name of its stack."""

Command = tuple[str, str]
"""Id of the first session of a command, and a scenario."""


def select_pairs(
    a: str, b: str, store: Store, store_b: Store | None = None
) -> list[tuple[Runs, Runs]]:
    """Return the runs of A and B for each sweep point that both have. Raises StoreError.

    A word is the name of a stack (`nf4`), the same within sessions (`SESSION/nf4`, `/nf4` for all
    of them), or the beginning of the id of an experiment or a run. A bare name means the newest
    command that ran both, else the newest one that ran it. `store_b` is where B lies, if elsewhere.
    """
    left, right = _candidates(store, a), _candidates(store_b or store, b)
    command = None
    if store_b is None:
        shared = {_command(run) for run in right}
        both = [run for run in left if _command(run) in shared]
        command = _command(max(both, key=_start)) if both else None
    at_a = _by_point(a, _of_one_command(a, left, command))
    at_b = _by_point(b, _of_one_command(b, right, command))
    if len(at_a) == len(at_b) == 1:
        return [(next(iter(at_a.values())), next(iter(at_b.values())))]
    points = [point for point in at_a if point in at_b]
    if not points:
        raise StoreError(f"{a!r} and {b!r} share no sweep point; name experiments by id")
    return [(at_a[point], at_b[point]) for point in points]


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
    if not named:
        return store.find(word)
    ids = {row.run_id for row in named}
    results = store.results(experiment_ids={row.experiment_id for row in named})
    runs = [result for result in results if result.run_id in ids]
    # A bare name means what was measured; imported runs of that name are named by session or id.
    measured = [result for result in runs if not result.imported]
    return runs if slash else measured or runs


def _of_one_command(word: str, runs: Runs, command: Command | None) -> Runs:
    """Return the runs of a command, else of the newest, where the word is a stack's bare name."""
    if any(run.experiment.stack.name != word for run in runs):
        return runs
    command = command or _command(max(runs, key=_start))
    return [run for run in runs if _command(run) == command]


def _command(run: Result) -> Command:
    # A gate's looks are sessions of one command: their ids differ behind the dot.
    return run.session.partition(".")[0], run.experiment.scenario.name


def _start(run: Result) -> str:
    return run.started_at


def _by_point(word: str, runs: Runs) -> dict[str, Runs]:
    """Group runs by sweep point; each must have one experiment."""
    found: dict[str, dict[tuple[str, str, str], Runs]] = {}
    for run in runs:
        name = (run.experiment.scenario.name, run.experiment.stack.name, run.experiment.id)
        found.setdefault(run.experiment.point, {}).setdefault(name, []).append(run)
    for meanings in found.values():
        if len(meanings) > 1:
            listed = ", ".join(f"{stack} ({id} of {name})" for name, stack, id in meanings)
            raise StoreError(
                f"{word!r} means several experiments: {listed}; give an id, or SESSION/STACK"
            )
    return {point: next(iter(meanings.values())) for point, meanings in found.items()}
