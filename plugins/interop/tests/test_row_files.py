"""Exports with a row for each run have the columns of all, and few of the runs in memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from accel_bench_interop import row_files
from accel_bench_interop.row_files import export_lines, write_parquet
from store.exports import call, five_runs
from store.store_factory import make_result

from accel_bench.errors import StoreError
from accel_bench.result import Result


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A results folder with five runs."""
    return five_runs(tmp_path)


def test_a_parquet_file_has_the_columns_of_the_csv(source: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    file = tmp_path / "runs.parquet"
    only = ("--where", "status = ok")
    call("results", "export", "--results", source, "--format", "parquet", "--output", file, *only)
    csv = call("results", "export", "--results", source, "--format", "csv", *only)
    table = parquet.read_table(file)
    assert table.column_names == [*csv.splitlines()[0].split(","), "result"]
    assert table.column("tokens_per_second").to_pylist() == pytest.approx([200, 400, 500])
    assert table.column("stack").to_pylist() == ["lora", "lora", "nf4"]


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreError, match=r"pip install 'accel-bench\[parquet\]'"):
        write_parquet([], tmp_path / "file")
    assert not list(tmp_path.iterdir())


def consume(pieces: Iterable[str]) -> None:
    for _ in pieces:
        pass


WRITERS: dict[str, Callable[[Iterator[Result], Path], None]] = {
    "csv": lambda runs, folder: consume(export_lines(runs, folder)),
    "parquet": lambda runs, folder: write_parquet(runs, folder / "runs.parquet"),
}


@pytest.mark.parametrize("form", WRITERS)
def test_an_export_of_many_runs_takes_no_more_memory_than_one_of_few(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "ROWS_AT_ONCE", 10)

    def runs(number: int) -> Iterator[Result]:
        for one in range(number):
            gc.collect()  # what is garbage already is no growth
            yield make_result(f"run-{one}")

    def peak(number: int) -> int:
        gc.collect()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        WRITERS[form](runs(number), tmp_path)
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    gc.freeze()
    try:
        peak(10)  # what is imported and cached at first
        # A run's row or text alone takes more than 2,000 bytes.
        assert min(peak(60) for _ in range(3)) - min(peak(10) for _ in range(3)) < 50 * 1000
    finally:
        gc.unfreeze()
        tracemalloc.stop()
    assert [path.name for path in tmp_path.iterdir() if path.name != "runs.parquet"] == []
