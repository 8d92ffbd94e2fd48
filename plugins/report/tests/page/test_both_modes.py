"""Training and inference of one model stand side by side where a page has both."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench_report.page.both_modes import both_modes_tables
from accel_bench_report.page.page import page
from accel_bench_report.page.render_html import render_html
from accel_bench_report.page.render_markdown import render_page_markdown
from accel_bench_report.page.scenario import ScenarioPage, scenario_page
from accel_bench_report.page.stored_plan import stored_plan
from analysis_factory import STEADY, make_experiment, make_failures, make_rounds, scaled
from serving_factory import serving

from accel_bench.analysis.quantity import compared_by
from accel_bench.result import Result, Status


def shown(*stacks: Sequence[Result]) -> ScenarioPage:
    """The page of a scenario, its baseline first."""
    results = [run for runs in stacks for run in runs]
    names = [runs[0].experiment.stack.name for runs in stacks]
    document = {"scenario": {"baseline": names[0], "stacks": {name: {} for name in names}}}
    return scenario_page("monday", stored_plan(document, results), results)


def trained(model: str = "tiny-llama-cpu") -> ScenarioPage:
    """A baseline, a stack that is faster, and one that failed."""
    base, fast, failed = (
        make_experiment(name, scenario={"model": {"id": model}}) for name in ("base", "x", "failed")
    )
    other = make_failures(failed, Status.FAILED)
    return shown(make_rounds(base, STEADY), make_rounds(fast, scaled(0.8)), other)


def served() -> ScenarioPage:
    """A baseline and two stacks, of which one is saturated."""
    return shown(serving("base", 100), serving("x", 50), serving("full", 10, saturated=True))


def test_a_stack_has_one_row_with_both_of_its_ratios() -> None:
    (table,) = both_modes_tables([trained(), served()])
    assert table.title.startswith("tiny-llama-cpu on ")
    rows = {row.stack: row for row in table.rows}
    assert list(rows) == ["base", "x"], "what failed or is saturated has no rank"
    both = rows["x"]
    assert both.training is not None and both.training.ratio is not None
    assert both.inference is not None and both.inference.ratio is not None
    assert round(both.training.ratio.median, 2) == 1.25
    assert round(both.inference.ratio.median, 2) == 2.0
    cells = {column.header: column.text(both) for column in table.columns}
    assert cells["stack"] == "x" and cells["median request"].startswith("50")


def test_a_ratio_of_memory_is_not_shown_as_one_of_speed() -> None:
    def by_memory(runs: Sequence[Result]) -> list[Result]:
        return [compared_by(run, "peak_memory_bytes") for run in runs]

    base, fast = (make_experiment(name) for name in ("base", "x"))
    rows = make_rounds(base, STEADY), make_rounds(fast, scaled(0.8))
    (table,) = both_modes_tables([shown(*map(by_memory, rows)), served()])
    assert [column.unit for column in table.columns if column.header == "times as fast"] == [
        "inference"
    ]


def test_models_of_one_mode_alone_have_no_table() -> None:
    assert both_modes_tables([trained()]) == []
    assert both_modes_tables([served(), served()]) == []
    assert both_modes_tables([trained("gpt2"), served()]) == []


def test_the_page_and_its_markdown_have_the_section() -> None:
    whole = page([trained(), served()], [], plots=False)
    html, markdown = render_html(whole), render_page_markdown(whole)
    assert '<section class="scenario" id="both-modes">' in html
    assert "## Training and inference: tiny" in markdown
    alone = page([trained()], [], plots=False)
    assert "both-modes" not in render_html(alone)
    assert "Training and inference" not in render_page_markdown(alone)
