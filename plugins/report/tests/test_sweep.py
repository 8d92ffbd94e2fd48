"""The table of sweep points, and that of devices, below the comparison of the stacks."""

from __future__ import annotations

from accel_bench_report.sweep import NAME, point_tables
from analysis_factory import STEADY, make_experiment, make_ranks, make_result, make_rounds, scaled

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.summary import summarize
from accel_bench.report.formats import render
from accel_bench.result import Node, Result, Status
from accel_bench.scenario.experiment import Experiment


def summary(points: list[Experiment], runs: list[Result]) -> Summary:
    """A summary of one stack at these points."""
    planned = [PlannedSummary(experiment=point) for point in points]
    return summarize("peft", "lora", planned, runs, 5)


def batch_sizes(**changes: str) -> Summary:
    """A sweep of the micro batch size, the second one twice as fast."""
    points = [
        make_experiment(sweep={"train.micro_batch_size": size}).model_copy(
            update={key: value.format(size) for key, value in changes.items()}
        )
        for size in (1, 4)
    ]
    return summary(points, [*make_rounds(points[0], STEADY), *make_rounds(points[1], scaled(0.5))])


def test_every_format_compares_the_points_with_the_reference() -> None:
    one = batch_sizes()
    text = render([one], "table")
    assert "sweep points were" in text
    assert "sweep points against train.micro_batch_size=1" in text
    (line,) = [line for line in text.splitlines() if "micro_batch_size=4" in line and "2.0" in line]
    assert "[" in line
    assert "paired within 5 rounds" in text
    assert "2.0" in render([one], "markdown").partition("sweep points against")[2]
    assert '"reference": {' in render([one], "json")
    header, _, second = render([one], "csv").splitlines()[:3]
    assert "point_ratio_median" in header and ",2.0" in second


def test_a_chosen_tag_names_the_points() -> None:
    text = render([batch_sizes(tag="bs_{}")], "table")
    assert "sweep points against bs_1" in text
    assert "bs_4" in text.partition("sweep points against")[2]


def test_without_a_sweep_there_is_no_such_table() -> None:
    one = make_experiment()
    assert "sweep points" not in render([summary([one], make_rounds(one, STEADY))], "table")


def test_a_sweep_of_devices_shows_how_it_scales() -> None:
    points = [
        make_experiment(
            sweep={"resources.devices": size}, scenario={"resources": {"devices": size}}
        )
        for size in (1, 2)
    ]
    runs = [
        make_result(point, round=number, ranks=make_ranks(point, seconds))
        for point, seconds in zip(points, (0.1, 0.125), strict=True)
        for number in range(5)
    ]
    text = render([summary(points, runs)], "wide")
    assert "lora: weak scaling, each device's batch stays" in text
    (line,) = [line for line in text.splitlines() if line.startswith("2 ")]
    assert {"1.600", "80", "125", "1.250"} <= set(line.replace("%", " ").split())
    assert "serial share, an estimate by Gustafson's law: 40 %" in text


def test_a_summary_of_several_points_holds_them_in_one_table() -> None:
    one, four = (make_experiment(sweep={"train.micro_batch_size": size}) for size in (1, 4))
    failed = [make_result(four, round=n, status=Status.OOM) for n in range(5)]
    made = summary([one, four], [*make_rounds(one, STEADY), *failed])
    pivot = made.sections[NAME].pivot
    assert [(cell.row, cell.word) for cell in pivot.cells] == [((1,), ""), ((4,), "OOM")]
    text = render([made], "table")
    assert "figures of the sweep points" in text and "samples per second" in text
    assert summary([one], make_rounds(one, STEADY)).sections == {}


def test_points_of_other_nodes_are_said_to_be_unpaired() -> None:
    def on(name: str, results: list[Result]) -> list[Result]:
        nodes = (Node(rank=0, name=name, address="192.0.2.1", cores=1, memory_bytes=1),)
        return [run.model_copy(update={"nodes": nodes}) for run in results]

    one, four = (make_experiment(sweep={"train.micro_batch_size": size}) for size in (1, 4))
    runs = [*on("a", make_rounds(one, STEADY)), *on("b", make_rounds(four, scaled(0.5)))]
    (table,) = point_tables(summary([one, four], runs).sections[NAME].points)
    assert any("times or nodes" in note for note in table.notes)
