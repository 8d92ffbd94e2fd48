"""Ranking of stacks: they fit, train the same, and then finish the job soonest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from accel_bench_advise.recommendation.candidate_rows import answer_of, candidate_row, others_of
from accel_bench_advise.recommendation.candidates import collect_candidates
from accel_bench_advise.recommendation.ranking import Ranked, break_evens, rank
from analysis_factory import with_threads
from recommendation_factory import BASELINE, LOSSES, experiment, in_turn, runs
from serving_factory import serving

from accel_bench.analysis.device_kinds import device_of
from accel_bench.analysis.metrics.offered_load import OTHER_LOAD
from accel_bench.result import Provenance, RankResult, Result, Status


def ranking(results: Sequence[Result], tokens: float | None = None) -> Ranked:
    return rank(collect_candidates(results, BASELINE), tokens)


def names(ranked: Ranked) -> list[str]:
    """Names of the eligible candidates, the fastest first."""
    return [one.name for one in ranked.eligible]


def test_the_fastest_with_the_same_training_wins_and_the_others_say_why_not() -> None:
    results = in_turn(
        runs(experiment("baseline")),
        runs(experiment("fast"), 1.3),
        runs(experiment("second"), 1.2),
        runs(experiment("cheat"), 3.0, losses=[3.0] * 13),
    )
    ranked = ranking(results)
    assert names(ranked) == ["fast", "second", "baseline"]
    assert ranked.sure
    others = {one.row.stack: one for one in others_of(ranked, None)}
    assert [others[name].outcome for name in ("second", "baseline", "cheat")] == [
        "runner-up",
        "slower",
        "changes the training",
    ]
    second = others["second"].of_the_best
    assert second is not None and second.low is not None and second.high is not None
    assert second.low < 1.2 / 1.3 < second.high
    assert len(others["second"].row.evidence.run_ids) == 5
    words = answer_of(ranked, None)
    assert words.startswith("Use fast on l4: ")
    assert "1.300 [1.29" in words and "with a bitwise equal loss" in words


def test_a_loss_that_only_a_declaration_allows_is_said_where_it_is_recommended() -> None:
    shifted = [1.015 * loss for loss in LOSSES]
    four_bits = runs(experiment("nf4"), 1.3, losses=shifted, loss_tolerances={"nf4": 0.02})
    ranked = ranking(in_turn(runs(experiment("baseline")), four_bits))
    assert names(ranked) == ["nf4", "baseline"] and ranked.best is not None
    words = answer_of(ranked, None)
    assert "with an equivalent update, its loss: within what nf4 declares" in words
    assert candidate_row(ranked.best, None).loss.startswith(
        "within what nf4 declares (by up to 1.5 %"
    )


def test_what_computed_something_else_is_not_recommended_and_a_hot_device_is_no_reason() -> None:
    degraded: dict[str, Any] = {"status": Status.DEGRADED}
    hot, other = "throttled: hw_slowdown on GPU-1", "28 of 29 linear modules compute in bfloat16"
    ranked = ranking(
        in_turn(
            runs(experiment("baseline")),
            runs(experiment("hot"), 1.2, reasons=[hot], **degraded),
            runs(experiment("cut"), 1.5, reasons=[hot, other], **degraded),
        )
    )
    assert names(ranked) == ["hot", "baseline"]
    cut = next(one for one in others_of(ranked, None) if one.row.stack == "cut")
    assert (cut.outcome, cut.why) == ("degraded", f"it is degraded: {other}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": Status.INVALID}, "it ended as invalid"),
        ({"status": Status.FAILED, "reasons": ("no",)}, "it ended as failed"),
    ],
)
def test_what_did_not_complete_is_never_recommended(changes: dict[str, Any], reason: str) -> None:
    ranked = ranking(in_turn(runs(experiment("baseline")), runs(experiment("x"), 9.0, **changes)))
    assert names(ranked) == ["baseline"]
    (refused,) = ranked.refused
    assert refused.obstacle == reason


def test_audit_failures_uncomparable_and_imported_runs_are_never_recommended() -> None:
    fast = runs(experiment("failed_audit"))
    broken = [
        run.model_copy(
            update={
                "ranks": tuple(
                    rank.model_copy(
                        update={"window": rank.window.model_copy(update={"ended": 10.5})}
                    )
                    for rank in run.ranks
                    if rank.window
                )
            }
        )
        for run in fast
    ]
    imported = [
        run.model_copy(update={"provenance": Provenance(origin="imported", file="old.csv")})
        for run in runs(experiment("old"), 9.0)
    ]
    other = with_threads(runs(experiment("threads"), 9.0), 8)
    ranked = ranking(in_turn(runs(experiment("baseline")), broken, imported, other))
    assert names(ranked) == ["baseline"]
    reasons = {one.name: one.obstacle for one in ranked.refused}
    assert "failed its self-audit" in reasons["failed_audit"]
    assert reasons["threads"].startswith("not comparable")
    assert "old" not in reasons, "imported rows are no candidates at all"


def test_what_fits_comes_first_even_where_the_baseline_does_not() -> None:
    large, small = experiment("baseline", 8), experiment("baseline", 2)
    too_large = [run.model_copy(update={"ranks": ()}) for run in runs(large, status=Status.OOM)]
    results = in_turn(too_large, runs(experiment("frugal", 8), 1.5), runs(small))
    ranked = ranking(results)
    assert names(ranked)[0] == "frugal (train.micro_batch_size=8)", "compared with the small batch"
    (refused,) = others_of(ranked, None)[-1:]
    assert (refused.outcome, refused.why) == ("does not fit", "it ran out of memory")
    alone = ranking(in_turn(too_large, runs(experiment("frugal", 8))))
    assert names(alone) == ["frugal (train.micro_batch_size=8)"]
    assert not alone.sure
    assert "compared with nothing" in answer_of(alone, None)


def test_another_batch_layout_may_win_and_another_batch_may_not() -> None:
    results = in_turn(
        runs(experiment("baseline", 2)),
        runs(experiment("baseline", 4), 1.2),
        runs(experiment("baseline", 8, batch=16), 1.9),
    )
    ranked = ranking(results[:10])
    assert names(ranked)[0] == "baseline (train.micro_batch_size=4)"
    assert (
        "baseline (train.micro_batch_size=8)" not in names(ranking([*results[10:], *results]))[1:]
    )


def test_rounds_that_both_ran_side_by_side_are_preferred_to_those_that_they_did_not() -> None:
    """Drift made the larger batch look faster in runs one after another."""
    small, large = experiment("baseline", 2), experiment("baseline", 4)
    apart = [
        run.model_copy(update={"started_at": f"{run.started_at[:14]}{30 + run.round}:00Z"})
        for run in runs(large, 1.3)
    ]
    one_by_one = [*in_turn(runs(small)), *apart]
    tuesday = {"session": "tuesday"}
    paired = in_turn(runs(small, **tuesday), runs(large, 0.9, **tuesday))
    assert names(ranking(one_by_one))[0] == "baseline (train.micro_batch_size=4)"
    ranked = ranking([*one_by_one, *paired])
    assert names(ranked)[0] == "baseline (train.micro_batch_size=2)"
    assert ranked.sure
    (other,) = others_of(ranked, None)
    assert other.of_the_best is not None
    assert other.of_the_best.median == pytest.approx(0.9)


def test_within_two_percent_the_plainest_is_recommended() -> None:
    ranked = ranking(in_turn(runs(experiment("baseline")), runs(experiment("same"), 1.01)))
    assert ranked.best is not None and ranked.best.name == "baseline"
    (other,) = others_of(ranked, None)
    assert other.outcome == "runner-up"
    assert other.why == "within 2 % of the recommended one, which changes less"


def test_a_late_start_is_left_off_in_a_short_job_and_used_in_a_long_one() -> None:
    results = in_turn(
        runs(experiment("baseline"), start=10), runs(experiment("compiled"), 1.25, start=14.06)
    )
    short, long = (ranking(results, steps * 800.0) for steps in (180, 2000))
    assert short.best is not None and short.best.name == "baseline"
    (left,) = break_evens(short, 180 * 800.0)
    assert left.sentence.startswith("compiled pays after 203 steps [")
    assert left.sentence.endswith("your job has 180: leave it off")
    (other,) = others_of(short, 180 * 800.0)
    assert other.why.startswith("its steps are faster; its start costs more")
    assert long.best is not None and long.best.name == "compiled"
    assert [one.pays for one in break_evens(long, 2000 * 800.0)] == ["holds"]


def test_a_start_within_the_noise_has_no_break_even() -> None:
    packed = [
        run.model_copy(update={"ranks": (later(run.ranks[0], 0.3 * (-1) ** number),)})
        for number, run in enumerate(runs(experiment("packed"), 2.0))
    ]
    results = in_turn(runs(experiment("baseline")), packed)
    ranked = ranking(results, 8e5)
    assert ranked.best is not None and ranked.best.name == "packed"
    assert break_evens(ranked, 8e5) == []
    one_round = ranking([run for run in results if not run.round], 8e5)
    assert break_evens(one_round, 8e5) == []


def later(rank: RankResult, seconds: float) -> RankResult:
    """A rank whose warm-up ended so many seconds later."""
    (stage,) = rank.stages
    stage = stage.model_copy(update={"seconds": (stage.seconds or 0.0) + seconds})
    return rank.model_copy(update={"stages": (stage,)})


def test_few_or_noisy_rounds_are_not_sure() -> None:
    results = in_turn(runs(experiment("baseline")), runs(experiment("fast"), 1.3))
    few = ranking([run for run in results if run.round < 3])
    assert few.best is not None and few.best.name == "fast"
    assert not few.sure
    assert "on 3 rounds it cannot be told for sure" in answer_of(few, None)


@pytest.mark.parametrize("torch_type", ["mps", "xpu"])
def test_another_device_than_cuda_is_no_cpu(torch_type: str) -> None:
    """Rows of a device type are not the host processor's, whether it is installed or not."""
    on_device = runs(experiment("baseline"), device={"type": torch_type, "name": "Acme GPU"})[0]
    on_host = runs(experiment("baseline"), device={"type": "cpu", "name": "cpu"})[0]
    found = device_of(on_device)
    assert found is not None
    assert (found.name, found.kind, found.host) == ("Acme GPU", torch_type, "")
    host = device_of(on_host)
    assert host is not None
    assert (host.kind, host.name) == (
        "cpu",
        on_host.machine.processor if on_host.machine else "cpu",
    )


