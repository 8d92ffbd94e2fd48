"""CSV: flat, complete, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
from io import StringIO

import pytest
from analysis_factory import (
    STEADY,
    make_experiment,
    make_result,
    make_rounds,
    make_summary,
    scaled,
)

from accel_bench.report.csv_report import render_csv
from accel_bench.result import Status

LORA, FAST = make_experiment("lora"), make_experiment("fast", sweep={})


def read(text):
    return list(csv.DictReader(StringIO(text)))


def test_each_experiment_is_a_row_with_units_in_the_names_of_columns():
    summary = make_summary(
        [LORA, FAST], [*make_rounds(LORA, STEADY), *make_rounds(FAST, scaled(0.5))]
    )
    base, fast = read(render_csv([summary]))
    assert (base["stack"], fast["stack"]) == ("lora", "fast")
    assert float(fast["ratio_median"]) == pytest.approx(2.0, rel=1e-3)
    assert float(fast["tokens_per_second_median"]) == pytest.approx(2000, rel=1e-3)
    assert float(fast["step_seconds_p50"]) == pytest.approx(0.05, rel=1e-2)
    assert fast["peak_memory_bytes"] == "1000"
    assert fast["verdict"] == "faster"


def test_a_missing_number_is_an_empty_cell_and_not_0():
    summary = make_summary([LORA], [make_result(LORA, status=Status.OOM)], rounds=1)
    (row,) = read(render_csv([summary]))
    assert row["tokens_per_second_median"] == row["loss_last"] == ""


def test_rows_of_several_scenarios_share_one_header():
    summary = make_summary([LORA], make_rounds(LORA, STEADY))
    assert len(read(render_csv([summary, summary]))) == 2


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\n=1"])
def test_text_that_a_spreadsheet_would_run_is_marked_as_text(text):
    summary = make_summary([LORA], [], skipped={"lora": [text]})
    (row,) = read(render_csv([summary]))
    assert row["reasons"] == "'" + text


def test_ordinary_text_with_commas_quotes_and_newlines_survives():
    text = 'a, "b"\nc = d'
    summary = make_summary([LORA], [], skipped={"lora": [text]})
    assert read(render_csv([summary]))[0]["reasons"] == text


def test_nothing_is_an_empty_text():
    assert render_csv([]) == ""
