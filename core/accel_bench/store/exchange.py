"""Exports of stored runs, and their import: what is imported is what was exported, or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, select

from accel_bench.analysis.listing import flat_run
from accel_bench.documents.files import naming_the_file
from accel_bench.errors import StoreError
from accel_bench.result import Result
from accel_bench.store.database import SessionRecord, Store
from accel_bench.store.labels import add_labels
from accel_bench.store.records import parse_result
from accel_bench.store.schema import RUNS

MAXIMUM_BYTES = 4 * 1024**3
"""Largest file that is imported."""

FROM_EXPORT = "from-export"
"""Tag of runs that came with an export of another store."""

RESULT_COLUMN = "result"
"""Column of a Parquet export with the whole result as JSON."""


def write_parquet(results: Sequence[Result], path: Path) -> None:
    """Write a row for each run, with the columns of the CSV export and the whole result.

    Raises StoreError without pyarrow.
    """
    parquet, arrow = _pyarrow()
    rows = [{**flat_run(one), RESULT_COLUMN: one.model_dump_json()} for one in results]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _one_type([row.get(name) for row in rows]) for name in names}
    aside = path.with_name(f".{path.name}.part")
    with naming_the_file(path):
        try:
            parquet.write_table(arrow.table(columns), aside)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def read_export(path: Path) -> list[Result]:
    """Return the results of an exported JSON or Parquet file, all of them validated.

    Raises StoreError with the reason.
    """
    return list(_parsed(path))


def import_results(store: Store, results: Sequence[Result]) -> tuple[int, int]:
    """Add the runs of an export that are not there yet.

    Returns how many were added, and how many were there already. Their sessions have no plan, and
    the runs have the tag `from-export`. Raises StoreError.
    """
    there = set(_present(store, [result.run_id for result in results]))
    new = {result.run_id: result for result in results if result.run_id not in there}
    known = {session.id for session in store.sessions()}
    for result in new.values():
        if result.session not in known:
            known.add(result.session)
            name, started = result.experiment.scenario.name, result.started_at
            store.add_session(SessionRecord(id=result.session, started_at=started, scenario=name))
        store.add(result)
        add_labels(store, result.run_id, "tag", [FROM_EXPORT])
    return len(new), len(results) - len(new)


def _present(store: Store, run_ids: Sequence[str]) -> Iterator[str]:
    """Yield those of the ids that are stored."""
    for start in range(0, len(run_ids), 500):
        condition: ColumnElement[bool] = RUNS.c.run_id.in_(run_ids[start : start + 500])
        yield from (row["run_id"] for row in store.fetch(select(RUNS.c.run_id).where(condition)))


def _parsed(path: Path) -> Iterator[Result]:
    """Yield the results of a file. Raises StoreError for the first that cannot be one."""
    for number, text in enumerate(_texts(path), 1):
        try:
            yield parse_result(text)
        except (ValueError, RecursionError) as error:
            problem = str(error).splitlines()
            raise StoreError(
                f"{path}: run {number} is no result that this version can read: "
                f"{'; '.join(problem[:3])}; nothing was imported"
            ) from error


def _texts(path: Path) -> Iterator[str]:
    """Yield the JSON of each run in an exported file."""
    with naming_the_file(path):
        size = path.stat().st_size
        with path.open("rb") as handle:
            start = handle.read(4)
    if size > MAXIMUM_BYTES:
        raise StoreError(f"{path}: larger than {MAXIMUM_BYTES} bytes; nothing was imported")
    if start == b"PAR1":
        yield from _parquet_texts(path)
        return
    try:
        runs: Any = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path}: neither JSON nor Parquet ({error}); `accel-bench results export --format "
            "json --output FILE` writes what can be imported, and CSV cannot"
        ) from error
    yield from map(json.dumps, runs if isinstance(runs, list) else [runs])


def _parquet_texts(path: Path) -> Iterator[str]:
    parquet, arrow = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(100, columns=[RESULT_COLUMN]):
            yield from map(str, batch.column(RESULT_COLUMN).to_pylist())
    except (arrow.ArrowException, KeyError, OSError) as error:
        raise StoreError(
            f"{path}: no Parquet file of `accel-bench results export`: {error}"
        ) from error


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise StoreError("Parquet needs pyarrow: pip install 'accel-bench[parquet]'") from error
    return parquet, pyarrow


def _one_type(values: list[Any]) -> list[Any]:
    """Return a column whose values have one type, as Parquet needs: numbers, else texts."""
    known = [value for value in values if value is not None]
    if all(isinstance(value, int | float) for value in known):
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]
