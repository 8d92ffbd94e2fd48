"""Markdown: a table that no name can break."""

from __future__ import annotations

from analysis_factory import STEADY, make_experiment, make_rounds, make_summary, scaled

from accel_bench.report.markdown import escape, render_markdown

LORA = make_experiment("lora")
ODD = make_experiment("odd", settings={"model.overrides": "a|b\n| c <script>*[x](y)`"})


def test_every_line_of_the_table_has_the_same_number_of_cells():
    summary = make_summary(
        [LORA, ODD], [*make_rounds(LORA, STEADY), *make_rounds(ODD, scaled(0.5))]
    )
    lines = [line for line in render_markdown([summary]).splitlines() if line.startswith("|")]
    cells = {line.replace(r"\|", "").count("|") for line in lines}
    assert len(lines) == 4
    assert len(cells) == 1


def test_pipes_newlines_and_markup_are_escaped():
    assert escape("a|b\nc") == r"a\|b c"
    assert escape("<b>*[x]`\\") == r"\<b\>\*\[x\]\`\\"


def test_numbers_verdict_and_sentence_are_there():
    summary = make_summary(
        [LORA, ODD], [*make_rounds(LORA, STEADY), *make_rounds(ODD, scaled(0.5))]
    )
    text = render_markdown([summary])
    assert text.startswith("## peft\n")
    assert "| 2,000 ±0.34 % |" in text
    assert "| equivalent | faster | ok |" in text
    assert "odd is faster than lora" in text


def test_reasons_stand_under_the_table():
    summary = make_summary([LORA], [], skipped={"lora": ["needs | a GPU"]})
    assert r"- lora: needs \| a GPU" in render_markdown([summary, summary])
