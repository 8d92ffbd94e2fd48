"""A step of a stack holds the baseline's tokens, unless the two declare other work."""

from __future__ import annotations

from typing import Any

import pytest
from analysis_factory import (
    FAST,
    LORA,
    STEADY,
    make_experiment,
    make_rank,
    make_result,
    make_rounds,
    make_summary,
    scaled,
)

from accel_bench.analysis.checks.trained import token_differences
from accel_bench.result import RankResult, Result


def run(*counts: tuple[int, int], first: int = 0, **scenario: Any) -> Result:
    """A run whose steps have these real and supervised tokens, from the step `first` on."""
    rank = make_rank(step_seconds=[0.1] * len(counts), warmup=0)
    samples = [
        sample.model_copy(
            update={"step": first + i, "real_tokens": real, "supervised_tokens": supervised}
        )
        for i, (sample, (real, supervised)) in enumerate(
            zip(rank.window.samples, counts, strict=True)
        )
    ]
    window = rank.window.model_copy(update={"samples": tuple(samples)})
    experiment = make_experiment(scenario=scenario)
    return make_result(experiment, ranks=[rank.model_copy(update={"window": window})])


def numbered(result: Result, *ranks: int) -> Result:
    """The same run on several ranks."""
    alike: list[RankResult] = [result.ranks[0].model_copy(update={"rank": n}) for n in ranks]
    return result.model_copy(update={"ranks": tuple(alike)})


BASELINE = run((250, 240), (266, 240))


def test_padding_that_is_counted_as_real_tokens_is_named() -> None:
    assert token_differences(BASELINE, run((512, 240), (512, 240))) == (
        "a step holds 1.98 times the baseline's real tokens (512 against 258)",
    )


def test_a_stack_that_is_faster_by_counting_its_padding_trains_differently() -> None:
    def counting(result: Result, real: int) -> Result:
        window = result.ranks[0].window
        changes = {"real_tokens": real, "supervised_tokens": 40}
        steps = {
            name: tuple(sample.model_copy(update=changes) for sample in getattr(window, name))
            for name in ("warmup", "samples")
        }
        window = window.model_copy(update=steps)
        return result.model_copy(
            update={"ranks": (result.ranks[0].model_copy(update={"window": window}),)}
        )

    runs = [counting(run, 50) for run in make_rounds(LORA, STEADY)]
    runs += [counting(run, 100) for run in make_rounds(FAST, scaled(1.0))]
    row = make_summary([LORA, FAST], runs).experiments[1]
    assert row.verdict_word == "different training"
    said = "a step holds 2 times the baseline's real tokens (100 against 50)"
    assert said in row.verdict_reason


def test_half_of_the_batch_has_fewer_tokens_of_both_kinds() -> None:
    assert token_differences(BASELINE, run((125, 120), (133, 120))) == (
        "a step holds 0.5 times the baseline's real tokens (129 against 258)",
        "a step holds 0.5 times the baseline's supervised tokens (120 against 240)",
    )


def test_equal_tokens_in_another_layout_are_equal() -> None:
    assert token_differences(BASELINE, BASELINE) == ()
    halves = run((125, 120), (133, 120))
    assert token_differences(BASELINE, numbered(halves, 0, 1)) == ()


def test_less_than_one_percent_is_worth_no_verdict() -> None:
    assert token_differences(BASELINE, run((252, 240), (268, 240))) == ()
    assert len(token_differences(BASELINE, run((253, 240), (269, 240)))) == 1


def test_one_step_of_two_batches_among_many_is_named() -> None:
    """As of a trainer that skips a step: its gradients are those of the batches before, too."""
    steps = [(250, 240)] * 400
    skipped = [*steps[:200], (500, 480), *steps[201:]]
    assert token_differences(run(*steps), run(*skipped)) == (
        "a step holds 2 times the baseline's real tokens (500 against 250)",
        "a step holds 2 times the baseline's supervised tokens (480 against 240)",
    )


def test_the_step_that_differs_most_is_a_short_one() -> None:
    assert token_differences(run((10**5, 9), (200, 9)), run((100_900, 9), (0, 9))) == (
        "a step holds 0 times the baseline's real tokens (0 against 200)",
    )


def test_steps_that_one_of_them_did_not_take_are_left_out() -> None:
    longer = run((250, 240), (266, 240), (900, 900))
    assert token_differences(BASELINE, longer) == ()
    assert token_differences(BASELINE, run((900, 900), first=7)) == ()


@pytest.mark.parametrize(
    ("scenario", "sentences"),
    [
        ({"train": {"global_batch_size": 2}}, 0),
        ({"data": {"sequence_length": 512}}, 0),
        ({"data": {"use": "text"}}, 0),
        ({"train": {"learning_rate": 1e-3}}, 1),
        ({"data": {"sequence_length": 110, "padding": "longest"}}, 1),
    ],
)
def test_other_work_that_is_declared_explains_other_counts(
    scenario: dict[str, Any], sentences: int
) -> None:
    assert len(token_differences(BASELINE, run((512, 240), (512, 240), **scenario))) == sentences


def test_a_baseline_without_a_supervised_token_is_not_divided_by() -> None:
    assert token_differences(run((250, 0)), run((250, 240))) == (
        "a step holds 240 supervised tokens, the baseline's none",
    )
