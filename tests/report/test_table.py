"""The model of a table: cells for people are short, and a path that ends early is null."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen
from accel_bench.report.render_terminal import render_terminal, wrapped
from accel_bench.report.table import (
    Column,
    Section,
    Table,
    columns_of,
    entry,
    listed,
    paths,
    text_of,
)
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


class Figures(Frozen):
    """A document with one in it, and with rows of their own."""

    stack: str
    speed: Interval | None = None
    points: tuple[Interval, ...] = ()
    marks: tuple[str, ...] = ()


def test_columns_of_a_document_are_its_fields_in_their_order() -> None:
    columns = columns_of(Figures, "row")
    names = ["stack", "speed_median", "speed_low", "speed_high", "speed_confidence", "marks"]
    assert [column.key for column in columns] == names
    row = SimpleNamespace(row=Figures(stack="lora", marks=("a",)))
    assert [column.cell(row) for column in columns] == ["lora", *[None] * 4, ("a",)]


def test_columns_of_chosen_fields_may_have_names_of_their_own() -> None:
    chosen = [column.key for column in columns_of(Figures, "row", "its_{}", "marks stack")]
    assert chosen == ["its_stack", "its_marks"]
    assert [column.key for column in columns_of(Figures, without="speed marks")] == ["stack"]


def test_intervals_and_ranges_may_stand_below_their_number() -> None:
    column = Column("x", lambda row: row, kind="number")
    for text, below in (
        ("10,503 ±6 %", ("10,503", "±6 %")),
        ("2.41 [2.10, 2.70]", ("2.41", "[2.10, 2.70]")),
        ("260 to 555", ("260", "to 555")),
        ("18.5 GiB (5 % left)", ("18.5 GiB", "(5 % left)")),
    ):
        assert column.parts(text) == below
        assert column.text(text) == text


def test_a_listed_column_of_numbers_is_one_of_numbers() -> None:
    table = listed(("name", "count", "note"), [("a", 1, "1"), ("b", None, "x")])
    assert [column.kind for column in table.columns] == ["text", "number", "text"]


@pytest.mark.parametrize(("width", "left"), [(40, "a b c"), (13, "a b"), (8, "a"), (3, "a")])
def test_columns_give_way_by_rank_and_what_is_always_shown_stays_whole(
    width: int, left: str
) -> None:
    columns = [entry(name, kind="number", rank=rank) for rank, name in enumerate("abc")]
    text = render_terminal(
        [Section(tables=[Table(columns, [dict.fromkeys("abc", 123456)])])], width
    )
    assert text.split("\n")[0].split() == left.split()
    assert text.split("\n")[2].split() == ["123456"] * len(left.split())
    lacking = " ".join(text.split("\n", 3)[3].split())
    assert (
        lacking
        == {
            "a b c": "",
            "a b": "left out for want of room: c; --wide shows all",
            "a": "left out for want of room: b, c; --wide shows all",
        }[left]
    )


def test_a_column_without_values_gives_way_before_one_with_some() -> None:
    columns = [entry("a"), entry("tag", rank=1), entry("speed", rank=2)]
    text = render_terminal([Section(tables=[Table(columns, [{"a": "x" * 8, "speed": 1}])])], 16)
    assert text.split("\n")[0].split() == ["a", "speed"]


def test_words_are_broken_only_where_they_are_longer_than_the_line_and_numbers_never() -> None:
    assert wrapped("two words", 6) == ["two", "words"]
    assert wrapped("activation-checkpointing", 13) == ["activation-", "checkpointing"]
    assert wrapped("1,234,567.891", 5) == ["1,234,567.891"]


def test_prose_is_wrapped_at_blanks_and_a_path_stays_whole() -> None:
    path = "/somewhere/" + "deep/" * 8
    text = render_terminal([Section(headline=f"what was said of it is in {path} now")], 30)
    assert text == f"what was said of it is in\n{path}\nnow\n"
