"""Exports of runs to CSV and Parquet: a row for each run, and a column for each value of any run.

Rows wait in a temporary file until all columns are known, so that memory holds only a few rows.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from accel_bench.analysis.checks.audit import with_audit
from accel_bench.analysis.tables.listing import Cells, flat_figures, flat_metrics, provenance_of
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.files import aside_of, naming_the_file
from accel_bench.errors import StoreError
from accel_bench.report.render_csv import csv_lines
from accel_bench.report.table import keyed
from accel_bench.result import Result
from accel_bench.scenario.draft import look_up

ROWS_AT_ONCE = 100
"""Number of rows that are written to Parquet together."""

RESULT_COLUMN = "result"
"""Column in Parquet of the whole result as JSON."""

NEEDED = "Parquet needs pyarrow: pip install 'accel-bench[parquet]'"

FASTEST = 1
"""Compression level of the temporary file, the fastest."""


SETTING_COLUMNS = {
    "model": "model.id",
    "dtype": "model.dtype",
    "sequence_length": "data.sequence_length",
    "micro_batch_size": "train.micro_batch_size",
    "gradient_accumulation": "train.gradient_accumulation",
    "learning_rate": "train.learning_rate",
    "optimizer": "optimizer.use",
    "precision": "train.precision",
}
"""Dotted key of the scenario setting in each column."""

FACTORS = ("resources.devices", "train.micro_batch_size", "train.gradient_accumulation")
"""Settings whose product is the global batch size."""


def flat_run(result: Result) -> Cells:
    """Return a run as a row of values by column; column names have unit and scope.

    A missing number, or a value that an imported file does not state, is None. A run is `degraded`,
    with the reason, if the audit finds that its figures disagree.
    """
    imported = result.imported
    result = result if imported else with_audit(result)
    experiment, scenario = result.experiment, result.experiment.scenario
    settings = scenario.model_dump(mode="json")
    device = result.ranks[0].device if result.ranks else None
    used = result.provenance.machine if imported else ""

    def stated(*keys: str) -> bool:
        return not imported or set(keys) <= set(result.provenance.stated)

    batch = stated("train.global_batch_size") or stated(*FACTORS)
    return {
        "run_id": result.run_id,
        "session": result.session,
        "experiment_id": experiment.id,
        "scenario": scenario.name,
        "stack": experiment.stack.name,
        "sweep": canonical_json(experiment.sweep),
        "tag": experiment.tag,
        "round": result.round,
        "position": result.position,
        "attempt": result.attempt,
        "status": result.status.value,
        "reasons": "; ".join(result.reasons),
        "phase": result.phase,
        "started_at": result.started_at,
        "seconds": (result.seconds or None) if imported else result.seconds,
        **{n: look_up(settings, k)[1] if stated(k) else None for n, k in SETTING_COLUMNS.items()},
        "compute_dtype": None if imported else scenario.compute_dtype,
        "global_batch_size": scenario.train.global_batch_size if batch else None,
        "world_size": scenario.world_size if stated("resources.devices") else None,
        "device": device.name or device.type if device else used,
        "host": result.machine.host if result.machine else "",
        "provenance": provenance_of(result),
        **({} if imported else flat_figures(result)),
        **(
            {metric.name: metric.value for metric in result.metrics}
            if imported
            else flat_metrics(result)
        ),
    }


@contextmanager
def _waiting_rows(
    results: Iterable[Result], folder: Path | None, whole: bool
) -> Iterator[tuple[dict[str, bool], Iterator[dict[str, Any]]]]:
    """Write all rows to a temporary file; yield the columns, and an iterator of the rows.

    The columns are names, each with True if all its values are numbers. With `whole`, each row also
    has the whole result. The file lies in `folder`, by default in the system's temporary folder.
    """
    numbers: dict[str, bool] = {}
    with tempfile.TemporaryFile(dir=folder) as file:
        with gzip.open(file, "wb", FASTEST) as lines:
            for result in results:
                row = flat_run(result)
                for name, value in row.items():
                    is_number = value is None or isinstance(value, int | float)
                    numbers[name] = is_number and numbers.get(name, True)
                row |= {RESULT_COLUMN: result.model_dump_json()} if whole else {}
                lines.write(json.dumps(row).encode() + b"\n")
        file.seek(0)
        with gzip.open(file) as lines:
            yield numbers, map(json.loads, lines)


def export_lines(results: Iterable[Result], folder: Path | None = None) -> Iterator[str]:
    """Yield the lines of the results' CSV file; meanwhile a temporary file lies in `folder`."""
    with _waiting_rows(results, folder, False) as (numbers, rows):
        yield from csv_lines(keyed(numbers, ()).columns, rows)


def write_parquet(results: Iterable[Result], path: Path) -> None:
    """Write a Parquet file with a row for each run: the columns of the CSV and the whole result.

    Raises StoreError if pyarrow is not installed.
    """
    parquet, arrow = import_pyarrow()
    aside = aside_of(path)
    with naming_the_file(path), _waiting_rows(results, path.parent, True) as (numbers, rows):
        types = {name: arrow.float64() if is_number else arrow.string()
                 for name, is_number in numbers.items()}  # fmt: skip
        schema = arrow.schema({**types, RESULT_COLUMN: arrow.string()})
        try:
            with parquet.ParquetWriter(aside, schema) as writer:
                while part := list(islice(rows, ROWS_AT_ONCE)):
                    columns = {
                        name: [_of_type(row.get(name), is_number) for row in part]
                        for name, is_number in {**numbers, RESULT_COLUMN: False}.items()
                    }
                    writer.write_table(arrow.table(columns, schema=schema))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def _of_type(value: Any, is_number: bool) -> float | str | None:
    """Return a value in its column's type: a Parquet column has one type for all rows."""
    if value is None:
        return None
    return float(value) if is_number else str(value)


def import_pyarrow() -> tuple[Any, Any]:
    """Return the modules `pyarrow.parquet` and `pyarrow`.

    Raises StoreError if pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise StoreError(NEEDED) from error
    return parquet, pyarrow
