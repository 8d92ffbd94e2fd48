"""The answer to a comparison, case by case: it never claims more than the rows do."""

from __future__ import annotations

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
from accel_bench.result import Status

BASE = make_rounds(LORA, STEADY)
NOISY = [0.1, 0.093, 0.107, 0.103, 0.1]


def with_loss(experiment, seconds, losses):
    return [
        make_result(experiment, round=i, ranks=[make_rank(step_seconds=(s, s), losses=losses)])
        for i, s in enumerate(seconds)
    ]


def say(experiments, results, **changes):
    return conclusion(make_summary(experiments, results, **changes))


def test_a_faster_stack_is_said_with_its_interval_and_its_loss():
    assert say([LORA, FAST], [*BASE, *make_rounds(FAST, scaled(0.8))]) == (
        "fast is 1.250 times as fast as lora [1.248, 1.252], with a bitwise equal loss and an "
        "equivalent update."
    )


def test_a_different_loss_comes_before_the_speed_and_before_other_stacks():
    said = say(
        [LORA, FAST, NF4],
        [
            *BASE,
            *make_rounds(FAST, scaled(0.8)),
            *with_loss(NF4, scaled(0.9), [2.0, 2.1, 2.2]),
        ],
    )
    assert said.startswith(
        "the training of nf4 is different (its loss differs by up to 5.53 %, 0.1 % allowed), so "
        "that being 1.111 times as fast as lora"
    )
    assert said.index("is not for the same training") < said.index(
        "fast is 1.250 times as fast as lora"
    )


def test_what_computed_something_else_is_said_and_load_of_the_machine_is_not():
    other = "28 of 29 linear modules compute in bfloat16, the scenario says float32"
    attention = "attention is eager, the scenario says sdpa"
    reasons = ["throttled: hw_slowdown on GPU-1", attention, other]
    degraded = {"status": Status.DEGRADED}
    base = make_rounds(LORA, STEADY, reasons=[attention], **degraded)
    fast = make_rounds(FAST, scaled(0.8), reasons=reasons, **degraded)
    assert say([LORA, FAST], [*base, *fast]) == (
        "fast is 1.250 times as fast as lora [1.248, 1.252], with a bitwise equal loss and an "
        f"equivalent update; lora is degraded: {attention}; fast is degraded: {other}."
    )
    open_ = make_rounds(FAST, NOISY, reasons=reasons, **degraded)
    assert f"; fast is degraded: {other}" in f"; {say([LORA, FAST], [*base, *open_])}"
    assert "degraded" not in say([LORA], make_rounds(LORA, STEADY, reasons=reasons[:1], **degraded))


def test_a_slower_stack_is_said_to_be_slower():
    assert "fast is slower, 0.800 times as fast as lora" in say(
        [LORA, FAST], [*BASE, *make_rounds(FAST, scaled(1.25))]
    )


def test_an_equally_fast_stack_is_said_to_be_so():
    assert "fast is equally fast, 1.00" in say(
        [LORA, FAST], [*BASE, *make_rounds(FAST, scaled(1.0))]
    )


def test_an_open_verdict_says_what_would_settle_it():
    said = say([LORA, FAST], [*BASE, *make_rounds(FAST, NOISY)])
    assert said == (
        "fast (0.87 to 1.14 times as fast) cannot be distinguished from lora, about 75 rounds "
        "would settle it (--resume --rounds 75)."
    )


def test_several_open_stacks_share_a_clause_with_the_rounds_that_settle_all():
    said = say(
        [LORA, FAST, NF4], [*BASE, *make_rounds(FAST, NOISY), *make_rounds(NF4, [0.1, *NOISY[1:]])]
    )
    assert said.count("distinguished") == 1
    assert "and nf4" in said


def test_a_slow_run_that_keeps_a_comparison_open_is_named_with_the_way_out():
    slow = [0.1, 0.1003, 0.3, 0.1001, 0.0999]
    said = say([LORA, FAST], [*BASE, *make_rounds(FAST, slow)])
    assert said.endswith(
        "; fast in round 3 took 3.0 times as long as in its other rounds (--resume --repeat-round "
        "3 measures such a round again, once)."
    )
    said = say([LORA, FAST], [*make_rounds(LORA, slow), *make_rounds(FAST, STEADY)])
    assert "; lora in round 3 took 3.0 times" in said


