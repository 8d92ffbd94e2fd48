"""Metrics of plugins that a scenario names: in the document, in tables, in exports."""

from __future__ import annotations

import pytest
from analysis_factory import make_experiment, make_rank, make_result, make_summary

from accel_bench.analysis.compare import compare_stored
from accel_bench.analysis.metrics.plugin_metrics import named_metrics
from accel_bench.report.formats import render, render_report
from accel_bench.report.views.compare import compare_report
from accel_bench.result import Metric

NAMED = {"metrics": [{"use": "memory"}, {"use": "joules"}]}
BASE, FAST = (make_experiment(name, scenario=NAMED) for name in ("lora", "fast"))


def joules(value, better="lower", plugin="joules", **more):
    facts = {"unit": "J", "scope": "rank", "better": better, "plugin": plugin, **more}
    return Metric(name="energy", value=value, **facts)


def runs(experiment, *per_run):
    """One run for each tuple of metrics, one of them for each rank."""
    return [
        make_result(
            experiment,
            round=number,
            ranks=[
                make_rank(rank).model_copy(update={"metrics": (metric,)})
                for rank, metric in enumerate(metrics)
            ],
        )
        for number, metrics in enumerate(per_run)
    ]


@pytest.mark.parametrize(("better", "value"), [("lower", 20), ("higher", 10), ("neither", 15)])
def test_the_worst_rank_counts_and_the_median_run(better, value):
    ranks = (joules(10, better), joules(20, better))
    more = (joules(1000, better), joules(1000, better))
    none = (joules(None, better, reason="no counter"), joules(None, better))
    less = (joules(0, better), joules(0, better))
    (found,) = named_metrics(runs(BASE, ranks, more, less, none))
    assert (found.name, found.plugin, found.unit) == ("energy", "joules", "J")
    assert (found.value, found.better, found.reason) == (value, better, "no counter")


def test_what_no_name_of_the_scenario_measured_and_known_figures_are_left_out():
    assert not named_metrics(runs(BASE, (joules(1, plugin="of-a-stack"),)))
    assert not named_metrics(runs(BASE, (joules(1, plugin="memory"),)))
    assert not named_metrics(runs(BASE, (joules(1, figure="peak_memory"),)))


def test_what_an_observer_measured_counts_too():
    observed = make_result(BASE).model_copy(update={"metrics": (joules(3),)})
    assert [one.value for one in named_metrics([observed])] == [3]


def summary():
    results = [*runs(BASE, (joules(10),), (joules(10),)), *runs(FAST, (joules(8),), (joules(8),))]
    return make_summary([BASE, FAST], results, rounds=2)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_the_table_of_run_has_them_with_the_better_direction(form):
    shown = " ".join(render([summary()], form).split())
    assert "energy" in shown
    assert "lower is better" in shown
    assert "0.80 times, better" in shown


def test_json_and_csv_of_run_have_them():
    (base, fast) = summary().experiments
    assert [one.value for one in (*base.metrics, *fast.metrics)] == [10, 8]
    assert '"name": "energy"' in render([summary()], "json")
    assert "energy=8.0" in render([summary()], "csv")


def test_compare_has_them_on_both_sides():
    (ten, twelve) = ((joules(10),), (joules(12),))
    found = compare_stored(runs(BASE, ten, ten), runs(FAST, twelve, twelve))
    table = render_report(compare_report([found]), "table")
    line = next(line for line in table.splitlines() if "energy" in line)
    assert line.split()[-5:] == ["10.00", "12.00", "(1.20", "times,", "worse)"]
    assert "energy=12.0" in render_report(compare_report([found]), "csv")


@pytest.mark.parametrize(
    ("before", "after", "better", "words"),
    [
        ((10, 10), (8, 9), "lower", "0.85 times, better"),
        ((10, 10), (8, 9), "higher", "0.85 times, worse"),
        ((10, 10), (8, 9), "neither", "0.85 times"),
        ((10, 10), (8, 11), "lower", "0.95 times"),
        ((10, 10), (8, 10), "lower", "0.90 times"),
        ((10,), (8,), "lower", "0.80 times"),
        ((10, 10), (8, None), "lower", "0.80 times"),
        ((-10, -10), (-8, -8), "lower", "worse"),
        ((0, 0), (8, 8), "lower", "worse"),
        ((-1, 1), (2, 2), "higher", "better"),
        ((10, 10), (None, None), "lower", ""),
    ],
)
def test_a_value_is_better_or_worse_where_all_paired_rounds_agree(before, after, better, words):
    (base, stack) = (
        named_metrics(runs(experiment, *((joules(value, better),) for value in values)))
        for experiment, values in ((BASE, before), (FAST, after))
    )
    assert stack[0].against(base[0]) == words


TWO = {"metrics": [{"use": "joules"}, {"use": "watts"}]}


def of_two_plugins(name, *values):
    """One run in which two plugins measured metrics of the same name."""
    metrics = [
        joules(value, plugin=plugin)
        for value, plugin in zip(values, ["joules", "watts"], strict=True)
    ]
    ranks = [make_rank(0).model_copy(update={"metrics": tuple(metrics)})]
    return [make_result(make_experiment(name, scenario=TWO), ranks=ranks)]


def test_metrics_of_one_name_are_kept_apart_by_plugin_and_unit():
    found = named_metrics(of_two_plugins("lora", 10, 1000))
    assert [(one.plugin, one.value) for one in found] == [("joules", 10), ("watts", 1000)]
    (kilo, plain) = named_metrics(runs(BASE, (joules(1, unit="kJ"), joules(900))))
    assert (kilo.value, plain.value) == (1, 900)


def test_tables_compare_the_metrics_of_each_plugin_and_name_it():
    before, after = of_two_plugins("lora", 10, 1000), of_two_plugins("fast", 5, 4000)
    experiments = [run.experiment for run in (*before, *after)]
    tables = [
        render([make_summary(experiments, [*before, *after], rounds=1)], "table"),
        render_report(compare_report([compare_stored(before, after)]), "table"),
    ]
    for table in tables:
        shown = " ".join(table.split())
        assert "(joules)" in shown and "(watts)" in shown
        assert "0.50 times" in shown and "4.00 times" in shown
    flat = render_report(compare_report([compare_stored(before, after)]), "csv")
    assert "joules.energy=5.0" in flat and "watts.energy=4000.0" in flat
