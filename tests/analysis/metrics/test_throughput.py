"""One run's numbers, against sums done by hand."""

from __future__ import annotations

import pytest
from analysis_factory import make_experiment, make_rank, make_result, make_sample

from accel_bench.analysis.metrics.throughput import run_throughput, token_summary
from accel_bench.result import Status

TWO_DEVICES = {"resources": {"device": "cpu", "devices": 2}}


def two_ranks(**second):
    return make_result(
        make_experiment(scenario=TWO_DEVICES),
        ranks=[
            make_rank(0, step_seconds=(0.1, 0.3), losses=[1.0, 0.5, 0.25]),
            make_rank(1, **{"step_seconds": (0.2, 0.2), "losses": [1.0, 0.5, 0.125], **second}),
        ],
    )


def test_speed_counts_real_tokens_of_all_ranks_over_the_window_and_not_padding():
    speed = run_throughput(two_ranks())
    assert speed.real_tokens == 400
    assert speed.step_tokens == (198, 198, 198)
    assert speed.tokens_per_second == pytest.approx(400 / 0.4)
    assert speed.tokens_per_second_per_device == pytest.approx(400 / 0.4 / 2)
    assert speed.seconds_per_token == pytest.approx(0.4 / 400)


def test_ranks_that_compute_one_batch_together_count_its_tokens_and_losses_once():
    work = {"resources": {"device": "cpu", "devices": 2, "data_parallel": 1}}
    ranks = [make_rank(rank, losses=[1.0, 0.5, 0.25]) for rank in range(2)]
    result = make_result(make_experiment(scenario=work), ranks=ranks)
    measured, counted = run_throughput(result), token_summary(result)
    assert measured.real_tokens == 200
    assert measured.losses == (1.0, 0.5, 0.25)
    assert measured.tokens_per_second_per_device == pytest.approx(measured.tokens_per_second / 2)
    assert counted.total_global.real == 200
    assert counted.total_per_device.real == 100


def test_the_slowest_rank_makes_the_step():
    assert run_throughput(two_ranks()).step_seconds == (0.2, 0.3)


def test_the_slowest_rank_makes_the_window():
    speed = run_throughput(two_ranks(step_seconds=(0.3, 0.5)))
    assert speed.tokens_per_second == pytest.approx(400 / 0.8)


def test_losses_begin_at_step_0_and_are_summed_over_ranks():
    assert run_throughput(two_ranks()).losses == (2.0, 1.0, 0.375)


def test_a_loss_that_one_rank_lacks_is_missing():
    assert run_throughput(two_ranks(losses=[1.0, None, 0.125])).losses == (2.0, None, 0.375)


def test_steps_of_a_discarded_window_keep_their_place_in_the_loss_curve():
    rank = make_rank(losses=[4.0, 1.0, 0.5])
    moved = tuple(s.model_copy(update={"step": s.step + 1}) for s in rank.window.samples)
    window = rank.window.model_copy(
        update={"samples": moved, "discarded": (make_sample(1, loss=2.0),)}
    )
    result = make_result(ranks=[rank.model_copy(update={"window": window})])
    assert run_throughput(result).losses == (4.0, 2.0, 1.0, 0.5)


def test_there_are_no_numbers_when_a_rank_has_no_window():
    result = two_ranks()
    lost = result.ranks[1].model_copy(update={"window": None})
    assert run_throughput(result.model_copy(update={"ranks": (result.ranks[0], lost)})) is None


def test_there_are_no_numbers_when_a_rank_wrote_no_result():
    result = two_ranks()
    assert run_throughput(result.model_copy(update={"ranks": result.ranks[:1]})) is None


def test_there_are_no_numbers_when_ranks_disagree_about_the_number_of_steps():
    assert run_throughput(two_ranks(step_seconds=(0.2,), losses=[1.0, 0.5])) is None


def test_there_are_no_numbers_when_no_rank_answered():
    assert run_throughput(make_result(status=Status.KILLED)) is None


def test_two_ranks_of_three_steps_of_ten_tokens_with_one_of_padding() -> None:
    ranks = tuple(make_rank(rank, step_seconds=(0.1,) * 3, tokens=10) for rank in (0, 1))
    counted = token_summary(make_result(ranks=ranks))
    assert counted is not None
    assert counted.per_step_global.model_dump() == pytest.approx(
        {"processed": 22, "real": 20, "supervised": 18}
    )
    assert counted.per_step_per_device.model_dump() == pytest.approx(
        {"processed": 11, "real": 10, "supervised": 9}
    )
    assert counted.total_global.processed == 66
    assert counted.total_per_device.processed == 33


def test_the_warmup_is_not_counted() -> None:
    with_warmup = make_result(ranks=(make_rank(warmup=7),))
    without = make_result(ranks=(make_rank(warmup=1),))
    assert token_summary(with_warmup) == token_summary(without)


def test_a_rank_without_a_window_leaves_nothing_to_count() -> None:
    rank = make_rank().model_copy(update={"window": None})
    assert token_summary(make_result(ranks=(make_rank(), rank))) is None
