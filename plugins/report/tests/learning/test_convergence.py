"""What a loss took over seeds and rounds, the best rate, and how alike seeds end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from accel_bench_report.learning.convergence import converge
from accel_bench_report.learning.curve_points import Amounts
from accel_bench_report.learning.schema import ConvergenceDocument, ExperimentLearning
from accel_bench_report.learning.to_loss import race
from analysis_factory import make_experiment, make_result
from learning_factory import diverged, learned, learned_at, seeded

from accel_bench.analysis.aggregate import collect_experiments
from accel_bench.analysis.metrics.hourly_rate import HourlyRate
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment

LORA, FAST = make_experiment("lora"), make_experiment("fast")
BASELINES = {"monday": "lora"}
LOSSES = (5.0, 4.0, 3.0, 2.0)


def document(runs: Sequence[Result], loss: float | None = None) -> ConvergenceDocument:
    return converge(collect_experiments(runs), BASELINES, loss)


def row(found: ConvergenceDocument, stack: str) -> ExperimentLearning:
    (one,) = (row for row in found.experiments if row.stack == stack)
    return one


def rounds(
    experiment: Experiment, seconds: Sequence[float], losses: Sequence[float] = LOSSES
) -> list[Result]:
    return [
        learned(losses, experiment=experiment, round=number, step_seconds=one)
        for number, one in enumerate(seconds)
    ]


def test_a_stack_with_faster_steps_reaches_the_same_loss_sooner() -> None:
    slow = [0.100, 0.101, 0.102, 0.100, 0.101]
    fast = [one / 2 for one in slow]
    found = document([*rounds(LORA, slow), *rounds(FAST, fast)], loss=3.0)
    base, other = row(found, "lora").to_loss, row(found, "fast").to_loss
    assert base is not None
    assert other is not None
    assert (base.verdict_word, other.verdict_word) == ("baseline", "sooner")
    assert (base.reached, base.runs) == (5, 5)
    assert base.steps is not None
    assert base.steps.median == 4
    assert base.seconds is not None
    assert base.seconds.median == pytest.approx(0.5 + 3 * 0.101)
    assert other.ratio is not None
    assert other.ratio.median == pytest.approx(0.803 / 0.6515, rel=0.01)
    assert other.ratio.low is not None
    assert other.ratio.low > 1


@pytest.mark.parametrize("number", [1, 4])
def test_fewer_than_five_pairs_cannot_tell(number: int) -> None:
    found = document([*rounds(LORA, [0.1] * number), *rounds(FAST, [0.05] * number)], loss=3.0)
    to_loss = row(found, "fast").to_loss
    assert to_loss is not None
    assert to_loss.verdict_word == "inconclusive"


def test_intervals_that_overlap_cannot_tell() -> None:
    found = document(
        [*rounds(LORA, [0.1, 0.2, 0.3, 0.2, 0.1]), *rounds(FAST, [0.2, 0.1, 0.2, 0.3, 0.1])], 3.0
    )
    to_loss = row(found, "fast").to_loss
    assert to_loss is not None
    assert to_loss.verdict_word == "inconclusive"


def test_a_loss_that_is_never_reached_has_no_time_and_no_ratio() -> None:
    worse = (5.0, 4.5, 4.2, 4.1)
    found = document([*rounds(LORA, [0.1] * 5), *rounds(FAST, [0.05] * 5, worse)], 3.0)
    to_loss = row(found, "fast").to_loss
    assert to_loss is not None
    assert (to_loss.verdict_word, to_loss.reached, to_loss.seconds) == ("not reached", 0, None)


def test_a_run_that_never_got_there_took_longer_than_those_that_did() -> None:
    runs = [*rounds(LORA, [0.1] * 2), learned((5.0, 4.5, 4.2), experiment=LORA, round=2)]
    to_loss = row(document(runs, 3.0), "lora").to_loss
    assert to_loss is not None
    assert (to_loss.reached, to_loss.runs) == (2, 3)
    assert to_loss.seconds is not None
    assert to_loss.seconds.median == pytest.approx(0.8)
    assert to_loss.seconds.high is None


def test_dollars_are_seconds_times_the_price_of_all_machines() -> None:
    price = HourlyRate(usd_per_hour=36.0, kind="given")
    experiments = collect_experiments(rounds(LORA, [0.1] * 2))
    found = converge(experiments, BASELINES, 3.0, price, instances=2)
    (one,) = found.experiments
    assert one.usd_per_hour == 72
    assert one.curve[-1].usd == pytest.approx(one.curve[-1].seconds * 72 / 3600)
    assert one.to_loss is not None
    assert one.to_loss.usd is not None
    assert one.to_loss.usd.median == pytest.approx(0.8 * 72 / 3600)


def test_the_curve_has_means_over_seeds_with_intervals_and_the_speed_of_evaluations() -> None:
    runs = [learned((5.0, 4.0, 3.0 + 0.1 * s), experiment=seeded("lora", s)) for s in range(4)]
    (one,) = document(runs).experiments
    assert (one.runs, one.stability.seeds, one.loss_kind) == (4, 4, "validation")
    assert one.curve[-1].loss == pytest.approx(3.15)
    assert one.curve[-1].low is not None
    assert one.curve[-1].low < 3.15
    assert one.evaluation is not None
    assert one.evaluation.samples_per_second is not None
    assert one.evaluation.samples_per_second.median == pytest.approx(5.0)
    assert one.to_loss is None


def test_rounds_of_one_seed_are_no_seeds() -> None:
    (one,) = document(rounds(LORA, [0.1] * 5)).experiments
    assert one.stability.seeds == 1
    assert one.curve[-1].low is None
    assert one.stability.standard_deviation is None


def test_stability_is_the_spread_over_seeds_and_counts_those_that_diverged() -> None:
    runs = [learned((5.0, 4.0, 3.0 + 0.1 * s), experiment=seeded("lora", s)) for s in range(4)]
    runs += [diverged(seeded("lora", 4)), learned((5.0, 6.0, 7.0), experiment=seeded("lora", 5))]
    runs += [learned((5.0, 4.0, None), experiment=seeded("lora", 6))]
    stability = row(document(runs), "lora").stability
    assert (stability.seeds, stability.diverged) == (7, 3)
    assert (stability.lowest, stability.highest) == pytest.approx((3.0, 3.3))
    assert stability.standard_deviation is not None
    # For four values sqrt(3 / 9.348) and sqrt(3 / 0.2158) times the standard deviation.
    assert stability.standard_deviation.median == pytest.approx(0.1291, rel=1e-3)
    assert stability.standard_deviation.low == pytest.approx(0.0731, rel=1e-2)
    assert stability.standard_deviation.high == pytest.approx(0.4814, rel=1e-2)


def tried(by_rate: dict[float, float], seeds: int, noise: float) -> list[Result]:
    """Runs of each rate at each seed, which end near the given loss."""
    generator = Random(3)
    return [
        learned((5.0, 4.0, loss + generator.gauss(0, noise)), experiment=seeded("lora", seed, rate))
        for rate, loss in by_rate.items()
        for seed in range(seeds)
    ]


def test_the_best_rate_is_that_of_a_surely_lower_loss() -> None:
    (best,) = document(tried({1e-3: 3.0, 1e-2: 2.5, 1e-1: 2.8}, 5, 0.02)).learning_rates
    assert (best.best, best.verdict, best.at_end) == (1e-2, "holds", False)
    assert [one.seeds for one in best.rates] == [5, 5, 5]


@pytest.mark.parametrize(("seeds", "noise"), [(5, 0.5), (2, 0.0001), (1, 0.0001)])
def test_rates_that_seeds_do_not_tell_apart_are_left_open(seeds: int, noise: float) -> None:
    (best,) = document(tried({1e-3: 3.0, 1e-2: 2.9, 1e-1: 3.0}, seeds, noise)).learning_rates
    assert best.verdict == "inconclusive"
    assert best.best is not None


def test_a_rate_with_which_a_seed_diverged_has_no_loss_and_never_wins() -> None:
    runs = tried({1e-3: 3.0, 1e-2: 2.5}, 5, 0.01)
    runs += tried({1e-1: 2.0}, 4, 0.01)
    runs.append(diverged(seeded("lora", 4, 1e-1)))
    (best,) = document(runs).learning_rates
    assert (best.best, best.verdict) == (1e-2, "holds")
    last = best.rates[-1]
    assert (last.learning_rate, last.loss, last.diverged) == (1e-1, None, 1)


def test_a_rate_that_failed_with_any_seed_has_no_loss_and_never_wins() -> None:
    runs = tried({1e-3: 3.0, 1e-2: 2.5}, 5, 0.01)
    runs += tried({1e-1: 2.0}, 4, 0.01)
    runs.append(make_result(seeded("lora", 4, 1e-1), status=Status.OOM))
    (best,) = document(runs).learning_rates
    assert (best.best, best.verdict) == (1e-2, "holds")
    last = best.rates[-1]
    assert (last.learning_rate, last.loss, last.diverged) == (1e-1, None, 0)


def test_identical_rates_are_called_best_in_few_cases() -> None:
    """Of rates that do the same, one may be called the best in 5 % of cases at most."""
    generator, called, trials = Random(11), 0, 100
    from accel_bench_report.learning.rates import is_best

    for _ in range(trials):
        losses = [{str(s): generator.gauss(2.0, 0.1) for s in range(5)} for _ in range(3)]
        losses.sort(key=lambda one: sum(one.values()))
        called += is_best(losses[0], losses[1:])
    assert called <= 0.08 * trials


def falling(steps: int) -> float:
    """A loss that falls faster at the beginning."""
    return 1 + 4 * 0.99**steps


def test_rates_whose_warm_ups_differ_are_compared_after_equally_many_steps() -> None:
    """With the same learning the rate of the longer warm-up is no worse."""
    runs = [
        learned_at({0: falling(0), warm: falling(warm), last: falling(last)}, seeded("l", s, rate))
        for rate, warm, last in ((1e-3, 30, 230), (1e-2, 43, 243))
        for s in range(5)
    ]
    (best,) = document(runs).learning_rates
    assert (best.steps, best.verdict) == (230, "inconclusive")
    between = falling(43) + 187 / 200 * (falling(243) - falling(43))
    assert [one.loss for one in best.rates] == pytest.approx([falling(230), between])


def test_a_rate_below_both_points_of_another_is_the_best() -> None:
    runs = [
        learned_at({0: 5.0, last: loss + 0.001 * s}, seeded("lora", s, rate))
        for rate, last, loss in ((1e-3, 30, 2.0), (1e-2, 40, 2.5))
        for s in range(5)
    ]
    (best,) = document(runs).learning_rates
    assert (best.best, best.verdict) == (1e-3, "holds")


def test_curve_and_stability_are_those_of_equally_many_steps() -> None:
    """Of runs on one line, one of which went on for longer."""
    runs = [
        learned_at({step: 5.0 - step / 10 for step in steps}, seeded("lora", seed))
        for seed, steps in enumerate([(0, 10, 20), (0, 15, 30), (0, 12, 24)])
    ]
    found = row(document(runs), "lora")
    assert [(one.steps, one.tokens) for one in found.curve] == [(0, 0), (10, 1000), (20, 2000)]
    assert [one.loss for one in found.curve] == pytest.approx([5.0, 4.0, 3.0])
    stability = found.stability
    assert (stability.lowest, stability.highest) == pytest.approx((3.0, 3.0))


def raced(pairs: int, ratio: float, generator: Random) -> str:
    """The verdict on a stack that takes so many times the baseline's seconds, with 1 % noise."""
    found = {}
    for name, factor in (("baseline", 1.0), ("stack", ratio)):
        runs = {
            ("monday", number): Amounts(1, 1, factor * math.exp(generator.gauss(0, 0.01)))
            for number in range(pairs)
        }
        found[name] = {"{}": runs}
    return race(found["baseline"], {"stack": found["stack"]})["stack"].verdict


