"""Flat rows say units in their names, and no cell is run or rendered by what reads them."""

from __future__ import annotations

import csv
import io

import pytest
from store.store_factory import make_rank, make_result

from accel_bench.analysis.listing import csv_text, differences, flat_run, markdown_text, shown
from accel_bench.result import Metric, Status


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


def test_a_run_without_a_window_has_no_speed_and_no_zero_in_its_place() -> None:
    flat = flat_run(make_result(ranks=(), status=Status.OOM, reasons=("asked for 2 GiB",)))
    assert "tokens_per_second" not in flat
    assert (flat["status"], flat["reasons"]) == ("oom", "asked for 2 GiB")


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_text_of_a_csv_is_a_formula(formula: str) -> None:
    rows = [{"name": formula, formula: "header"}]
    for cell in (cell for row in csv.reader(io.StringIO(csv_text(rows))) for cell in row):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))


def test_negative_numbers_of_a_csv_stay_numbers() -> None:
    assert csv_text([{"change": -0.5, "steps": 3}]) == "change,steps\n-0.5,3\n"


def test_a_csv_has_the_columns_of_all_rows_and_blanks_where_one_has_none() -> None:
    assert csv_text([{"a": 1}, {"a": 2, "b": None, "c": "x,y"}]) == 'a,b,c\n1,,\n2,,"x,y"\n'


def test_markdown_cells_are_text_on_one_line() -> None:
    table = markdown_text([{"stack": "a|b\n<b>*c*</b>", "speed": 1234.56}], ("stack", "speed"))
    assert table.splitlines()[0] == "| stack | speed |"
    assert table.splitlines()[2] == r"| a\|b \<b\>\*c\*\</b\> | 1,234.6 |"


def test_cells_for_people_are_short() -> None:
    assert shown(None) == "-"
    assert shown({}) == "-"
    assert shown({"model.id": "tiny", "seed": 1}) == "model.id=tiny, seed=1"
    assert shown(3) == "3"


def test_differences_are_dotted_keys_with_both_values() -> None:
    left = {"work": {"seed": 0, "dtype": "float32"}, "uses": [1], "same": {"a": 1}}
    right = {"work": {"seed": 1, "dtype": "float32"}, "uses": [1, 2], "same": {"a": 1}, "new": 1}
    assert differences(left, right) == [
        ("work.seed", 0, 1),
        ("uses", [1], [1, 2]),
        ("new", None, 1),
    ]


def test_a_number_and_a_truth_value_differ() -> None:
    assert differences({"a": 1}, {"a": True}) == [("a", 1, True)]
