"""The document: its keys, its numbers, and null where there are none."""

from __future__ import annotations

import pytest
from analysis_factory import (
    FAST,
    LORA,
    NF4,
    STEADY,
    make_experiment,
    make_failures,
    make_rank,
    make_result,
    make_rounds,
    make_summary,
    scaled,
    with_threads,
)

from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.summary import exit_code, judge_row
from accel_bench.analysis.wording import differs
from accel_bench.effective import EffectiveConfiguration
from accel_bench.result import Status
from accel_bench.scenario.models import Stack
from accel_bench.scenario.uses import Use

KEYS = {
    "experiment_id", "stack", "sweep", "status", "reasons", "runs", "tokens_per_second", "ratio",
    "step_seconds", "peak_memory_bytes", "loss", "loss_verdict", "verdict",
    "tokens_per_second_per_device", "peak_memory_kind", "differs", "devices_used", "plugins",
    "evidence", "effective",
}  # fmt: skip


def two_stacks(**changes):
    results = [*make_rounds(LORA, STEADY), *make_rounds(FAST, scaled(0.8))]
    return make_summary([LORA, FAST], results, **changes)


def test_the_document_has_the_promised_keys():
    document = two_stacks().model_dump(mode="json")
    assert set(document) == {
        "schema_version",
        "scenario",
        "baseline",
        "experiments",
        "reference",
        "race",
        "sections",
        "notices",
        "noise",
    }
    row = document["experiments"][1]
    assert set(row) >= KEYS
    interval = {"median", "low", "high", "confidence"}
    assert set(row["tokens_per_second"]) == set(row["ratio"]) == interval
    assert row["tokens_per_second"]["confidence"] == 0.95 < row["ratio"]["confidence"]
    assert set(row["step_seconds"]) == {"p50", "p90", "p95", "p99", "spread"}
    assert set(row["loss"]) == {"first", "last", "last_step"}
    speed = row["tokens_per_second"]["median"]
    assert row["rates"]["tokens_per_hour"]["median"] == pytest.approx(3600 * speed)
    # A sample in each step, of 100 real tokens.
    for name in ("samples_per_second", "steps_per_second"):
        assert 100 * row["rates"][name]["median"] == pytest.approx(speed)
    assert (row["losses"]["maximum"], row["losses"]["minimum"]) == (2.0, 1.98)
    assert set(row["plugins"][0]) == {"name", "distribution", "version"}


def test_rows_stand_in_the_order_of_the_plan():
    assert [row.stack for row in two_stacks().experiments] == ["lora", "fast"]


def test_a_faster_stack_is_called_so_with_its_ratio():
    row = two_stacks().experiments[1]
    assert row.verdict_word == "faster"
    assert row.ratio.median == pytest.approx(1.25, rel=1e-3)
    assert row.tokens_per_second.median == pytest.approx(1250, rel=1e-3)
    assert (row.runs, row.rounds, row.loss_verdict) == (5, 5, "bitwise equal")


def test_the_baseline_is_once_as_fast_as_itself_and_not_tested():
    row = two_stacks().experiments[0]
    assert (row.ratio.low, row.ratio.median, row.ratio.high) == (1.0, 1.0, 1.0)
    assert (row.verdict, row.loss_verdict) == ("not tested", "not tested")
    assert row.verdict_reason == "this is the baseline"


def test_one_round_has_a_ratio_without_an_interval_and_no_verdict():
    results = [make_result(LORA), make_result(FAST, seconds=0.05)]
    row = make_summary([LORA, FAST], results, rounds=1).experiments[1]
    assert row.status is Status.OK
    assert row.ratio.median == pytest.approx(2.0)
    assert (row.ratio.low, row.verdict) == (None, "not tested")


@pytest.mark.parametrize("status", [Status.OOM, Status.FAILED, Status.TIMEOUT, Status.INVALID])
def test_a_failed_stack_has_null_for_every_number(status):
    ranks = [make_rank()] if status is Status.INVALID else None
    results = [
        *make_rounds(LORA, STEADY),
        *make_failures(FAST, status, reasons=["why"], ranks=ranks),
    ]
    row = make_summary([LORA, FAST], results).experiments[1]
    assert row.status is status
    assert row.reasons[0] == "why"
    assert row.verdict_reason == f"ended as {status.value}"
    assert row.runs == 0
    for number in ("tokens_per_second", "ratio", "step_seconds", "peak_memory_bytes", "loss",
                   "tokens_per_second_per_device", "devices_used"):  # fmt: skip
        assert getattr(row, number) is None, number


