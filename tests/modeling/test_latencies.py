"""Figures of requests, from instants by hand."""

from __future__ import annotations

import pytest

from accel_bench.modeling.latencies import (
    Load,
    Served,
    covered_seconds,
    latency_metrics,
    load_of,
    load_of_streams,
    percentile,
    spread_evenly,
)


def stream(arrival: float, seconds: float, tokens: int = 10) -> Served:
    """One request: its first token after half of the time, the others evenly after it."""
    half = seconds / 2
    gaps = [arrival + half + half * number / (tokens - 1) for number in range(tokens)]
    return Served(1, 100, arrival, (arrival,), tokens=[(instant, 1) for instant in gaps])


def found(served: list[Served], load: Load | None = None) -> dict[str, float | None]:
    return {one.name: one.value for one in latency_metrics(served, load, 2.0)}


def test_requests_side_by_side_have_the_rates_of_the_same_work_in_one_batch() -> None:
    times = [(1.0, 1), *((1.0 + 0.1 * number, 1) for number in range(1, 11))]
    together = found([Served(8, 800, 0.0, tokens=times)])
    each = found([Served(1, 100, 0.0, tokens=times) for _ in range(8)])
    assert together == each
    assert each["prefill_tokens_per_second"] == pytest.approx(800)
    assert each["decode_tokens_per_second"] == pytest.approx(80)
    assert each["requests_per_second"] == pytest.approx(4)


def test_what_is_covered_twice_counts_once() -> None:
    assert covered_seconds([(0, 2), (1, 3), (5, 6), (5.2, 5.5)]) == pytest.approx(4)
    assert covered_seconds([]) == 0.0


def test_tokens_that_come_first_have_no_gap() -> None:
    served = Served(1, 4, 0.0, tokens=[(1.0, 6), (2.0, 4), (2.5, 1)])
    assert served.inter_token_seconds == pytest.approx([0.25] * 4 + [0.5])
    assert served.first_token_seconds == [1.0]


def test_latencies_count_from_the_arrival() -> None:
    served = Served(2, 8, 3.0, (1.0, 2.5), tokens=[(4.0, 1), (5.0, 1)])
    assert served.queue_seconds == [2.0, 0.5]
    assert served.first_token_seconds == [3.0, 1.5]
    assert served.request_seconds == [4.0, 2.5]
    assert served.new_tokens == 4


def test_a_slow_server_without_a_queue_is_not_saturated() -> None:
    load = load_of_streams([stream(0.5 * number, 3.0) for number in range(20)], 2.0)
    assert load.achieved == pytest.approx(2.0)
    assert not load.saturated


def test_a_server_that_answers_one_and_a_half_of_two_requests_a_second_is_saturated() -> None:
    served = [stream(n / 2, (n + 1) / 1.5 - n / 2) for n in range(20)]
    load = load_of_streams(served, 2.0)
    assert load.achieved == pytest.approx(1.5)
    assert load.saturated


def test_one_slow_answer_is_no_queue() -> None:
    served = [stream(0.5 * number, 9.0 if number == 19 else 1.0) for number in range(20)]
    assert not load_of_streams(served, 2.0).saturated


def test_batches_one_after_the_other_are_busy_for_the_time_of_their_work() -> None:
    first = Served(2, 8, 0.0, tokens=[(1.0, 1)])
    second = Served(2, 8, 4.0, waited=3.0, tokens=[(5.0, 1)])
    load = load_of([first, second], 2.0)
    assert (load.busy, load.achieved, load.saturated) == (0.4, 0.8, False)


def test_parts_of_a_stream_get_the_tokens_that_the_server_counted() -> None:
    parts = [(1.0, 1), (2.0, 1), (3.0, 1)]
    assert spread_evenly(parts, 3) == parts
    assert spread_evenly(parts, 7) == [(1.0, 3), (2.0, 2), (3.0, 2)]


def test_percentiles_are_linear_between_values() -> None:
    assert percentile([1.0], 99) == 1.0
    assert percentile([0.0, 10.0], 90) == pytest.approx(9.0)
