"""The verdict on what was generated: token for token, within a tolerance, or different."""

from __future__ import annotations

from typing import Any

import pytest
from analysis_factory import make_experiment, make_rank, make_result, make_rounds

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.checks.training_verdict import of_same_training
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Comparison
from accel_bench.analysis.summary import summarize
from accel_bench.report.views.run_table import stack_columns, stacks_report
from accel_bench.result import Answers, Result
from accel_bench.scenario.models import Scenario
from accel_bench.worker.generated import MOST_IDS, stored_answers

TEXT = tuple(range(10))
OTHER = (*range(9), 99)
"""Ten tokens, and those with another last one."""


NearTies = list[tuple[int, ...]] | None


def answered(
    *answers: tuple[int, ...], stack: str = "base", near_ties: NearTies = None, **work: Any
) -> Result:
    """A run that gave these answers."""
    scenario = {"mode": "inference", "data": {}, **work}
    experiment = make_experiment(stack, scenario=scenario)
    kept = stored_answers(answers, near_ties=near_ties)
    rank = make_rank().model_copy(update={"update": None, "answers": kept})
    return make_result(experiment, ranks=[rank])


def verdict(baseline: Result, stack: Result) -> Any:
    return compare_training({("s", 0): baseline}, {("s", 0): stack})


def test_equal_tokens_are_the_same_output() -> None:
    found = verdict(answered(TEXT, TEXT), answered(TEXT, TEXT))
    assert (found.output_verdict, found.output_difference) == ("bitwise equal", 0.0)
    assert (found.output_requests, found.training_difference) == (2, "")


def test_in_float32_one_other_token_is_another_output() -> None:
    found = verdict(answered(TEXT, TEXT), answered(TEXT, OTHER))
    assert found.output_verdict == "different"
    assert found.output_difference == pytest.approx(1 / 20)
    assert "1 of 2 requests have another answer" in found.training_difference


def test_a_model_is_blamed_for_the_first_other_token_alone() -> None:
    late = (*TEXT[:4], 70, 71, 72, 73, 74, 75)
    found = verdict(answered(TEXT), answered(late))
    assert found.output_difference == pytest.approx(1 / 5)


def test_sixteen_bits_allow_five_percent() -> None:
    half = {"model": {"dtype": "bfloat16"}}
    texts = [TEXT] * 10
    near = verdict(answered(*texts), answered(*texts[:-1], OTHER, **half))
    assert (near.output_verdict, near.output_tolerance) == ("equivalent", 0.05)
    far = verdict(answered(TEXT), answered((99,), **half))
    assert far.output_verdict == "different"


@pytest.mark.parametrize(("tolerance", "excused"), [(0.15, True), (0.4, False)])
def test_a_declared_tolerance_excuses_up_to_the_cap(tolerance: float, excused: bool) -> None:
    stack = answered((*TEXT[:3], 99)).model_copy(
        update={
            "output_tolerances": {"rounds": tolerance},
            "experiment": make_experiment(
                "fast", uses=[{"use": "rounds"}], scenario={"mode": "inference", "data": {}}
            ),
        }
    )
    base = answered(TEXT if tolerance > 0.2 else (*TEXT[:3], 98, *TEXT))
    if tolerance < 0.2:
        stack = stack.model_copy(update={"ranks": answered(*[TEXT] * 1, OTHER).ranks})
        base = answered(TEXT, TEXT)
    found = verdict(base, stack)
    assert (found.output_word, found.output_excused) == ("within what rounds declares", excused)
    assert found.output_tolerance_by == ("rounds",)


def test_sampling_that_drew_other_tokens_leaves_the_verdict_open() -> None:
    drawn = {"inference": {"decoding": "sampling"}}
    found = verdict(answered(TEXT, **drawn), answered(OTHER, **drawn))
    assert found.output_verdict == "not tested"
    speed = Comparison(verdict="better", ratio=Interval(median=2.0, low=1.9, high=2.1))
    assert of_same_training(speed, found).verdict == "not tested"


def test_other_requests_are_not_compared() -> None:
    found = verdict(answered(TEXT), answered(TEXT, inference={"new_tokens": 9}))
    assert found.output_verdict == "not tested"
    assert "inference.new_tokens" in found.output_reason


def test_a_faster_stack_that_answers_otherwise_is_not_faster() -> None:
    speed = Comparison(verdict="better", ratio=Interval(median=2.0, low=1.9, high=2.1))
    found = verdict(answered(TEXT), answered(OTHER))
    speed = of_same_training(speed, found)
    assert (speed.verdict, speed.training, speed.wins) == ("better", "different", False)


