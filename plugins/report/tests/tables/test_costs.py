"""Cost follows from throughput and price, with the interval of the throughput and no zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from accel_bench_report.tables.costs import CostDocument, cost_of_experiments
from accel_bench_report.tables.expenses import EXCLUDED, same_device, usd_per_million_tokens
from analysis_factory import make_experiment, make_rank, make_result, make_rounds
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bench.analysis.aggregate import collect_experiments
from accel_bench.analysis.metrics.hourly_rate import HourlyRate, instances_needed
from accel_bench.result import Result, Status

GIVEN = HourlyRate(usd_per_hour=3.6, kind="given")
"""A price of a tenth of a cent per second."""


def cost_of(results: Sequence[Result], *terms: Any, **others: Any) -> CostDocument:
    """The cost of stored runs, read without their samples."""
    rows = [row.for_tables() for row in collect_experiments(results)]
    return cost_of_experiments(rows, *terms, **others)


def make_rate(devices: int = 8) -> HourlyRate:
    """The price of a machine with so many devices."""
    return HourlyRate(
        usd_per_hour=32.0,
        kind="on demand",
        provider="aws",
        instance="p4d.24xlarge",
        region="us-east-1",
        device="a100-sxm-40gb",
        devices=devices,
        source="a list",
        date="2025-01-01",
        age_days=1,
    )


def on(device: dict[str, str], ranks: int = 1, nodes: int = 1) -> Result:
    """A run on so many devices of one kind."""
    scenario = {"resources": {"devices": ranks // nodes, "nodes": nodes}}
    used = [make_rank(r, device={**device, "uuid": f"GPU-{r}"}) for r in range(ranks)]
    return make_result(make_experiment(scenario=scenario), ranks=used)


def test_a_million_tokens_cost_the_hour_divided_by_the_tokens_of_the_hour() -> None:
    assert usd_per_million_tokens(40.77, 1, 1e6 / 3600) == pytest.approx(40.77)
    assert usd_per_million_tokens(40.77, 2, 101.47e6 / 3600) == pytest.approx(2 * 40.77 / 101.47)


def test_the_interval_of_the_cost_is_that_of_the_throughput_turned_round() -> None:
    results = make_rounds(make_experiment(), [0.100, 0.101, 0.099, 0.1005, 0.0995])
    (row,) = cost_of(results, GIVEN).experiments
    speed, cost = row.tokens_per_second, row.usd_per_million_tokens
    assert speed is not None
    assert cost is not None
    assert speed.low is not None
    assert speed.high is not None
    assert cost.median == pytest.approx(3.6 / (speed.median * 3600 / 1e6))
    assert cost.low == pytest.approx(3.6 / (speed.high * 3600 / 1e6))
    assert cost.high == pytest.approx(3.6 / (speed.low * 3600 / 1e6))
    assert cost.low < cost.median < cost.high
    assert row.runs == 5


def test_one_run_has_a_cost_without_an_interval() -> None:
    # 100 tokens in 0.1 s are 3.6 million in an hour.
    (row,) = cost_of([make_result()], GIVEN, for_tokens=5e6).experiments
    assert row.usd_per_million_tokens is not None
    assert row.usd_per_million_tokens.median == pytest.approx(1.0)
    assert row.usd_per_million_tokens.low is None
    assert row.usd_for_tokens is not None
    assert row.usd_for_tokens.median == pytest.approx(5.0)
    assert row.usd_for_tokens.high is None


def test_no_completed_run_is_null_with_the_reason_and_never_zero() -> None:
    failed = make_result(status=Status.OOM, reasons=["asked for 2 GiB"])
    (row,) = cost_of([failed], GIVEN, for_tokens=1e9).experiments
    assert (row.status, row.runs) == (Status.OOM, 0)
    assert row.tokens_per_second is None
    assert row.usd_per_million_tokens is None
    assert row.usd_for_tokens is None
    (note,) = row.notes
    assert "asked for 2 GiB" in note


def test_requests_at_a_rate_have_no_cost_since_idle_hours_are_paid_for_too() -> None:
    costs = []
    for more in ({}, {"rate": 4.0}):
        work = {"mode": "inference", "data": {}, "inference": {"prompt_tokens": 100, **more}}
        runs = make_rounds(make_experiment("base", scenario=work), [0.1] * 5)
        costs += cost_of(runs, GIVEN).experiments
    busy, at_a_rate = costs
    assert busy.usd_per_million_tokens is not None
    assert at_a_rate.usd_per_million_tokens is None
    assert "idle hours are paid for too" in at_a_rate.notes[0]


def test_an_invalid_run_has_no_cost() -> None:
    results = [make_result(), make_result(round=1, status=Status.INVALID, reasons=["no gradient"])]
    (row,) = cost_of(results, GIVEN).experiments
    assert row.usd_per_million_tokens is None


def test_every_experiment_has_its_row_in_the_order_of_the_first_runs() -> None:
    slow, fast = make_experiment("slow"), make_experiment("fast")
    results = [
        make_result(slow, seconds=0.2),
        make_result(fast),
        make_result(slow, round=1, seconds=0.2),
    ]
    document = cost_of(results, GIVEN)
    costs = {row.stack: row.usd_per_million_tokens for row in document.experiments}
    assert list(costs) == ["slow", "fast"]
    assert costs["slow"] is not None
    assert costs["fast"] is not None
    assert costs["slow"].median == pytest.approx(2 * costs["fast"].median)
    assert "start-up" in document.excluded
    assert document.excluded == EXCLUDED


@pytest.mark.parametrize(
    ("devices", "nodes", "per_instance", "needed"),
    [(8, 1, 8, 1), (9, 1, 8, 2), (1, 1, 8, 1), (16, 2, 8, 2), (2, 2, 8, 2), (16, 4, None, 4)],
)
def test_whole_machines_are_paid_for(
    devices: int, nodes: int, per_instance: int | None, needed: int
) -> None:
    assert instances_needed(devices, nodes, per_instance) == needed


def test_a_run_on_two_machines_costs_both_and_idle_devices_are_named() -> None:
    tariff = make_rate()
    a100 = {"type": "cuda", "name": "NVIDIA A100-SXM4-40GB"}
    (row,) = cost_of([on(a100, 4, nodes=2)], tariff).experiments
    assert (row.instances, row.usd_per_hour, row.devices_used) == (2, 64.0, 4)
    assert row.notes == ("16 devices are paid for and 4 used",)
    (row,) = cost_of([on(a100, 4, nodes=2)], tariff, instances=3).experiments
    assert (row.instances, row.usd_per_hour) == (3, 96.0)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({"type": "cuda", "name": "NVIDIA A10G"}, "another device"),
        ({"type": "cuda", "name": "NVIDIA A100-SXM4-80GB"}, "another device"),
        ({"type": "cuda", "name": "Something new"}, "may be another"),
        ({"type": "cpu", "name": "cpu"}, "did not use"),
    ],
)
def test_a_price_for_another_device_is_said_so(device: dict[str, str], words: str) -> None:
    tariff = make_rate(devices=1)
    (row,) = cost_of([on(device)], tariff).experiments
    (note,) = row.notes
    assert words in note
    assert row.usd_per_million_tokens is not None


def test_devices_of_catalogs_are_known_under_their_names_there() -> None:
    assert same_device("NVIDIA A100-SXM4-80GB", "A100-80GB")
    assert same_device("NVIDIA A100 80GB PCIe", "A100-80GB")
    assert same_device("NVIDIA A100-SXM4-80GB", "A100") is False
    assert same_device("NVIDIA A100-SXM4-80GB", "Gaudi HL-205") is None
    assert same_device("Gaudi HL-205", "A100") is None


@settings(max_examples=50, deadline=None)
@given(
    price=st.floats(0.01, 1e3),
    machines=st.integers(1, 64),
    speed=st.floats(1.0, 1e7),
    factor=st.floats(1.01, 100.0),
)
def test_a_cost_grows_with_price_and_machines_and_falls_with_speed_by_the_same_factor(
    price: float, machines: int, speed: float, factor: float
) -> None:
    cost = usd_per_million_tokens(price, machines, speed)
    hours = 1e6 / speed / 3600
    assert cost == pytest.approx(price * machines * hours)
    assert usd_per_million_tokens(price * factor, machines, speed) == pytest.approx(cost * factor)
    assert usd_per_million_tokens(price, machines, speed * factor) == pytest.approx(cost / factor)
