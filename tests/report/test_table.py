"""The model of a table: cells for people are short, and a path that ends early is null."""

from __future__ import annotations

from types import SimpleNamespace

from accel_bench.report.table import Column, interval_paths, paths, text_of
from accel_bench.result import Status


def test_cells_for_people_are_short() -> None:
    assert [text_of(value) for value in (None, {}, (), "")] == ["-"] * 4
    assert text_of({"model.id": "tiny", "seed": 1}) == "model.id=tiny, seed=1"
    assert text_of(["a", 1]) == "a; 1"
    assert text_of(Status.OOM) == "oom"
    assert (text_of(3), text_of(0), text_of(False)) == ("3", "0", "False")


def test_null_is_a_dash_whatever_the_form() -> None:
    assert Column("size", lambda row: row, form="{:.1f}".format).text(None) == "-"


def test_a_path_reads_attributes_and_ends_at_null() -> None:
    row = SimpleNamespace(loss=SimpleNamespace(first=2.0), speed=None)
    assert [column.cell(row) for column in paths("loss", "first")] == [2.0]
    assert [column.cell(row) for column in interval_paths("speed", "speed")] == [None] * 3
    assert [column.key for column in interval_paths("speed", "x")] == [
        "x_median",
        "x_low",
        "x_high",
    ]