def test_beyond_what_is_kept_digests_tell_answers_apart() -> None:
    long = tuple(range(MOST_IDS))
    kept = stored_answers([long, TEXT])
    assert (kept.tokens, len(kept.digests)) == ((long,), 1)
    assert kept.digests != stored_answers([long, OTHER]).digests
    found = verdict(answered(long, TEXT), answered(long, OTHER))
    assert found.output_verdict == "different"
    assert verdict(answered(long, TEXT), answered(long, TEXT)).output_verdict == "bitwise equal"


HALF = {"model": {"dtype": "bfloat16"}}
LONG = tuple(range(32))


def test_answers_that_all_go_wrong_at_one_place_are_another_output_however_long() -> None:
    wrong = (*LONG[:20], *[99] * 12)
    found = verdict(answered(*[LONG] * 50), answered(*[wrong] * 50, **HALF))
    assert found.output_verdict == "different"
    assert "50 of 50 requests" in found.output_reason
    assert "20 % of the tokens from 17 to 24 differ" in found.output_reason


def test_a_stretch_of_few_tokens_blames_nobody() -> None:
    wrong = (*LONG[:20], *[99] * 12)
    found = verdict(answered(*[LONG] * 50), answered(*[LONG] * 48, wrong, wrong, **HALF))
    assert found.output_verdict == "equivalent"
    assert found.output_difference == pytest.approx(2 / (48 * 32 + 2 * 21))


LATE = (*LONG[:20], *[99] * 12)
"""An answer that goes wrong at its 21st token."""


@pytest.mark.parametrize("known_to", ["baseline", "stack"])
def test_one_late_token_that_rounding_does_not_explain_is_another_output(known_to: str) -> None:
    ties = [(3, 20)] * 48 + [(3,), (20,)]
    known = {known_to: {"near_ties": ties}}
    base = answered(*[LONG] * 50, **HALF, **known.get("baseline", {}))
    stack = answered(*[LONG] * 48, LATE, LONG, **HALF, **known.get("stack", {}))
    found = verdict(base, stack)
    assert found.output_verdict == "different"
    assert "in 1 of them rounding does not explain the first other token" in found.output_reason
    explained = answered(*[LONG] * 49, LATE, **HALF, **known.get("stack", {}))
    assert verdict(base, explained).output_verdict == "equivalent"


@pytest.mark.parametrize(
    ("known", "word"), [(50, "different"), (40, "equivalent"), (0, "equivalent")]
)
def test_an_answer_beyond_the_known_near_ties_is_said_to_be_untold(known: int, word: str) -> None:
    base = answered(*[LONG] * 50, **HALF)
    ties: NearTies = [()] * known or None
    stack = answered(*[LONG] * 45, *[LATE] * 5, near_ties=ties, **HALF)
    found = verdict(base, stack)
    said = f"near ties are known of {known} of 50 requests: whether rounding explains the other"
    assert found.output_verdict == word
    assert (f"{said} answers to 5 of the rest cannot be told" in found.output_reason) is (
        word == "equivalent"
    )
    all_told = answered(LATE, *[LONG] * 49, near_ties=[(20,)] * 40, **HALF)
    assert "near ties" not in verdict(base, all_told).output_reason


def test_near_ties_of_the_run_that_rounds_more_count() -> None:
    base = answered(*[LONG] * 50, near_ties=[()] * 50, inference={"rate": 2.0})
    rounded = {**HALF, "inference": {"rate": 2.0}}
    texts = [LONG] * 49 + [LATE]
    assert verdict(base, answered(*texts, **rounded)).output_verdict == "equivalent"
    known = answered(*texts, near_ties=[()] * 50, **rounded)
    assert verdict(base, known).output_verdict == "different"


@pytest.mark.parametrize("cut", ["baseline", "stack"])
def test_near_ties_explain_nothing_where_one_has_a_digest_alone(cut: str) -> None:
    ties = [(20,)] * 50
    runs = {
        "baseline": answered(*[LONG] * 50, near_ties=ties, **HALF),
        "stack": answered(*[LONG] * 49, LATE, near_ties=ties, **HALF),
    }
    (rank,) = runs[cut].ranks
    assert rank.answers is not None and rank.answers.near_ties is not None
    digest = {"tokens": rank.answers.tokens[:49], "digests": (rank.answers.digest(49),)}
    fewer = rank.answers.model_copy(update={**digest, "near_ties": tuple(ties[:49])})
    rank = rank.model_copy(update={"answers": fewer})
    runs[cut] = runs[cut].model_copy(update={"ranks": (rank,)})
    assert verdict(runs["baseline"], runs["stack"]).output_verdict == "equivalent"


def test_a_missing_end_is_no_near_tie() -> None:
    base = answered(*[LONG] * 200, near_ties=[()] * 200, **HALF)
    assert verdict(base, answered(*[LONG] * 199, LONG[:31], **HALF)).output_verdict == "different"


