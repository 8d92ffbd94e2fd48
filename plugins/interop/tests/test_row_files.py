"""Exports with a row for each run have the columns of all, and few of the runs in memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from accel_bench_interop import row_files
from accel_bench_interop.row_files import export_lines, flat_run, write_parquet
from store.exports import call, five_runs
from store.store_factory import make_rank, make_result

from accel_bench.errors import StoreError
from accel_bench.result import Metric, Result, Status


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


def test_a_flat_run_sums_tokens_over_ranks_and_takes_the_slowest_ranks_time() -> None:
    result = make_result(ranks=(make_rank(0, seconds=0.5), make_rank(1, seconds=1.0)))
    flat = flat_run(result)
    assert flat["tokens_per_second"] == pytest.approx(4 * 100 / 2.0)
    assert flat["tokens_per_second_per_device"] == pytest.approx(100.0)
    assert flat["seconds_per_token"] == pytest.approx(2.0 / 400)
    assert flat["real_tokens"] == 400
    assert flat["steps"] == 2
    assert (flat["first_loss"], flat["last_loss"]) == (4.0, 3.0)


def test_a_metric_of_each_rank_has_a_column_with_its_unit_and_rank() -> None:
    metrics = (
        Metric(name="energy", value=3.5, unit="joules", scope="global", kind="NVML counter"),
        Metric(name="recompiles", value=0, unit="1", scope="rank"),
    )
    first = make_rank(0).model_copy(update={"metrics": metrics})
    flat = flat_run(make_result(ranks=(first, make_rank(1))))
    assert flat["energy_NVML_counter_joules"] == 3.5
    assert flat["recompiles_rank0"] == 0
    assert flat["peak_memory_bytes_rank1"] == 1000


def joules(value: float, plugin: str) -> Metric:
    return Metric(name="energy", value=value, unit="J", scope="rank", plugin=plugin)


def test_what_an_observer_measured_counts_too() -> None:
    observed = make_result().model_copy(update={"metrics": (joules(3, "joules"),)})
    assert flat_run(observed)["energy_J_rank0"] == 3


def test_a_metric_of_two_plugins_has_a_column_for_each() -> None:
    metrics = (joules(10, "joules"), joules(1000, "watts"))
    cells = flat_run(make_result(ranks=(make_rank(0).model_copy(update={"metrics": metrics}),)))
    assert (cells["joules_energy_J_rank0"], cells["watts_energy_J_rank0"]) == (10, 1000)


def test_a_run_without_a_window_has_no_speed_and_no_zero_in_its_place() -> None:
    flat = flat_run(make_result(ranks=(), status=Status.OOM, reasons=("asked for 2 GiB",)))
    assert "tokens_per_second" not in flat
    assert (flat["status"], flat["reasons"]) == ("oom", "asked for 2 GiB")