def test_a_slow_run_in_a_settled_comparison_is_no_reason_to_repeat_it():
    slow = [0.05, 0.0501, 0.09, 0.0502, 0.0499]
    rounds = [*slow, *slow[:2], *slow[3:], *slow[:2], *slow[3:]]
    base = make_rounds(LORA, [0.1 + n / 1e5 for n in range(len(rounds))])
    said = say([LORA, FAST], [*base, *make_rounds(FAST, rounds)], rounds=len(rounds))
    assert "times as fast as lora" in said
    assert "--repeat-round" not in said


def test_a_hopeless_spread_points_at_the_machine_instead_of_more_rounds():
    wild = [0.1, 0.3, 0.1 / 3, 0.2, 0.05]
    said = say([LORA, FAST], [*BASE, *make_rounds(FAST, wild)])
    assert "even 200 rounds would not settle it" in said


def test_too_few_rounds_say_how_many_are_needed():
    runs = [*BASE[:2], *make_rounds(FAST, scaled(0.5)[:2])]
    assert say([LORA, FAST], runs, rounds=2) == (
        "no verdict against lora for fast (2.00 times as fast): 2 rounds of the 5 that a verdict "
        "needs (--resume --rounds 5)."
    )


def test_a_failed_baseline_is_said_to_leave_nothing_to_compare_with():
    said = say([LORA, FAST], [*make_failures(LORA, Status.OOM), *make_rounds(FAST, STEADY)])
    assert said.startswith("the baseline lora ended as oom, so that there is no ratio to it; ")
    assert "fast trains at 1,000 tokens/s" in said


def test_stacks_that_failed_or_were_skipped_come_last():
    said = say(
        [LORA, FAST, NF4],
        [*BASE, *make_failures(FAST, Status.OOM)],
        skipped={"nf4": ["needs a GPU"]},
    )
    assert said.endswith("nothing was compared; fast ended as oom; nf4 was skipped.")


def test_a_single_stack_is_said_to_be_compared_with_nothing():
    assert say([LORA], BASE) == (
        "lora trains at 1,000 tokens/s [997 to 1,002]; nothing was compared."
    )


def test_one_run_of_one_stack_has_no_interval():
    assert "tokens/s (1 run)" in say([LORA], BASE[:1], rounds=1)


def test_stacks_without_their_baseline_are_said_to_stand_alone():
    said = say([FAST, NF4], [*make_rounds(FAST, STEADY), *make_rounds(NF4, STEADY)])
    assert said.endswith("nothing was compared, since the baseline lora was not run.")


def test_a_scenario_of_skipped_stacks_ran_nothing():
    skipped = {"lora": ["needs a GPU"], "fast": ["needs a GPU"]}
    assert say([LORA, FAST], [], skipped=skipped) == "nothing was run; lora and fast were skipped."


def test_a_scenario_of_failures_completed_nothing():
    assert say(
        [LORA, FAST], [*make_failures(LORA, Status.OOM), *make_failures(FAST, Status.HUNG)]
    ) == ("no experiment completed; lora ended as oom; fast ended as hung.")


def test_a_loss_that_was_not_tested_is_not_called_equivalent():
    fast = with_loss(FAST, scaled(0.8), [2.0, 2.0, 2.0])
    base = with_loss(LORA, STEADY, [2.0, None, 2.0])
    said = say([LORA, FAST], [*base, *fast])
    assert "its loss is not tested (the baseline's loss of step 1 is missing or not finite)" in said


def test_sweep_points_are_named_and_many_are_counted():
    points = [
        make_experiment(name, sweep={"size": size})
        for size in range(1, 6)
        for name in ("lora", "fast")
    ]
    results = [
        run
        for point in points
        for run in make_rounds(point, STEADY if point.stack.name == "lora" else scaled(0.8))
    ]
    said = say(points, results)
    assert "fast (size=1) is 1.250 times as fast as lora" in said
    assert said.endswith("; 2 more are faster.")


def test_a_stack_under_other_conditions_gets_no_verdict_and_its_keys():
    results = [*make_rounds(LORA, STEADY), *with_threads(make_rounds(FAST, scaled(0.8)), 2)]
    assert say([LORA, FAST], results) == (
        "no verdict against lora for fast (1.250 times as fast), which is not comparable: "
        "effective.threads (2 in the place of 4) differ without being declared."
    )
