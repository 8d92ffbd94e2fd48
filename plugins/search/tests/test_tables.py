"""Tables of `fit` and `tune` fit a terminal completely."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from accel_bench_search.fit import fit_view
from accel_bench_search.fit_report import FitPoint, SearchRange, fit_report
from accel_bench_search.trial_judgement import with_answer
from accel_bench_search.tune_report import Objective, TuneReport, TuneTrial, tune_view
from whole_tables import assert_whole

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.report.table import Report

PEAK = 19_876_543_210
SPEED = Interval(median=123_456.7, low=120_000.0, high=126_000.0)


def fitted() -> Report:
    """A report with the largest batch that fits."""
    points = [
        FitPoint(
            value=1000 * size,
            outcome="holds",
            run_id=f"20260101-120000-0123456789ab-{size}",
            stored=True,
            tokens_per_second=SPEED,
            peak_memory_bytes=PEAK,
        )
        for size in (1, 2)
    ]
    return fit_view(
        fit_report("some", "lora", "train.micro_batch_size", SearchRange(start=1000), points)
    )


def tuned() -> Report:
    """A study of three keys."""
    trials = [
        TuneTrial(
            number=number,
            parameters={
                "train.micro_batch_size": 16,
                "train.learning_rate": 0.000123456,
                "data.packing": True,
            },
            outcome="ok",
            value=1.23456,
            tokens_per_second=123_456.7,
            peak_memory_bytes=PEAK,
            last_loss=2.34567,
        )
        for number in (None, 1, 2)
    ]
    return tune_view(
        with_answer(
            TuneReport(
                scenario="some",
                stack="lora",
                study="s",
                objective=Objective(goal="loss", unit="seconds", amount=60.0),
                baseline=trials[0],
                trials=tuple(trials[1:]),
                best=None,
                check=None,
                answer="",
            )
        )
    )


@pytest.mark.parametrize("made", [fitted, tuned])
def test_a_table_fits_80_and_120_columns_and_all_its_cells_are_whole(
    made: Callable[[], Report],
) -> None:
    for section in made().sections:
        for table in section.tables:
            assert_whole(table)
