"""Requests at a rate: latencies are compared in the place of tokens per busy second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from analysis_factory import make_failures, make_rank
from serving_factory import serving

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.compare import compare_stored
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.metrics.offered_load import OTHER_LOAD, is_saturated, largest_metric
from accel_bench.analysis.quantity import compared_by
from accel_bench.analysis.schema import Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.summary import judge_row, summarize
from accel_bench.report.formats import render
from accel_bench.result import Result, Status


def summary_of(*stacks: Sequence[Result]) -> Summary:
    """The summary of stacks, the first of which is the baseline."""
    planned = [PlannedSummary(experiment=runs[0].experiment) for runs in stacks]
    results = [run for runs in stacks for run in runs]
    return summarize("served", stacks[0][0].experiment.stack.name, planned, results, 5)


def test_a_slower_server_is_slower_although_its_larger_batches_make_more_tokens_a_second() -> None:
    """Batches in 0.6 s and in 3 s at 4 requests/s: the second one is busy at a higher rate."""
    summary = summary_of(serving("base", 850, seconds=0.106), serving("late", 4540, seconds=0.1))
    base, late = summary.experiments
    assert base.tokens_per_second is not None and late.tokens_per_second is not None
    assert late.tokens_per_second.median > base.tokens_per_second.median
    assert late.verdict == "worse"
    assert late.ratio is not None and late.ratio.median == pytest.approx(850 / 4540)
    assert late.request_seconds is not None
    assert late.request_seconds.median == pytest.approx(4.54, rel=1e-3)
    text = render([summary], "markdown")
    assert "by the latency of the median request" in conclusion(summary)
    assert "the speed is that of the busy time" in text


def test_a_server_that_answers_sooner_with_other_text_is_no_faster() -> None:
    summary = summary_of(serving("base", 100), serving("other", 50, answer=(1, 2, 3)))
    assert summary.experiments[1].verdict_word == "different output"
    same = summary_of(serving("base", 100), serving("other", 50))
    assert same.experiments[1].verdict_word == "faster"


def test_latencies_count_that_a_plugin_of_the_stack_measured_in_the_engines_place() -> None:
    summary = summary_of(serving("base", 100), serving("paged", 50, answered_by="paged"))
    row = summary.experiments[1]
    assert row.verdict_word == "faster"
    assert row.ratio is not None and row.ratio.median == pytest.approx(2.0)
    assert {one.plugin for one in row.metrics if one.name == "request_latency_p50"} == {"paged"}
    # Of two that report latencies and are not the scenario's engine, neither is known to answer.
    (one,), (other,) = (serving("two", 50, rounds=1, answered_by=name) for name in ("a", "b"))
    both = one.ranks[0].model_copy(
        update={"metrics": (*one.ranks[0].metrics, *other.ranks[0].metrics)}
    )
    assert largest_metric(one.model_copy(update={"ranks": (both,)}), "request_latency_p50") is None


@pytest.mark.parametrize("full", ["base", "fast"])
def test_nothing_is_compared_with_a_server_whose_queue_grows(full: str) -> None:
    runs = [serving(one, ms, saturated=one == full) for one, ms in (("base", 100), ("fast", 50))]
    summary = summary_of(*runs)
    row = summary.experiments[1]
    assert (row.verdict, row.ratio, row.output_verdict) == ("not tested", None, "bitwise equal")
    assert row.verdict_reason.startswith(f"saturated: {full} at 4 requests/s")
    assert summary.experiments[full == "fast"].saturated
    assert "nothing was compared" in conclusion(summary)
    assert row.verdict_reason in render([summary], "markdown")
    stored = compare_stored(*runs)
    assert (stored.ratio, stored.verdict) == (None, "not tested")


def test_a_latency_and_a_speed_are_not_compared() -> None:
    def ratio(own: float | None) -> tuple[Interval | None, str]:
        base, fast = serving("base", 100, rate=own), serving("fast", 50, declares=True)
        row = summary_of(base, fast).experiments[1]
        assert judge_row(row, "base", 0.01)[0] == "inconclusive"
        return row.ratio, row.verdict_reason

    assert ratio(None) == (None, OTHER_LOAD)
    assert ratio(2.0) == (None, "requests arrive at 2 and at 4 a second")


def test_without_a_rate_tokens_per_second_are_compared() -> None:
    slow, fast = serving("base", 100, rate=None), serving("fast", 900, seconds=0.05, rate=None)
    row = summary_of(slow, fast).experiments[1]
    assert row.verdict_word == "faster"
    assert (row.offered_rate, row.request_seconds) == (None, None)


def test_latencies_that_were_not_measured_leave_the_speed_open() -> None:
    base, fast = (serving(name, None) for name in ("base", "fast"))
    row = summary_of(base, fast).experiments[1]
    assert (row.ratio, row.verdict_reason) == (None, "latencies of requests were not measured")
    assert row.output_verdict == "bitwise equal"


def test_at_a_rate_too_stacks_may_be_compared_by_memory() -> None:
    base, fast = (
        [compared_by(run, "peak_memory_bytes") for run in serving(*one)]
        for one in (("base", 100.0), ("fast", 50.0))
    )
    summary = summary_of(base, fast)
    assert summary.experiments[1].verdict == "same"
    text = " ".join(render([summary], "table").split())
    assert "at inference.rate: the speed is that of the busy time" in text
    assert "latency of the median request" not in text


def test_without_a_rate_too_latencies_may_be_compared() -> None:
    base, fast = (
        [compared_by(run, "request_latency_p50") for run in serving(*one, rate=None)]
        for one in (("base", 100.0), ("fast", 50.0))
    )
    assert summary_of(base, fast).experiments[1].verdict == "better"
    assert "base generates at" in conclusion(summary_of(base))


def test_a_metric_of_a_run_is_that_of_its_worst_rank_and_needs_all_ranks() -> None:
    (one,), (other,) = serving("base", 100, rounds=1), serving("base", 300, rounds=1)
    both = one.model_copy(update={"ranks": (*one.ranks, *other.ranks)})
    assert largest_metric(both, "request_latency_p50") == 300
    lacking = one.model_copy(update={"ranks": (*one.ranks, make_rank(1))})
    assert largest_metric(lacking, "request_latency_p50") is None
    assert not is_saturated(both)
    (full,) = serving("base", 100, rounds=1, saturated=True)
    assert is_saturated(one.model_copy(update={"ranks": (*one.ranks, *full.ranks)}))


def test_a_server_that_failed_is_not_compared() -> None:
    failed = make_failures(serving("fast", 50)[0].experiment, Status.FAILED)
    row = summary_of(serving("base", 100), failed).experiments[1]
    assert (row.ratio, row.request_seconds, row.saturated) == (None, None, False)