def test_batches_that_timing_composes_may_turn_a_near_tie_round_in_float32() -> None:
    rate = {"inference": {"rate": 2.0}}
    base = answered(*[LONG] * 50, near_ties=[(20,)] * 50, **rate)
    assert verdict(base, answered(*[LONG] * 49, LATE, **rate)).output_verdict == "equivalent"
    early = (99, *LONG[1:])
    found = verdict(base, answered(*[LONG] * 49, early, **rate))
    assert (found.output_verdict, found.output_tolerance) == ("different", 0.05)


def test_what_a_plugin_declares_is_judged_by_its_share_alone() -> None:
    plain = answered(*[LONG] * 50, near_ties=[()] * 50, **HALF)
    uses = make_experiment(
        "fast", uses=[{"use": "rounds"}], scenario={"mode": "inference", "data": {}, **HALF}
    )
    stack = answered(*[LONG] * 49, LATE, **HALF).model_copy(
        update={"output_tolerances": {"rounds": 0.1}, "experiment": uses}
    )
    assert verdict(plain, stack).output_verdict == "equivalent"


def test_every_token_that_a_cut_answer_lacks_is_another_token() -> None:
    found = verdict(answered(*[LONG] * 50), answered(*[LONG[:20]] * 50, **HALF))
    assert found.output_verdict == "different"
    assert found.output_difference is not None and found.output_difference > 0.9


def in_letters(*answers: tuple[int, ...], **work: Any) -> Result:
    run = answered(*answers, **work)
    (rank,) = run.ranks
    kept = rank.model_copy(update={"answers": stored_answers(answers, "letters")})
    return run.model_copy(update={"ranks": (kept,)})


def test_letters_get_no_tolerance_of_tokens() -> None:
    assert verdict(in_letters(LONG), in_letters(LONG, **HALF)).output_verdict == "bitwise equal"
    found = verdict(in_letters(*[LONG] * 50), in_letters(*[LONG] * 49, LONG[:31], **HALF))
    assert (found.output_verdict, found.output_tolerance) == ("different", 0.0)
    assert "letter by letter" in found.output_reason


def test_token_ids_are_not_compared_with_letters() -> None:
    found = verdict(answered(LONG), in_letters(LONG))
    assert found.output_verdict == "not tested"
    assert "token ids" in found.output_reason


def test_ids_of_one_and_a_digest_of_the_other_decide() -> None:
    long = tuple(range(MOST_IDS))
    kept, digests = stored_answers([TEXT]), stored_answers([long, TEXT]).digests
    ours, theirs = answered(TEXT), answered(TEXT)
    (rank,) = theirs.ranks
    for text, expected in ((TEXT, "bitwise equal"), (OTHER, "different")):
        only = Answers(digests=stored_answers([long, text]).digests)
        after = theirs.model_copy(update={"ranks": (rank.model_copy(update={"answers": only}),)})
        assert verdict(ours, after).output_verdict == expected
    assert kept.digest(0) == digests[0]


def test_empty_answers_show_nothing() -> None:
    assert verdict(answered(()), answered(())).output_verdict == "not tested"


def summary_of(fast: tuple[int, ...], **inference: Any) -> Any:
    """Five rounds of a baseline and of a stack that takes half as long."""
    results, planned = [], []
    for name, seconds, text in (("base", 0.1, TEXT), ("fast", 0.05, fast)):
        asked = {"prompt_tokens": 100, "new_tokens": 10, **inference}
        work = {"mode": "inference", "data": {}, "inference": asked}
        experiment = make_experiment(name, scenario=work)
        planned.append(PlannedSummary(experiment=experiment))
        for run in make_rounds(experiment, [seconds * (1 + 0.001 * n) for n in range(5)]):
            (rank,) = run.ranks
            changes = {"update": None, "answers": Answers(tokens=(text,))}
            changed = rank.model_copy(update=changes)
            results.append(run.model_copy(update={"ranks": (changed,)}))
    return summarize("served", "base", planned, results, rounds=5)


def test_the_answer_names_another_output_first() -> None:
    assert conclusion(summary_of(OTHER)).startswith("the output of fast is different (1 of 1 req")
    assert "with the same output, token for token" in conclusion(summary_of(TEXT))


def test_the_table_has_an_output_in_the_place_of_losses() -> None:
    summary = summary_of(OTHER)
    (section,) = stacks_report([summary]).sections
    titles = [column.key for column in section.tables[0].columns]
    assert "output" in titles and not {"loss", "update", "last loss"} & set(titles)
    assert [row.verdict_word for row in summary.experiments][1] == "different output"


def test_training_is_not_judged_by_answers() -> None:
    assert Scenario().generates is False
    found = verdict(make_result(), make_result())
    assert (found.output_verdict, found.output_reason) == ("not tested", "")


@pytest.mark.box
def test_a_page_shows_latencies_and_the_output() -> None:
    keys = [column.key for column in stack_columns(summary_of(OTHER))]
    assert {"first token", "token gap", "output"} <= {*keys}
    assert "loss" not in keys
