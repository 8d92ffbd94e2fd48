"""The report's section on what was learned: there where something was evaluated, and only there."""

from __future__ import annotations

from accel_bench_report.page.page import page
from accel_bench_report.page.render_html import render_html
from accel_bench_report.page.render_markdown import render_page_markdown
from accel_bench_report.page.scenario import ScenarioPage, scenario_page
from accel_bench_report.page.stored_plan import StoredPlan
from analysis_factory import make_experiment, make_rounds
from learning_factory import learned

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.result import Result

LORA, FAST = make_experiment("lora"), make_experiment("fast")


def scenario(runs: list[Result]) -> ScenarioPage:
    plan = StoredPlan("lora", tuple(PlannedSummary(experiment=one) for one in (LORA, FAST)), 2)
    return scenario_page("monday", plan, runs)


def evaluated() -> ScenarioPage:
    losses = (5.0, 4.0, 3.25)
    return scenario([
        learned(losses, experiment=one, round=number, step_seconds=seconds)
        for one, seconds in ((LORA, 0.1), (FAST, 0.05))
        for number in range(2)
    ])  # fmt: skip


def test_html_and_markdown_have_the_section_where_samples_were_evaluated() -> None:
    made = page([evaluated()], [], plots=False)
    html, markdown = render_html(made), render_page_markdown(made)
    assert ">Does it still learn</h2>" in html
    assert "#part-unnamed-learning" in html
    for text in (html, markdown):
        assert "validation loss before and after training" in text
        assert "evaluation of held-out samples" in text
        assert "3.250" in text


def test_without_evaluations_there_is_none() -> None:
    one = scenario([*make_rounds(LORA, [0.1] * 2), *make_rounds(FAST, [0.1] * 2)])
    assert one.learning is None
    html = render_html(page([one], [], plots=False))
    assert "Does it still learn" not in html


def test_the_curve_is_drawn_against_the_seconds_of_training() -> None:
    (view,) = page([evaluated()], []).scenarios
    (plot,) = (one for one in view.figures if one.title == "Validation loss")
    assert "seconds of training" in plot.wide
    assert "fast" in plot.wide
