"""Markdown: a table that no name can break."""

from __future__ import annotations

from analysis_factory import LORA, STEADY, make_experiment, make_rounds, make_summary, scaled

from accel_bench.report.formats import render
from accel_bench.report.render_markdown import escape, render_markdown
from accel_bench.report.table import Section, keyed

ODD = make_experiment("odd", settings={"model.overrides": "a|b\n| c <script>*[x](y)`"})


def test_every_line_of_the_table_has_the_same_number_of_cells():
    summary = make_summary(
        [LORA, ODD], [*make_rounds(LORA, STEADY), *make_rounds(ODD, scaled(0.5))]
    )
    lines = [line for line in render([summary], "markdown").splitlines() if line.startswith("|")]
    cells = {line.replace(r"\|", "").count("|") for line in lines}
    assert len(lines) == 4
    assert len(cells) == 1


def test_pipes_newlines_and_markup_are_escaped():
    assert escape("a|b\nc") == r"a\|b c"
    assert escape("<b>*[x]`\\") == r"\<b\>\*\[x\]\`\\"


def test_names_stay_as_they_are_and_emphasis_does_not():
    assert escape("run_id _a_") == r"run_id \_a\_"


def test_cells_are_text_on_one_line():
    rows = [{"stack": "a|b\n<b>*c*</b>", "speed": 1234}]
    table = render_markdown([Section(tables=[keyed(["stack", "speed"], rows)])])
    assert table.splitlines()[0] == "| stack | speed |"
    assert table.splitlines()[2] == r"| a\|b \<b\>\*c\*\</b\> | 1234 |"


def test_numbers_verdict_and_sentence_are_there():
    summary = make_summary(
        [LORA, ODD], [*make_rounds(LORA, STEADY), *make_rounds(ODD, scaled(0.5))]
    )
    text = render([summary], "markdown")
    assert text.startswith("## peft\n")
    assert text.splitlines()[2].startswith("**odd is 2.000 times as fast as lora")
    assert "| 2,000 ±0.3 % |" in text
    assert "| bitwise equal | equivalent 0 %, limit 1 % | faster | ok |" in text


def test_reasons_stand_under_the_table():
    summary = make_summary([LORA], [], skipped={"lora": ["needs | a GPU"]})
    assert r"- lora: needs \| a GPU" in render([summary, summary], "markdown")
