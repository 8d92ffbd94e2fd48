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

from accel_bench.report.formats import render
from accel_bench.report.render_csv import render_csv
from accel_bench.report.table import keyed
from accel_bench.result import Status

LORA, FAST = make_experiment("lora"), make_experiment("fast", sweep={})


def read(text):
    return list(csv.DictReader(StringIO(text)))


def test_each_experiment_is_a_row_with_units_in_the_names_of_columns():
    summary = make_summary(
        [LORA, FAST], [*make_rounds(LORA, STEADY), *make_rounds(FAST, scaled(0.5))]
    )
    base, fast = read(render([summary], "csv"))
    assert (base["stack"], fast["stack"]) == ("lora", "fast")
    assert float(fast["ratio_median"]) == pytest.approx(2.0, rel=1e-3)
    assert float(fast["tokens_per_second_median"]) == pytest.approx(2000, rel=1e-3)
    assert float(fast["step_seconds_p50"]) == pytest.approx(0.05, rel=1e-2)
    assert fast["peak_memory_bytes"] == "1000"
    assert fast["verdict"] == "better"


def test_a_missing_number_is_an_empty_cell_and_not_0():
    summary = make_summary([LORA], [make_result(LORA, status=Status.OOM)], rounds=1)
    (row,) = read(render([summary], "csv"))
    assert row["tokens_per_second_median"] == row["loss_last"] == ""


def test_rows_of_several_scenarios_share_one_header():
    summary = make_summary([LORA], make_rounds(LORA, STEADY))
    assert len(read(render([summary, summary], "csv"))) == 2


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\n=1"])
def test_text_that_a_spreadsheet_would_run_is_marked_as_text(text):
    summary = make_summary([LORA], [], skipped={"lora": [text]})
    (row,) = read(render([summary], "csv"))
    assert row["reasons"] == "'" + text


def test_ordinary_text_with_commas_quotes_and_newlines_survives():
    text = 'a, "b"\nc = d'
    summary = make_summary([LORA], [], skipped={"lora": [text]})
    assert read(render([summary], "csv"))[0]["reasons"] == text


def test_nothing_is_an_empty_text():
    assert render([], "csv") == ""


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_text_of_a_csv_is_a_formula(formula):
    text = render_csv(keyed(["name", formula], [{"name": formula, formula: "header"}]))
    for cell in (cell for row in csv.reader(StringIO(text)) for cell in row):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))


def test_negative_numbers_stay_numbers():
    table = keyed(["change", "steps"], [{"change": -0.5, "steps": 3}])
    assert render_csv(table) == "change,steps\n-0.5,3\n"


def test_a_key_that_a_row_lacks_is_an_empty_cell():
    rows = [{"a": 1}, {"a": 2, "b": None, "c": "x,y"}]
    assert render_csv(keyed("abc", rows)) == 'a,b,c\n1,,\n2,,"x,y"\n'


def test_settings_are_json_and_lists_are_one_text():
    table = keyed(["sweep", "reasons"], [{"sweep": {"b": 1, "a": None}, "reasons": ("x", "y")}])
    assert list(csv.reader(StringIO(render_csv(table))))[1] == ['{"a":null,"b":1}', "x; y"]
