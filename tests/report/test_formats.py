"""Forms of a report by name."""

from __future__ import annotations

import pytest
from analysis_factory import LORA, STEADY, make_rounds, make_summary

from accel_bench.errors import AccelBenchError
from accel_bench.report.formats import FORMATS, render, render_json, render_list, render_report
from accel_bench.report.table import Report, Section


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_form_shows_the_stack_and_ends_its_last_line(name):
    text = render([make_summary([LORA], make_rounds(LORA, STEADY))], name)
    assert "lora" in text
    assert text.endswith("\n")


@pytest.mark.parametrize("documents", [[], [{}], [{"a": "b\nc", "d": [1, {}]}, "text", None]])
def test_a_list_in_pieces_is_the_list_as_a_whole(documents):
    for at_once in (1, 2, 3):
        pieces = render_list(iter(documents), at_once)
        assert "".join(pieces) == render_json(documents)


def test_a_list_is_written_document_by_document():
    taken = iter([1, 2, 3])
    pieces = render_list(taken)
    assert next(pieces) == "[\n  1"
    assert list(taken) == [2, 3]


def test_an_unknown_form_names_the_nearest_one():
    with pytest.raises(AccelBenchError, match=r"'markdwn'.*did you mean 'markdown'"):
        render([], "markdwn")


def test_text_is_never_wrapped_so_that_a_command_can_be_copied():
    command = "accel-bench run " + "word " * 40 + "last"
    report = Report([Section(title="a title", text=f"{command}\n  \x1b[31mindented")], width=30)
    assert render_report(report, "table") == f"a title\n\n{command}\n  \\x1b[31mindented\n"
    assert f"\n    {command}\n      \\x1b[31mindented\n" in render_report(report, "markdown")
