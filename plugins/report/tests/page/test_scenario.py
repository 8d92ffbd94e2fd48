"""What a report shows of a scenario: ranked rows by speed, the others with why they are not."""

from __future__ import annotations

import pytest
from accel_bench_report.page.scenario import count_endings, scenario_page
from accel_bench_report.page.stored_plan import StoredPlan, stored_plan
from accel_bench_report.page.waterfall import waterfall
from analysis_factory import STEADY, make_experiment, make_rounds, scaled

from accel_bench.analysis.aggregate import BY_THE_USER, PlannedSummary
from accel_bench.result import RankResult, Result

from .page_factory import dressed, scenario_of_endings

SCENARIO = {
    "stacks": {"lora": {"set": {}, "use": []}, "fast": {"set": {"train.seed": 1}, "use": []}},
    "measure": {"rounds": 5},
}


def test_rows_without_a_sound_figure_stand_last_and_are_counted() -> None:
    one = scenario_of_endings()
    rows = {row.summary.stack: row.why_not_ranked for row in one.rows}
    assert list(rows)[:3] == ["fast", "slow", "baseline"]
    assert [rows[name] for name in ("fast", "slow", "baseline")] == ["", "", ""]
    assert rows["large"] == "out of memory"
    assert rows["cut"] == "invalid"
    assert rows["foreign"].startswith("imported")
    assert count_endings(one.rows) == [
        ("measured", 3),
        ("failed", 1),
        ("imported", 1),
        ("invalid", 1),
        ("out of memory", 1),
        ("skipped", 1),
    ]


def other_losses(run: Result) -> Result:
    """The same run, which learned something else."""
    rank: RankResult = run.ranks[0]
    assert rank.window is not None
    worse = [one.model_copy(update={"loss": 3.0}) for one in rank.window.samples]
    window = rank.window.model_copy(update={"samples": tuple(worse)})
    return run.model_copy(update={"ranks": (rank.model_copy(update={"window": window}),)})


def test_a_speed_that_is_bought_with_another_training_is_not_ranked() -> None:
    base, fast = make_experiment("lora"), make_experiment("fast")
    runs = [*make_rounds(base, STEADY), *map(other_losses, make_rounds(fast, scaled(0.5)))]
    planned = tuple(PlannedSummary(experiment=one) for one in (base, fast))
    rows = scenario_page("monday", StoredPlan("lora", planned, 5), runs).rows
    assert [row.summary.stack for row in rows] == ["lora", "fast"]
    assert rows[1].why_not_ranked == "it did not train the same"
    assert rows[1].waterfall is None


def test_a_waterfall_adds_up_to_the_speeds_of_the_table() -> None:
    row = next(row for row in scenario_of_endings().rows if row.summary.stack == "fast")
    fall = row.waterfall
    assert fall is not None and row.summary.tokens_per_second is not None
    assert fall.unit == "a step of 100 tokens"
    assert fall.b == pytest.approx(1000 * 100 / row.summary.tokens_per_second.median)
    assert fall.a + sum(bar.change for bar in fall.bars.values()) == pytest.approx(fall.b)
    assert fall.bars["forward"].a == pytest.approx(0.3 * fall.a)
    assert fall.bars["idle and other"].a == pytest.approx(0.2 * fall.a)


def test_a_waterfall_shows_what_the_compiler_took_of_the_baseline() -> None:
    rows = {row.summary.stack: row.summary for row in scenario_of_endings().rows}
    start = rows["fast"].start_up
    assert start is not None
    compiled = start.model_copy(update={"compile_seconds": 30.0})
    base = rows["baseline"].model_copy(update={"start_up": compiled})
    fall = waterfall(base, rows["fast"])
    assert fall is not None and fall.compile_seconds == -30.0


def test_memory_at_the_peak_adds_up_and_leaves_room() -> None:
    row = scenario_of_endings().rows[0]
    assert row.memory is not None
    assert [*row.memory.parts.items()] == [
        ("process and imports", 400),
        ("data and model", 200),
        ("acceleration and optimizer", 50),
        ("training, at its peak", 250),
    ]
    assert row.memory.headroom == 2**34 - 900


def test_a_stored_plan_names_what_was_skipped_and_what_was_never_run() -> None:
    runs = dressed(make_rounds(make_experiment("lora"), STEADY))
    document = {
        "scenario": SCENARIO,
        "order": {"{}": [["fast", "lora"]]},
        "skipped": [{"stack": "nf4", "sweep": {}, "tag": "", "reasons": ["no such plugin"]}],
    }
    plan = stored_plan(document, runs)
    assert [one.experiment.stack.name for one in plan.planned] == ["lora", "fast", "nf4"]
    assert plan.planned[2].skipped == ("no such plugin",)
    assert plan.planned[1].experiment.stack.settings == {"train.seed": 1}
    rows = {row.summary.stack: row.summary for row in scenario_page("m", plan, runs).rows}
    assert rows["fast"].reasons == BY_THE_USER.reasons
    assert (plan.baseline, plan.rounds) == ("lora", 5)
    part = stored_plan(document, runs, whole=False)
    assert ([one.experiment.stack.name for one in part.planned], part.rounds) == (["lora"], 0)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"order": [["a"]], "skipped": "x", "scenario": 3},
        {"order": {"not json": [["b"], 3]}, "skipped": [7, {"stack": "\u202e"}]},
    ],
)
def test_a_plan_of_another_shape_leaves_what_was_measured(document: dict[str, object]) -> None:
    runs = make_rounds(make_experiment("lora"), STEADY)
    plan = stored_plan(document, runs)
    assert "lora" in [one.experiment.stack.name for one in plan.planned]
    assert scenario_page("m", plan, runs).rows[0].summary.stack == "lora"