def test_ratios_to_a_failed_baseline_are_null_with_that_reason():
    results = [*make_failures(LORA, Status.OOM), *make_rounds(FAST, STEADY)]
    row = make_summary([LORA, FAST], results).experiments[1]
    assert (row.ratio, row.verdict_reason) == (None, "the baseline ended as oom")
    assert row.tokens_per_second is not None


def test_ratios_without_a_baseline_are_null_with_that_reason():
    row = make_summary([FAST], make_rounds(FAST, STEADY)).experiments[0]
    assert (row.ratio, row.verdict_reason) == (None, "the baseline was not run")


def test_a_skipped_stack_keeps_its_reason():
    summary = make_summary(
        [LORA, FAST], make_rounds(LORA, STEADY), skipped={"fast": ["needs a GPU"]}
    )
    row = summary.experiments[1]
    assert (row.status, row.reasons) == (Status.SKIPPED, ("needs a GPU",))
    assert row.verdict_reason == "was skipped"


def test_the_notices_of_the_plan_are_in_the_summary_once():
    noted = [e.model_copy(update={"notices": ("adapter: lora added",)}) for e in (LORA, FAST)]
    assert make_summary(noted, []).notices == ("adapter: lora added",)


def test_failed_runs_lend_no_numbers_to_a_degraded_experiment():
    fast = make_rounds(FAST, scaled(0.8))
    fast[2] = make_result(FAST, round=2, status=Status.CRASHED)
    row = make_summary([LORA, FAST], [*make_rounds(LORA, STEADY), *fast]).experiments[1]
    assert (row.status, row.runs, row.rounds) == (Status.DEGRADED, 4, 4)
    assert row.verdict_reason == "4 of the 5 rounds that a verdict needs; 1 missing"


@pytest.mark.parametrize("status", [Status.KILLED, Status.HUNG, Status.OOM])
@pytest.mark.parametrize("failing", [LORA, FAST])
def test_a_round_that_failed_among_others_is_an_exit_code_of_1(status, failing):
    runs = {one.stack.name: make_rounds(one, scaled(0.8)) for one in (LORA, FAST)}
    whole = make_summary([LORA, FAST], [*runs["lora"], *runs["fast"]])
    assert exit_code([whole]) == 0
    runs[failing.stack.name][2] = make_result(failing, round=2, status=status)
    found = make_summary([LORA, FAST], [*runs["lora"], *runs["fast"]])
    assert all(row.status.completed for row in found.experiments)
    assert exit_code([whole, found]) == 1
    said = f"; 1 of {len(STEADY)} rounds of {failing.stack.name} ended as {status.value}"
    assert conclusion(found).count(said) == 1


def test_a_round_that_a_retry_completed_is_an_exit_code_of_0():
    fast = [*make_rounds(FAST, scaled(0.8))]
    again = fast[1].model_copy(update={"attempt": 1})
    fast[1] = make_result(FAST, round=1, status=Status.KILLED)
    found = make_summary([LORA, FAST], [*make_rounds(LORA, STEADY), *fast, again])
    assert exit_code([found]) == 0
    assert "killed" not in conclusion(found)


def test_a_retry_replaces_the_attempt_before():
    fast = [*make_rounds(FAST, scaled(0.8))]
    fast[0] = make_result(FAST, round=0, status=Status.CRASHED)
    fast.append(make_result(FAST, round=0, attempt=1, seconds=0.08))
    row = make_summary([LORA, FAST], [*make_rounds(LORA, STEADY), *fast]).experiments[1]
    assert (row.status, row.runs, row.verdict_word) == (Status.OK, 5, "faster")