def served(at_most: dict[str, float] | None = None, **full: bool) -> Ranked:
    """Three servers at 4 requests/s; the one that answers last has the highest busy speed."""
    stacks = [("base", 100.0, 0.1), ("soon", 50.0, 0.2), ("late", 200.0, 0.01)]
    found = in_turn(
        *(
            serving(name, ms, seconds=seconds, saturated=full.get(name, False))
            for name, ms, seconds in stacks
        )
    )
    return rank(collect_candidates(found, {"monday": "base"}), None, at_most)


def test_at_a_rate_the_soonest_answer_is_recommended() -> None:
    ranked = served()
    assert names(ranked) == ["soon", "base", "late"]
    assert ranked.sure
    words = answer_of(ranked, None)
    assert "the median of 4 requests/s is answered in 50.0 ms, 2.00" in words
    assert "in its worst run 99 of 100 requests took at most 150 ms" in words
    assert break_evens(ranked, None) == []


@pytest.mark.parametrize(
    ("rate", "reason"), [(4.0, "requests arrive at 4 and at 1 a second"), (None, OTHER_LOAD)]
)
def test_a_server_that_is_asked_for_fewer_requests_is_never_recommended(
    rate: float | None, reason: str
) -> None:
    calm = serving("calm", 50, rate=1.0, declares=True)
    found = in_turn(serving("base", 100, rate=rate), calm)
    ranked = rank(collect_candidates(found, {"monday": "base"}), None)
    assert names(ranked) == ["base"]
    assert [one.obstacle for one in ranked.refused] == [reason]


