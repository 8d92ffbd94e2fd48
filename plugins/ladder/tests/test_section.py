"""The ladder in every form of report: narrow, complete, and with a reason for what is missing."""

from __future__ import annotations

import csv
import json
from io import StringIO

import pytest
from accel_bench_ladder.figures import MemoryChange
from accel_bench_ladder.section import memory_change
from analysis_factory import STEADY, make_experiment, make_rounds, make_summary, scaled

from accel_bench.analysis.schema import Summary
from accel_bench.report.formats import render
from accel_bench.scenario.models import LadderPosition

LABELS = ("linear_cross_entropy", "gradient_checkpointing", "torch-compile-max-autotune")
MIB = 2**20


def ladder_summary() -> Summary:
    """Three items with long names; the second is left out of nothing."""
    everything = (0, 1, 2)
    stacks = {"lora": ((),), **{f"{n}+{LABELS[n - 1]}": (everything[:n],) for n in (1, 2, 3)}}
    stacks[f"without-{LABELS[0]}"] = ((1, 2),)
    experiments, results = [], []
    for number, (name, holds) in enumerate(stacks.items()):
        experiment = make_experiment(name)
        place = LadderPosition(items=LABELS, holds=holds)
        stack = experiment.stack.model_copy(update={"ladder": place})
        experiment = experiment.model_copy(update={"stack": stack})
        experiments.append(experiment)
        results += make_rounds(experiment, scaled(0.9**number) if number else STEADY)
    return make_summary(experiments, results)


def test_the_table_has_a_row_for_each_item_and_fits_in_80_columns() -> None:
    text = render([ladder_summary()], "table")
    assert max(map(len, text.splitlines())) <= 80
    title = text.splitlines().index("ladder of peft")
    lines = text.splitlines()[title:]
    row = next(number for number, line in enumerate(lines) if line.startswith("2+gradient_"))
    assert lines[row].split() == "2+gradient_ 1.235 1.111 0.0 bitwise - -".split()
    assert lines[row + 1].split() == "checkpointing [1.111, 1.111] equal".split()


def test_what_is_missing_is_explained_under_the_table() -> None:
    text = " ".join(render([ladder_summary()], "table").split())
    assert "gradient_checkpointing left out: one of the two stacks is not in the plan" in text
    assert "no verdicts" in text


def test_a_scenario_without_a_ladder_says_nothing_of_one() -> None:
    experiment = make_experiment("lora")
    summary = make_summary([experiment], make_rounds(experiment, STEADY))
    for form in ("table", "markdown"):
        assert "ladder" not in render([summary], form)


def test_markdown_has_a_second_table_with_as_many_cells_in_every_row() -> None:
    text = render([ladder_summary()], "markdown")
    section = text[text.index("### ladder of peft") :]
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert len(table) == 5
    assert len({line.count("|") for line in table}) == 1


def test_csv_has_the_figures_on_the_rows_of_the_rungs() -> None:
    rows = {
        row["stack"]: row for row in csv.DictReader(StringIO(render([ladder_summary()], "csv")))
    }
    rung = rows["1+linear_cross_entropy"]
    assert rung["ladder_item"] == "linear_cross_entropy"
    assert float(rung["ladder_adds_ratio_median"]) == pytest.approx(1 / 0.9, rel=1e-3)
    assert rung["ladder_left_out_stack"] == "without-linear_cross_entropy"
    assert rows["lora"]["ladder_item"] == rows["lora"]["ladder_adds_ratio_median"] == ""


def test_json_has_a_step_for_each_item() -> None:
    steps = json.loads(render([ladder_summary()], "json"))["sections"]["ladder"]
    assert [step["item"] for step in steps] == list(LABELS)
    assert steps[0]["adds"]["ratio"]["median"] == pytest.approx(1 / 0.9, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (MemoryChange(bytes=-61.25 * MIB, low=-62.0 * MIB, high=-60.5 * MIB), "-61.2 ±0.8"),
        (MemoryChange(bytes=2048.0 * MIB, low=2048.0 * MIB, high=2048.0 * MIB), "+2,048"),
        (MemoryChange(bytes=-1000.0, low=-1000.0, high=-1000.0), "0.0"),
        (MemoryChange(bytes=3.0 * MIB, low=None, high=None), "+3.0"),
    ],
)
def test_a_change_of_memory_has_a_sign_and_its_half_interval(
    change: MemoryChange, text: str
) -> None:
    assert memory_change(change) == text