def test_runs_of_different_sessions_are_no_pairs():
    results = [
        *make_rounds(LORA, STEADY),
        *make_rounds(FAST, scaled(0.8), session="tuesday"),
    ]
    row = make_summary([LORA, FAST], results).experiments[1]
    assert row.ratio is None
    assert row.verdict_reason == "no round in which it and the baseline both completed"


def test_stacks_are_compared_with_the_baseline_of_their_own_sweep_point():
    points = [
        (make_experiment(name, sweep={"train.micro_batch_size": size}), 0.1 * size * factor)
        for size in (1, 2)
        for name, factor in (("lora", 1.0), ("fast", 0.5 * size))
    ]
    results = [run for point, seconds in points for run in make_rounds(point, [seconds] * 5)]
    rows = make_summary([point for point, _ in points], results).experiments
    assert [round(row.ratio.median, 6) for row in rows] == [1.0, 2.0, 1.0, 1.0]
    assert [row.verdict_word for row in rows] == ["not tested", "faster", "not tested", "same"]


def test_two_stacks_of_one_identity_are_told_apart_by_name():
    twin = FAST.model_copy(update={"id": LORA.id})
    results = [*make_rounds(LORA, STEADY), *make_rounds(twin, scaled(0.8))]
    row = make_summary([LORA, twin], results).experiments[1]
    assert (row.runs, row.verdict_word) == (5, "faster")


def test_a_different_loss_stands_beside_the_speed():
    fast = [
        make_result(FAST, round=i, ranks=[make_rank(step_seconds=(s, s), losses=[2.0, 2.1, 2.2])])
        for i, s in enumerate(scaled(0.8))
    ]
    row = make_summary([LORA, FAST], [*make_rounds(LORA, STEADY), *fast]).experiments[1]
    assert (row.verdict_word, row.loss_verdict) == ("different training", "different")
    assert row.loss_difference == pytest.approx(2.1 / 1.99 - 1)
    assert (row.loss.first, row.loss.last, row.loss_tolerance) == (2.0, 2.2, 1e-3)


def test_step_quantiles_are_medians_over_runs_and_never_pooled():
    runs = [(0.1, 0.2, 0.3), (0.2, 0.3, 0.4), (9.0, 9.0, 9.0)]
    results = [
        make_result(LORA, round=i, ranks=[make_rank(step_seconds=steps)])
        for i, steps in enumerate(runs)
    ]
    steps = make_summary([LORA], results, rounds=3).experiments[0].step_seconds
    assert (steps.p50, steps.p95) == (pytest.approx(0.3), pytest.approx(0.39))
    assert (steps.p90, steps.p99) == (pytest.approx(0.38), pytest.approx(0.398))


def test_the_spread_across_processes_is_that_of_their_medians():
    # Medians 0.2 and 0.3: standard deviation 0.0707, mean 0.25. Steps within a run do not count.
    runs = [(0.1, 0.2, 0.9), (0.1, 0.3, 0.4)]
    results = [
        make_result(LORA, round=i, ranks=[make_rank(step_seconds=steps)])
        for i, steps in enumerate(runs)
    ]
    spread = make_summary([LORA], results, rounds=2).experiments[0].step_seconds.spread
    assert spread == pytest.approx(0.0707107 / 0.25, rel=1e-4)
    assert make_summary([LORA], results[:1], 1).experiments[0].step_seconds.spread is None


TWO_DEVICES = {"resources": {"device": "cpu", "devices": 2}}


def on_two_ranks(first=None, second=None, peaks=((100, 300),)):
    experiment = make_experiment(scenario=TWO_DEVICES)
    results = [
        make_result(
            experiment,
            round=i,
            ranks=[
                make_rank(0, peak=one, device=first),
                make_rank(1, peak=two, device=second),
            ],
        )
        for i, (one, two) in enumerate(peaks)
    ]
    return make_summary([experiment], results, rounds=len(peaks)).experiments[0]


def test_peak_memory_is_that_of_the_rank_that_needed_most_and_the_median_over_runs():
    row = on_two_ranks(peaks=((100, 300), (500, 200), (400, 100)))
    assert (row.peak_memory_bytes, row.peak_memory_kind) == (400, "host RSS")


