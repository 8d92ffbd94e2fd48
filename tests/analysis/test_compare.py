"""Stored experiments side by side: a verdict on comparable pairs, history otherwise."""

from __future__ import annotations

import math

import pytest
from analysis_factory import STEADY, make_experiment, make_rank, make_result, make_rounds, scaled
from scipy import stats

from accel_bench.analysis.compare import HISTORY, compare_stored
from accel_bench.analysis.statistics.estimators import unpaired_ratio
from accel_bench.result import Status

BASE = make_experiment("lora")
FAST = BASE.model_copy(update={"stack": BASE.stack.model_copy(update={"name": "fast"})})
LONGER = make_experiment("lora", scenario={"train": {"seed": 7}})


def test_pairs_get_a_verdict():
    found = compare_stored(make_rounds(BASE, STEADY), make_rounds(FAST, scaled(0.8)))
    assert (found.comparable, found.paired, found.rounds) == (True, True, 5)
    assert (found.verdict_word, found.loss_verdict) == ("faster", "bitwise equal")
    assert found.ratio.median == pytest.approx(1.25, rel=1e-3)
    assert (found.a.stack, found.b.stack) == ("lora", "fast")


def test_runs_that_are_no_pairs_get_a_ratio_and_never_a_verdict():
    tuesday = make_rounds(FAST, scaled(0.5), session="tuesday")
    found = compare_stored(make_rounds(BASE, STEADY), tuesday)
    assert (found.comparable, found.paired, found.rounds) == (True, False, 0)
    assert (found.verdict, found.verdict_reason) == ("not tested", HISTORY)
    assert found.ratio.low < 2.0 < found.ratio.high
    assert found.loss_verdict == "bitwise equal"


def test_pairs_that_are_not_comparable_get_no_verdict_but_the_fields():
    found = compare_stored(make_rounds(BASE, STEADY), make_rounds(LONGER, scaled(0.5)))
    assert (found.comparable, found.paired, found.verdict) == (False, True, "not tested")
    assert [d.key for d in found.differing] == ["work.train.seed"]
    assert found.verdict_reason == (
        "not comparable: work.train.seed (7 in the place of null) differ without being declared"
    )
    assert found.ratio is not None
    assert found.loss_verdict == "not tested"


def test_a_different_loss_is_seen_across_sessions():
    ranks = [make_rank(losses=[2.0, 2.1, 2.2])]
    unlike = [make_result(FAST, round=i, ranks=ranks, session="tuesday") for i in range(2)]
    found = compare_stored(make_rounds(BASE, STEADY), unlike)
    assert found.loss_verdict == "different"
    assert found.loss_difference == pytest.approx(2.1 / 1.99 - 1)


def test_a_side_that_failed_has_null_for_every_number():
    failed = [make_result(FAST, status=Status.OOM, reasons=["2 GiB asked"])]
    found = compare_stored(make_rounds(BASE, STEADY), failed)
    assert (found.ratio, found.verdict_reason) == (None, "B ended as oom")
    assert (found.b.runs, found.b.tokens_per_second, found.b.reasons[0]) == (0, None, "2 GiB asked")


def test_an_unpaired_interval_is_welch_s():
    a, b = [1.0, 1.02, 0.99, 1.05], [0.5, 0.52, 0.47]
    left, right = [math.log(x) for x in a], [math.log(x) for x in b]
    wanted = stats.ttest_ind(left, right, equal_var=False).confidence_interval(0.95)
    found, _ = unpaired_ratio(a, b)
    assert math.log(found.low) == pytest.approx(wanted.low)
    assert math.log(found.high) == pytest.approx(wanted.high)


def test_unpaired_values_without_spread_have_a_certain_ratio_and_one_value_no_interval():
    assert unpaired_ratio([2.0, 2.0], [1.0, 1.0])[0].low == pytest.approx(2.0)
    assert unpaired_ratio([2.0], [1.0, 1.1])[0].low is None
    assert unpaired_ratio([], [1.0]) == (None, None)