def test_identical_stacks_are_called_sooner_or_later_in_1_percent_of_cases_at_most() -> None:
    generator = Random(7)
    words = [raced(5, 1.0, generator) for _ in range(1000)]
    # 1 % of 1000, and three standard deviations of that count.
    assert words.count("better") + words.count("worse") <= 10 + 3 * math.sqrt(10)


def test_a_stack_is_sooner_or_later_by_what_noise_does_not_explain() -> None:
    generator = Random(7)
    assert {raced(8, 0.9, generator) for _ in range(50)} == {"better"}
    assert {raced(8, 1.1, generator) for _ in range(50)} == {"worse"}


def test_a_difference_below_1_percent_is_not_sooner_however_sure() -> None:
    slow = [0.100, 0.101, 0.102, 0.100, 0.101]
    found = document([*rounds(LORA, slow), *rounds(FAST, [one * 0.995 for one in slow])], loss=3.0)
    to_loss = row(found, "fast").to_loss
    assert to_loss is not None
    assert to_loss.verdict_word == "inconclusive"
    assert to_loss.ratio is not None
    assert to_loss.ratio.low is not None
    assert to_loss.ratio.low > 1


def test_seeds_are_the_units_where_there_are_several() -> None:
    """Ten pairs of two seeds are two units."""
    runs: dict[str, dict[str, dict[tuple[str, int], Amounts]]] = {"baseline": {}, "stack": {}}
    for seed in range(2):
        for name, seconds in (("baseline", 1.0), ("stack", 0.5)):
            runs[name][str(seed)] = {
                ("monday", number): Amounts(1, 1, seconds + number / 100) for number in range(5)
            }
    assert race(runs["baseline"], {"stack": runs["stack"]})["stack"].verdict == "not tested"


def test_a_pair_of_which_one_did_not_get_there_leaves_it_open() -> None:
    worse = learned((5.0, 4.5, 4.2, 4.1), experiment=LORA, round=5)
    found = document([*rounds(LORA, [0.1] * 5), worse, *rounds(FAST, [0.05] * 6)], loss=3.0)
    to_loss = row(found, "fast").to_loss
    assert to_loss is not None
    assert to_loss.verdict_word == "inconclusive"


def test_the_document_is_read_back_as_it_was() -> None:
    found = document([*tried({1e-3: 3.0, 1e-2: 2.9}, 3, 0.1)], loss=3.5)
    assert ConvergenceDocument.model_validate_json(found.model_dump_json()) == found