def test_peak_memory_is_null_when_a_rank_could_not_measure_it():
    assert on_two_ranks(peaks=((100, None),)).peak_memory_bytes is None


def test_the_speed_per_device_divides_by_the_ranks():
    row = on_two_ranks()
    assert row.tokens_per_second_per_device == pytest.approx(row.tokens_per_second.median / 2)


@pytest.mark.parametrize(
    ("first", "second", "used"),
    [
        ({"type": "cpu", "uuid": ""}, {"type": "cpu", "uuid": ""}, 2),
        ({"type": "cuda", "uuid": "a"}, {"type": "cuda", "uuid": "b"}, 2),
        ({"type": "cuda", "uuid": "a"}, {"type": "cuda", "uuid": "a"}, 1),
        ({"type": "cuda", "name": "X", "index": 0}, {"type": "cuda", "name": "X", "index": 1}, 2),
    ],
)
def test_devices_are_counted_by_what_ranks_really_used(first, second, used):
    assert on_two_ranks(first, second).devices_used == used


def test_evidence_and_effective_are_those_of_rank_0():
    row = on_two_ranks()
    assert (row.evidence, row.effective) == (
        make_rank().evidence,
        EffectiveConfiguration(threads=4),
    )


def test_a_stack_says_in_one_line_what_it_changes():
    stack = Stack(
        name="fast",
        uses=(Use(use="torch-compile", options={"mode": "default"}), Use(use="fused")),
        settings={"train.gradient_checkpointing": True, "model.dtype": "float16"},
    )
    assert differs(stack) == (
        "torch-compile(mode=default), fused, train.gradient_checkpointing=true, model.dtype=float16"
    )
    assert differs(Stack(name="lora")) == "as the scenario says"


def test_losses_at_the_end_are_those_of_a_step_that_all_stacks_took():
    """Round 1 finds another warm-up for each stack: their last steps have other numbers."""
    curve = [5.0, 4.0, 3.0, 2.0, 1.0]
    short = make_rank(warmup=1, step_seconds=(0.1, 0.1), losses=curve[:3])
    long = make_rank(warmup=3, step_seconds=(0.1, 0.1), losses=curve)
    results = [make_result(LORA, ranks=[short]), make_result(FAST, ranks=[long])]
    first, second = make_summary([LORA, FAST], results).experiments
    assert first.loss == second.loss
    assert (first.loss.last, first.loss.last_step) == (3.0, 2)


def test_identical_code_beside_the_baseline_widens_what_is_called_the_same():
    """The same experiment was 2 % off here, so that 3 % with a narrow interval is no difference."""
    twin = LORA.model_copy(update={"stack": Stack(name="twin")})
    results = [
        *make_rounds(LORA, STEADY),
        *make_rounds(twin, scaled(1.02)),
        *make_rounds(FAST, scaled(1.03)),
    ]
    rows = make_summary([LORA, twin, FAST], results).experiments
    assert rows[2].verdict in ("worse", "same")
    alone = make_summary([LORA, NF4], [*make_rounds(LORA, STEADY), *make_rounds(NF4, NOISY)])
    with_twin = make_summary(
        [LORA, twin, NF4],
        [*make_rounds(LORA, STEADY), *make_rounds(twin, scaled(1.02)), *make_rounds(NF4, NOISY)],
    )
    assert (alone.experiments[1].verdict, with_twin.experiments[2].verdict) == (
        "inconclusive",
        "same",
    )


NOISY = [0.1 * factor for factor in (1.03, 1.0, 1.025, 1.005, 1.03)]


def test_why_flops_are_not_known_stands_in_the_document():
    rank = make_rank().model_copy(update={"workload_reason": "FLOPs are not known: a Conv1d"})
    (row,) = make_summary([LORA], [make_result(LORA, ranks=[rank])], rounds=1).experiments
    assert (row.utilization, row.utilization_reason) == (None, "FLOPs are not known: a Conv1d")


