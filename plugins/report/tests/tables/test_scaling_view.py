"""The table of scaling on a narrow terminal."""

from __future__ import annotations

from accel_bench_report.sweep import scaling_of
from accel_bench_report.tables.scaling_view import scaling_report
from analysis_factory import make_experiment, make_ranks, make_result, make_summary
from whole_tables import assert_whole

from accel_bench.report.table import Report


def scaled() -> Report:
    """A weak scaling of one stack."""
    points = [
        make_experiment(
            sweep={"resources.devices": size},
            scenario={"resources": {"devices": size}, "train": {"micro_batch_size": 4}},
        )
        for size in (1, 2, 4)
    ]
    found = [
        make_result(point, round=number, ranks=make_ranks(point, 1e-4 * noise * (1 + place / 10)))
        for place, point in enumerate(points)
        for number, noise in enumerate((1.0, 1.004, 0.997, 1.002, 0.998))
    ]
    made = make_summary(points, found)
    return scaling_report([(made, scaling_of(made))])


def test_a_table_of_scaling_fits_80_columns_and_its_cells_are_whole() -> None:
    for table in scaled().sections[0].tables:
        assert_whole(table)
