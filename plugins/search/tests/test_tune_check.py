"""Compared losses of winner and baseline, and verdicts on servers."""

from __future__ import annotations

from accel_bench_search.trial import TUNED
from accel_bench_search.tune_report import Objective, TuneCheck
from accel_bench_search.tune_search import check_speed, paired_losses
from analysis_factory import TOKENS, make_experiment, make_rank, make_result
from serving_factory import serving

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.summary import summarize
from accel_bench.result import Result

OBJECTIVE = Objective(goal="loss", unit="tokens", amount=2 * TOKENS)


def doubled(run: Result) -> Result:
    """The same run, counting more real tokens than it processed."""
    window = run.ranks[0].window
    assert window is not None
    samples = tuple(one.model_copy(update={"real_tokens": 2 * TOKENS}) for one in window.samples)
    rank = run.ranks[0].model_copy(
        update={"window": window.model_copy(update={"samples": samples})}
    )
    return run.model_copy(update={"ranks": (rank,)})


def test_a_run_that_failed_its_self_audit_has_no_loss() -> None:
    base, winner = (
        make_result(
            make_experiment(name), ranks=[make_rank(step_seconds=[0.1] * 2, losses=[loss] * 3)]
        )
        for name, loss in (("lora", 3.0), (TUNED, 2.0))
    )
    assert paired_losses([base, winner], OBJECTIVE) == [(3.0, 2.0)]
    assert paired_losses([base, doubled(winner)], OBJECTIVE) == []


def check_of(baseline: list[Result], winner: list[Result]) -> TuneCheck:
    """The check of the rounds of two servers."""
    planned = [PlannedSummary(experiment=runs[0].experiment) for runs in (baseline, winner)]
    return check_speed(summarize("served", "base", planned, [*baseline, *winner], 5), "monday")


def without_answers(run: Result) -> Result:
    """The same run without stored answers."""
    ranks = [rank.model_copy(update={"answers": None}) for rank in run.ranks]
    return run.model_copy(update={"ranks": tuple(ranks)})


def test_a_server_that_keeps_up_is_better_than_a_saturated_one_if_it_answers_the_same() -> None:
    full, winner = serving("base", 100, saturated=True), serving(TUNED, 50)
    assert check_of(full, winner).verdict == "better"
    for other in ([without_answers(run) for run in winner], serving(TUNED, 50, answer=(1, 2))):
        found = check_of(full, other)
        assert (found.verdict, found.ratio) == ("not tested", None)