def test_a_round_that_was_measured_again_counts_as_it_came_out_then():
    slow = [0.1, 0.1003, 0.3, 0.1001, 0.0999]
    first = [*make_rounds(LORA, STEADY), *make_rounds(FAST, slow)]
    again = [
        make_result(stack, round=2, session="tuesday", replaces="monday") for stack in (LORA, FAST)
    ]
    before = make_summary([LORA, FAST], first).experiments[1]
    after = make_summary([LORA, FAST], [*first, *again]).experiments[1]
    assert [(run.stack, run.round, run.session) for run in before.slow_runs] == [
        ("fast", 2, "monday")
    ]
    assert (after.runs, after.rounds, after.looks) == (5, 5, 2)
    assert (after.verdict, after.slow_runs, after.repeated_rounds) == ("same", (), (2,))


def test_a_round_may_be_measured_again_only_once():
    slow = [0.1, 0.1003, 0.3, 0.1001, 0.0999]
    first = [*make_rounds(LORA, STEADY), *make_rounds(FAST, slow)]
    again = [
        make_result(LORA, round=2, session="tuesday", replaces="monday"),
        make_result(FAST, round=2, session="tuesday", replaces="monday", seconds=0.3),
    ]
    row = make_summary([LORA, FAST], [*first, *again]).experiments[1]
    assert (row.verdict, row.slow_runs) == ("inconclusive", ())


def test_a_stack_under_other_conditions_keeps_its_ratio_and_gets_no_verdict():
    results = [*make_rounds(LORA, STEADY), *with_threads(make_rounds(FAST, scaled(0.8)), 2)]
    row = make_summary([LORA, FAST], results).experiments[1]
    assert (row.verdict, row.rounds, row.loss_verdict) == ("not tested", 5, "bitwise equal")
    assert row.ratio.median == pytest.approx(1.25, rel=1e-3)
    assert row.verdict_reason.startswith("not comparable: effective.threads (2 in the place of 4)")


def test_a_row_is_slower_than_its_baseline_passes_or_is_open():
    def judged(runs):
        return judge_row(make_summary([LORA, FAST], [*base, *runs]).experiments[1], "lora", 0.01)

    base = make_rounds(LORA, STEADY)
    outcome, reason = judged(make_rounds(FAST, scaled(1.05)))
    assert outcome == "regression"
    assert reason.startswith("fast is slower than lora by more than 1 %: 0.952")
    assert judged(make_rounds(FAST, STEADY))[0] == "passed"
    outcome, reason = judged(with_threads(make_rounds(FAST, scaled(0.8)), 2))
    assert (outcome, "not comparable" in reason) == ("inconclusive", True)
    other = [make_rank(step_seconds=(0.05, 0.05), losses=[2.0, 2.1, 2.2])]
    outcome, reason = judged([make_result(FAST, round=i, ranks=other) for i in range(5)])
    assert (outcome, "fast is not the same as lora" in reason) == ("regression", True)


def test_rounds_that_one_side_alone_completed_make_nothing_incomparable():
    alone = with_threads([make_result(LORA, session="tuesday")], 2)
    results = [*make_rounds(LORA, STEADY), *make_rounds(FAST, scaled(0.8)), *alone]
    assert make_summary([LORA, FAST], results).experiments[1].verdict_word == "faster"


def test_threads_that_the_stack_declares_are_compared():
    fast = make_experiment("fast", settings={"resources.threads": 2})
    results = [*make_rounds(LORA, STEADY), *with_threads(make_rounds(fast, scaled(0.8)), 2)]
    row = make_summary([LORA, fast], results).experiments[1]
    assert row.verdict_word == "faster"


def test_an_operation_counts_calls_and_is_faster_without_any_loss():
    task = {"use": "null", "counts": "calls"}
    eager, fast = (make_experiment(name, scenario={"task": task}) for name in "ab")
    ranks = [make_rank(step_seconds=(0.05, 0.05), losses=[0.0, 9.0, 0.0])]
    runs = [*make_rounds(eager, STEADY)]
    runs += [make_result(fast, round=i, ranks=ranks) for i in range(5)]
    base, row = make_summary([eager, fast], runs, baseline="a").experiments
    assert (base.counts, row.counts, row.verdict_word) == ("calls", "calls", "faster")
    assert (row.loss, row.losses, row.loss_verdict) == (None, None, "not tested")
    assert row.loss_reason.startswith("nothing is trained")
