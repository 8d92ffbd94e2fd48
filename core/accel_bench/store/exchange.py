"""Exports of stored runs, and their import: what is imported is what was exported, or nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from accel_bench.analysis.tables.listing import flat_run
from accel_bench.documents.files import aside_of, naming_the_file
from accel_bench.documents.spool import Spool
from accel_bench.errors import StoreError
from accel_bench.result import Provenance, Result
from accel_bench.store.database import SessionRecord, Store
from accel_bench.store.records import parse_result
from accel_bench.store.schema import EXPORTED, MAXIMUM_PAYLOAD_BYTES

PIECE = 1024 * 1024
"""Letters of a file that are read at once."""

MAXIMUM_TEXT = 8 * MAXIMUM_PAYLOAD_BYTES
"""Longest text of one run: an export is indented, and what is stored is not."""

ROWS_AT_ONCE = 100
"""Rows of a Parquet file that are written and read together."""

FROM_EXPORT = "from-export"
"""Tag of runs that came with an export of another store."""

_EXPORT = re.compile(rb'(\xef\xbb\xbf)?\s*(PAR1|\[\s*[{\]]|\{\s*"schema_version")')
_BETWEEN = re.compile(r"[\s,]*")

RESULT_COLUMN = "result"
"""Column of a Parquet export with the whole result as JSON."""


def write_parquet(results: Iterable[Result], path: Path) -> None:
    """Write a row for each run, with the columns of the CSV export and the whole result.

    Raises StoreError without pyarrow.
    """
    parquet, arrow = _pyarrow()
    aside = aside_of(path)
    with naming_the_file(path), Spool(path.parent) as spool:
        # The columns are those of all rows, so nothing is written before the last is known.
        numbers = _spool_rows(results, spool)
        types = {name: arrow.float64() if is_number else arrow.string()
                 for name, is_number in numbers.items()}  # fmt: skip
        schema = arrow.schema({**types, RESULT_COLUMN: arrow.string()})
        rows = iter(spool)
        try:
            with parquet.ParquetWriter(aside, schema) as writer:
                while part := list(islice(rows, ROWS_AT_ONCE)):
                    columns = {
                        name: [_of_type(row.get(name), is_number) for row, _ in part]
                        for name, is_number in numbers.items()
                    }
                    columns[RESULT_COLUMN] = [text for _, text in part]
                    writer.write_table(arrow.table(columns, schema=schema))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def _spool_rows(results: Iterable[Result], spool: Spool) -> dict[str, bool]:
    """Spool each run as its flat row and its text; return which columns hold numbers alone."""
    numbers: dict[str, bool] = {}
    for one in results:
        row = flat_run(one)
        for name, value in row.items():
            is_number = value is None or isinstance(value, int | float)
            numbers[name] = is_number and numbers.get(name, True)
        spool.add([row, one.model_dump_json()])
    return numbers


def _of_type(value: Any, is_number: bool) -> float | str | None:
    """Return a value as its column's type: Parquet has one for all rows."""
    if value is None:
        return None
    return float(value) if is_number else str(value)


def is_export(path: Path) -> bool:
    """Return whether a file begins as an export does. Raises StoreUnavailableError."""
    with naming_the_file(path), path.open("rb") as handle:
        return bool(_EXPORT.match(handle.read(1024)))


def check_export(path: Path) -> list[str]:
    """Return the ids of the runs of an exported JSON or Parquet file, all of them validated.

    Raises StoreError with the reason.
    """
    return list(dict.fromkeys(result.run_id for result in read_export(path)))


def add_export(store: Store, path: Path, run_ids: Sequence[str]) -> tuple[int, int]:
    """Add the runs of a file that are not there yet, all or none; `check_export` has their ids.

    Returns how many were added, and how many were there already. Their sessions have no plan, and
    the runs have the tag `from-export` and the origin `exported`. Raises StoreError.
    """
    there = set(store.present(run_ids))
    store.add_together(_records(path, there, _provenance(path)), FROM_EXPORT)
    return len(run_ids) - len(there), len(there)


def _provenance(path: Path) -> Provenance:
    digest = hashlib.sha256()
    with naming_the_file(path), path.open("rb") as handle:
        for piece in iter(lambda: handle.read(PIECE), b""):
            digest.update(piece)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = str(path).encode("utf8", "replace").decode()
    return Provenance(origin="exported", file=name, sha256=digest.hexdigest(), imported_at=now)


def _records(
    path: Path, there: Collection[str], mark: Provenance
) -> Iterator[SessionRecord | Result]:
    """Yield the runs that are not there, each after its session; none as measured here."""
    known, sessions = {*there}, set[str]()
    for result in read_export(path):
        if result.run_id in known:
            continue
        known.add(result.run_id)
        if result.session not in sessions:
            sessions.add(result.session)
            yield SessionRecord(
                id=result.session,
                started_at=result.started_at,
                scenario=result.experiment.scenario.name,
                document={"imported": EXPORTED, "file": mark.file},
            )
        measured = result.provenance.origin == "measured"
        yield result.model_copy(update={"provenance": mark}) if measured else result


def read_export(path: Path) -> Iterator[Result]:
    """Yield the results of a file one by one.

    Raises StoreError for the first that cannot be one.
    """
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
        with path.open("rb") as handle:
            start = handle.read(4)
    if start == b"PAR1":
        yield from _parquet_texts(path)
        return
    try:
        with naming_the_file(path), path.open(encoding="utf-8-sig") as opened:
            yield from _json_texts(opened)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path}: neither JSON nor Parquet ({error}); `accel-bench results export --format "
            "json --output FILE` writes what can be imported, and CSV cannot"
        ) from error


def _json_texts(opened: TextIO) -> Iterator[str]:
    """Yield the text of each element of a JSON list, reading no more than one; or the document."""
    decoder, text, place, in_list = json.JSONDecoder(), opened.read(PIECE), 0, False
    if text.lstrip().startswith("["):
        text, in_list = text.lstrip()[1:], True
    while True:
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]
        if in_list and text.startswith("]", place):
            return
        try:
            end = decoder.raw_decode(text, place)[1]
        except ValueError:
            more = opened.read(max(PIECE, len(text) - place))
            if not more or len(text) - place > MAXIMUM_TEXT:
                raise
            text, place = text[place:] + more, 0
            continue
        yield text[place:end]
        if not in_list:
            return
        place = end


def _parquet_texts(path: Path) -> Iterator[str]:
    parquet, arrow = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=[RESULT_COLUMN]):
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
