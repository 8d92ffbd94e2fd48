"""A row that failed its self-audit gets no verdict anywhere."""

from __future__ import annotations

import pytest
from analysis_factory import (
    FAST,
    LORA,
    STEADY,
    make_experiment,
    make_rounds,
    make_summary,
    scaled,
)

from accel_bench.analysis.checks.audit import DEGRADING_ALONE, INVARIANTS, audit_failures
from accel_bench.analysis.compare import compare_stored
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.summary import judge_row
from accel_bench.report.render_terminal import render_terminal
from accel_bench.report.views.run_table import stacks_report
from accel_bench.result import PhaseSplit, Result, Status

WHY = "token_counts: step 1: 110 processed, 200 real, 99 supervised tokens"


def doubled(result: Result) -> Result:
    """The same row, counting two tokens for one."""
    rank = result.ranks[0]
    samples = tuple(s.model_copy(update={"real_tokens": 200}) for s in rank.window.samples)
    window = rank.window.model_copy(update={"samples": samples})
    return result.model_copy(update={"ranks": (rank.model_copy(update={"window": window}),)})


def unevenly_split(result: Result) -> Result:
    """The same row, whose phases do not add up to the step."""
    split = PhaseSplit(steps=3, step_seconds=1.0, seconds={"forward": 0.5})
    rank = result.ranks[0].model_copy(update={"phases": split})
    return result.model_copy(update={"ranks": (rank,)})


BASELINE = make_rounds(LORA, STEADY)
DOUBLED = list(map(doubled, make_rounds(FAST, STEADY)))
ONE_DOUBLED = [DOUBLED[0], *make_rounds(FAST, scaled(0.5))[1:]]


def test_every_invariant_but_that_of_the_phases_fails_a_row():
    assert DEGRADING_ALONE < set(INVARIANTS)
    assert audit_failures(DOUBLED[0]) == (WHY,)
    assert audit_failures(unevenly_split(BASELINE[0])) == ()


@pytest.mark.parametrize("runs", [DOUBLED, ONE_DOUBLED])
def test_the_table_gives_such_a_row_neither_ratio_nor_verdict(runs):
    """One such run is enough: whatever made it may have touched the others."""
    row = make_summary([LORA, FAST], [*BASELINE, *runs]).experiments[1]
    assert (row.status, row.ratio, row.verdict) == (Status.DEGRADED, None, "not tested")
    assert row.verdict_reason == f"failed its self-audit ({WHY})"
    assert (row.loss_verdict, row.failed_audit) == ("not tested", (WHY,))
    outcome, reason = judge_row(row, "lora", 0.01)
    assert (outcome, row.verdict_reason in reason) == ("inconclusive", True)


def test_a_split_that_does_not_add_up_leaves_the_verdict_as_it_is():
    runs = list(map(unevenly_split, make_rounds(FAST, scaled(0.8))))
    row = make_summary([LORA, FAST], [*BASELINE, *runs]).experiments[1]
    assert (row.status, row.verdict_word) == (Status.DEGRADED, "faster")
    assert judge_row(row, "lora", 0.01)[0] == "passed"


def test_the_sentence_says_that_no_verdict_rests_on_it():
    summary = make_summary([LORA, FAST], [*BASELINE, *DOUBLED])
    sentence = conclusion(summary)
    assert sentence.startswith("lora trains at 1,000 tokens/s")
    assert f"; no verdict rests on fast, which failed its self-audit ({WHY}; `acc" in sentence
    assert "fast trains" not in sentence
    table = render_terminal(stacks_report([summary]).sections, 120)
    assert "not tested" in next(line for line in table.splitlines() if line.startswith("fast"))


def test_beside_others_it_is_named_after_their_verdicts():
    other = make_experiment("other")
    runs = [*BASELINE, *DOUBLED, *make_rounds(other, scaled(0.5))]
    sentence = conclusion(make_summary([LORA, FAST, other], runs))
    assert sentence.startswith("other is 2")
    assert sentence.endswith(
        f"failed its self-audit ({WHY}; `accel-bench results check` names the runs)."
    )


def test_nothing_is_compared_with_a_baseline_that_failed_its_audit():
    runs = [*map(doubled, BASELINE), *make_rounds(FAST, scaled(0.5))]
    summary = make_summary([LORA, FAST], runs)
    base, row = summary.experiments
    assert (base.ratio, row.ratio) == (None, None)
    assert row.verdict_reason == f"the baseline failed its self-audit ({WHY})"
    assert f"no verdict rests on lora, which failed its self-audit ({WHY}; " in conclusion(summary)


def test_where_all_failed_their_audit_there_is_no_speed_to_tell():
    runs = [*map(doubled, BASELINE), *DOUBLED]
    assert conclusion(make_summary([LORA, FAST], runs)).startswith("nothing was compared; no verd")


def test_stored_experiments_are_not_compared_with_it():
    found = compare_stored(BASELINE, DOUBLED)
    assert (found.ratio, found.verdict) == (None, "not tested")
    assert found.verdict_reason == found.loss_reason == f"B failed its self-audit ({WHY})"
