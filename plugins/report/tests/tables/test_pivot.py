"""Experiments in one table: each in exactly one cell, whatever their order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from accel_bench_report.tables.expenses import Terms, usd_per_million_tokens
from accel_bench_report.tables.figures import FIGURES
from accel_bench_report.tables.keyed import find_key
from accel_bench_report.tables.pivot import Layout, pivot, pivot_experiments
from accel_bench_report.tables.pivot_schema import Pivot
from accel_bench_report.tables.pivot_view import pivot_tables
from analysis_factory import STEADY, make_rank, make_result, scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.analysis.aggregate import collect_experiments
from accel_bench.analysis.device_kinds import device_models
from accel_bench.analysis.metrics.hourly_rate import HourlyRate
from accel_bench.errors import StoreError
from accel_bench.machine.info import Machine
from accel_bench.result import Metric, Provenance, Result, Status

from ..pivot_factory import BATCH, LENGTH, campaigns, point, rounds

KEYS = ["stack", LENGTH, BATCH, "train.learning_rate", "device"]


def test_the_program_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[4] / "docs" / "pivot.md"
    (program,) = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf8"), re.M | re.S)
    exec(program, {"results": rounds(point(), STEADY)})  # noqa: S102 - our own page
    assert capsys.readouterr().out.startswith("(110,) {('lora',): ")


def test_the_last_part_of_a_key_means_the_work_before_its_evaluation() -> None:
    known = (BATCH, "evaluate.micro_batch_size", "environment.cores", "lora.r", "other.r")
    assert find_key("micro_batch_size", known) == BATCH
    assert find_key("cores", known) == "environment.cores"
    with pytest.raises(StoreError, match=r"'r' means several keys: lora\.r, other\.r"):
        find_key("r", known)


def grid(stacks: Sequence[str] = ("lora",)) -> list[Result]:
    """Two lengths x two batches; the largest of each stack runs out of memory."""
    found: list[Result] = []
    for stack in stacks:
        for length in (110, 220):
            for batch in (1, 4):
                one = point(stack, length, batch)
                if (length, batch) == (220, 4):
                    found += [make_result(one, round=n, status=Status.OOM) for n in range(5)]
                else:
                    found += rounds(one, scaled(batch / 2))
    return found


def test_a_grid_of_points_is_one_table_with_oom_in_its_place() -> None:
    made = pivot(grid(), rows=[LENGTH], columns=["batch_size"], values=["tokens_per_hour"])
    assert (made.row_keys, made.column_keys, made.added_keys) == ((LENGTH,), (BATCH,), ())
    assert (made.rows, made.columns) == (((110,), (220,)), ((1,), (4,)))
    cell = made.cell((110,), (4,))
    assert cell is not None and cell.figures["tokens_per_hour"] is not None
    # Four samples of 100 tokens in 0.2 s.
    assert cell.figures["tokens_per_hour"].median == pytest.approx(3600 * 2000, rel=1e-3)
    assert cell.figures["tokens_per_hour"].low is not None
    oom = made.cell((220,), (4,))
    assert oom is not None and (oom.word, oom.figures) == ("OOM", {})
    assert made.counts == {"OOM": 1, "measured": 3}
    assert made.shared["stack"] == "lora"


def test_without_keys_the_rows_are_what_is_swept_and_differs() -> None:
    made = pivot(grid(["lora", "nf4"]))
    assert made.row_keys == ("stack", LENGTH, BATCH)
    assert len(made.cells) == 8
    assert "mfu" not in [one.name for one in made.values]  # no cell has one on a CPU


def test_experiments_of_one_place_get_a_row_each() -> None:
    rates = [point(train={"learning_rate": rate}) for rate in (1e-4, 1e-3)]
    runs = [run for one in rates for run in rounds(one, STEADY)]
    made = pivot(runs, rows=["stack"], columns=[BATCH])
    assert (made.row_keys, made.added_keys) == (
        ("stack", "train.learning_rate"),
        ("train.learning_rate",),
    )
    assert [cell.row for cell in made.cells] == [("lora", 1e-4), ("lora", 1e-3)]


def test_cells_are_compared_with_the_first_column_or_with_the_one_that_is_named() -> None:
    runs = [*rounds(point(batch=1), STEADY), *rounds(point(batch=4), scaled(2.0))]
    made = pivot(runs, rows=["stack"], columns=[BATCH], values=["times_as_fast"])
    four = made.cell(("lora",), (4,))
    assert four is not None and four.paired
    ratio = four.figures["times_as_fast"]
    assert ratio is not None and ratio.median == pytest.approx(2.0, rel=1e-3)
    assert ratio.low is not None and ratio.low < ratio.median
    layout = Layout(["stack"], [BATCH], ["times_as_fast"], {BATCH: 4})
    one = pivot_experiments(collect_experiments(runs), layout).cell(("lora",), (1,))
    assert one is not None and one.figures["times_as_fast"] is not None
    assert one.figures["times_as_fast"].median == pytest.approx(0.5, rel=1e-3)
    first = made.cell(("lora",), (1,))
    assert first is not None and first.why_not_compared == "this is the reference point"


def ratios(made: Pivot) -> dict[Any, float | None]:
    """The speed of each cell over that of its reference, by its place."""
    found = {(*cell.row, *cell.column): cell.figures["times_as_fast"] for cell in made.cells}
    return {key: one and round(one.median, 2) for key, one in found.items()}


def test_stacks_are_compared_with_the_baseline_of_their_session() -> None:
    runs = [*rounds(point("nf4"), STEADY), *rounds(point("bf16"), scaled(2.0))]
    layout = Layout(values=["times_as_fast"], baselines={"monday": "nf4", "tuesday": "bf16"})
    made = pivot_experiments(collect_experiments(runs), layout)
    assert made.reference == {"stack": "nf4"}
    assert ratios(made) == {("bf16",): 0.5, ("nf4",): None}


def test_the_reference_differs_from_what_is_compared_in_one_key() -> None:
    runs = [
        run
        for model, factor in (("big", 8.0), ("small", 1.0))
        for length in (110, 220)
        for run in rounds(point(length=length, model={"id": model}), scaled(factor))
    ]
    made = pivot(runs, values=["times_as_fast"])
    assert made.row_keys == ("model.id", LENGTH)
    assert made.reference == {LENGTH: 110}
    # Twice the tokens in the same time, of either model.
    assert ratios(made) == {
        **dict.fromkeys([("big", 110), ("small", 110)]),
        **dict.fromkeys([("big", 220), ("small", 220)], 2.0),
    }


def test_hours_and_money_are_those_of_cost() -> None:
    rate = HourlyRate(usd_per_hour=3.0, kind="given")
    runs = rounds(point(), STEADY)
    (cell,) = pivot(runs, terms=Terms(rate=rate, tokens=1e9)).cells
    (row,) = collect_experiments(runs)
    assert row.tokens_per_second is not None and cell.figures["dollars"] is not None
    cost = row.tokens_per_second.mapped(lambda speed: usd_per_million_tokens(3.0, 1, speed))
    assert cell.figures["dollars_per_million_tokens"] == cost
    assert cell.figures["dollars"].median == pytest.approx(1e3 * cost.median)
    hours = cell.figures["hours"]
    assert hours is not None and hours.median == pytest.approx(1e9 / 1000 / 3600, rel=1e-3)


def test_losses_of_all_steps_have_mean_ends_and_spread() -> None:
    rank = make_rank(losses=[4.0, 3.0, 2.0])
    names = ["mean_loss", "minimum_loss", "maximum_loss", "loss_standard_deviation"]
    (cell,) = pivot([make_result(point(), ranks=[rank])], values=names).cells
    assert [one and one.median for one in cell.figures.values()] == [3.0, 2.0, 4.0, 1.0]
    broken = make_rank(losses=[4.0, None, 2.0])
    (cell,) = pivot([make_result(point(), ranks=[broken])], values=names).cells
    assert set(cell.figures.values()) == {None}


def test_seconds_of_steps_have_mean_ends_and_spread() -> None:
    rank = make_rank(step_seconds=[0.4, 0.3, 0.2])
    names = ["mean_step_seconds", "minimum_step_seconds", "maximum_step_seconds"]
    names.append("step_seconds_standard_deviation")
    (cell,) = pivot([make_result(point(), ranks=[rank])], values=names).cells
    found = [one and one.median for one in cell.figures.values()]
    assert found == pytest.approx([0.3, 0.2, 0.4, 0.1])


def test_runs_that_counted_no_samples_have_no_rate_of_them() -> None:
    (run,) = rounds(point(), [0.1])
    rank = run.ranks[0]
    assert rank.window is not None
    samples = tuple(one.model_copy(update={"sequences": 0}) for one in rank.window.samples)
    window = rank.window.model_copy(update={"samples": samples})
    run = run.model_copy(update={"ranks": (rank.model_copy(update={"window": window}),)})
    (row,) = collect_experiments([run])
    assert row.speeds and FIGURES["samples_per_second"].compute(row, Terms()) is None


def test_an_imported_row_is_marked_and_stands_apart_from_a_measured_one() -> None:
    (run,) = rounds(point(), STEADY[:1])
    origin = Provenance(origin="imported", format="trainer", stated=(BATCH, LENGTH))
    foreign = run.model_copy(update={"run_id": "other", "ranks": (), "provenance": origin})
    experiment = run.experiment.model_copy(update={"id": "foreign"})
    made = pivot([run, foreign.model_copy(update={"experiment": experiment})], rows=[LENGTH])
    assert [cell.origin for cell in made.cells].count("imported trainer") == 1
    assert len(made.rows) == 2


def test_a_device_has_one_name_in_tables_and_facts() -> None:
    (run,) = rounds(point(), STEADY[:1])
    machine = Machine(
        host="h", system="Linux", processor="", cores=4, memory_bytes=1, python="3", versions={}
    )
    for processor, name in (("a Xeon", "a Xeon"), ("", "a CPU")):
        there = machine.model_copy(update={"processor": processor})
        one = run.model_copy(update={"machine": there})
        assert pivot([one]).shared["device"] == name
        assert device_models([one]) == (name,)


def test_an_unknown_key_or_figure_is_an_error_with_the_nearest() -> None:
    runs = rounds(point(), STEADY)
    with pytest.raises(StoreError, match="'sequence_lenght'; did you mean"):
        pivot(runs, rows=["sequence_lenght"])
    with pytest.raises(StoreError, match="no figure 'tokens'; did you mean"):
        pivot(runs, values=["tokens"])
    with pytest.raises(StoreError, match="rows and of columns"):
        pivot(runs, rows=["stack"], columns=["stack"])


def test_a_metric_of_the_runs_is_a_figure_by_its_name() -> None:
    metered = point(metrics=[{"use": "meter"}])
    facts: Any = {"unit": "J", "scope": "rank", "better": "lower", "plugin": "meter"}
    metric = Metric(name="energy", value=7.0, kind="sampled", **facts)
    rank = make_rank().model_copy(update={"metrics": (metric,)})
    runs = [make_result(metered, round=number, ranks=[rank]) for number in range(2)]
    for name in ("energy", "energy sampled"):
        (cell,) = pivot(runs, values=[name]).cells
        ((figure, value),) = cell.figures.items()
        assert (figure, value.median) == ("energy sampled", pytest.approx(7))
    with pytest.raises(StoreError, match="no figure 'enrgy'; did you mean 'energy'"):
        pivot(runs, values=["enrgy"])
    other = rank.model_copy(
        update={"metrics": (metric, metric.model_copy(update={"kind": "read"}))}
    )
    with pytest.raises(StoreError, match="energy is energy read and energy sampled: name one"):
        pivot([make_result(metered, ranks=[other])], values=["energy"])


@given(campaigns(), st.permutations(KEYS), st.integers(0, 3), st.integers(0, 2), st.randoms())
@settings(max_examples=40, deadline=None)
def test_each_experiment_stands_in_one_cell_in_any_order_and_totals_agree(
    runs: list[Result], keys: list[str], rows: int, columns: int, random: Any
) -> None:
    made = pivot(runs, rows=keys[:rows], columns=keys[rows : rows + columns])
    expected = {(run.experiment.id, run.experiment.stack.name) for run in runs}
    assert Counter((cell.experiment_id, cell.stack) for cell in made.cells) == Counter(expected)
    places = [(cell.row, cell.column) for cell in made.cells]
    assert len(set(places)) == len(places)
    assert {row for row, _ in places} == set(made.rows)
    assert {column for _, column in places} == set(made.columns)
    assert sum(made.counts.values()) == len(expected)
    completed = [run for run in runs if run.status.completed]
    assert sum(cell.runs for cell in made.cells) == len(completed)
    for cell in made.cells:
        assert bool(cell.word) is (not cell.figures)
        assert (cell.word == "OOM") is (cell.status is Status.OOM)
    shuffled = list(runs)
    random.shuffle(shuffled)
    assert pivot(shuffled, rows=keys[:rows], columns=keys[rows : rows + columns]) == made


def test_every_figure_is_the_same_without_the_samples_of_all_runs_but_two() -> None:
    """A whole store is read so: what a run of many has beside its speed takes most memory."""
    for whole in collect_experiments([*rounds(point(), STEADY), *grid(["lora", "nf4"])]):
        lean = whole.for_tables()
        for run in lean.completed.values():
            assert run in (whole.middle, whole.last) or run.ranks[0].window is None
        for name, figure in FIGURES.items():
            assert figure.compute(lean, Terms()) == figure.compute(whole, Terms()), name
        assert (lean.speeds, lean.ending, lean.load) == (whole.speeds, whole.ending, whole.load)


def test_what_is_counted_heads_its_columns() -> None:
    speech = point(task={"use": "ctc", "counts": "audio_samples"})
    names = ["tokens_per_hour", "dollars_per_million_tokens"]
    rate = HourlyRate(usd_per_hour=3.0, kind="given")
    made = pivot(rounds(speech, STEADY), values=names, terms=Terms(rate=rate))
    (table,) = pivot_tables(made)
    shown = [(column.title, column.unit) for column in table.columns][-2:]
    assert shown == [
        ("audio samples per hour", ""),
        ("dollars per million audio samples", "USD/1M audio_samples"),
    ]