def test_a_saturated_server_is_never_recommended() -> None:
    ranked = served(soon=True)
    assert names(ranked) == ["base", "late"]
    assert [(one.outcome, one.row.stack) for one in others_of(ranked, None)][-1] == (
        "saturated",
        "soon",
    )
    nothing = served(base=True, soon=True, late=True)
    assert nothing.best is None
    assert {one.outcome for one in others_of(nothing, None)} == {"saturated"}


def test_the_slowest_requests_can_be_limited() -> None:
    ranked = served({"request_latency_p99": 299.0})
    assert names(ranked) == ["soon"]
    over = {
        one.row.stack: one.why for one in others_of(ranked, None) if one.outcome == "over a limit"
    }
    assert over["base"] == "request_latency_p99 may be 299 at most: its worst run has 300"
    unknown = served({"time_to_first_token_p99": 5.0})
    assert unknown.best is None
    assert unknown.refused[0].obstacle.endswith("it was not measured")


def test_the_memory_of_a_training_can_be_limited() -> None:
    results = in_turn(runs(experiment("baseline")), runs(experiment("fast"), 1.3))
    candidates = collect_candidates(results, BASELINE)
    assert names(rank(candidates, None, {"peak_memory_bytes": 1000.0})) == ["fast", "baseline"]
    small = rank(candidates, None, {"peak_memory_bytes": 999.0})
    assert small.best is None
    why = "peak_memory_bytes may be 999 at most: its worst run has 1,000"
    assert [one.obstacle for one in small.refused] == [why, why]
