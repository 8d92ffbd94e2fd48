"""Tables of estimates on a narrow terminal."""

from __future__ import annotations

from typing import get_args

from accel_bench_advise.estimates.schema import (
    BatchShape,
    Bounds,
    CostEstimate,
    Estimate,
    EstimateDocument,
    Limit,
    MemoryEstimate,
    Part,
    SpeedEstimate,
)
from accel_bench_advise.estimates.view import estimate_report
from whole_tables import assert_whole

from accel_bench.report.table import Report


def estimated() -> Report:
    """Estimates of two stacks, with money."""
    shape = BatchShape(micro_batch_size=4, sequence_length=2048)
    span = Bounds(low=19_876_543_210, high=23_456_789_012)
    rows = [
        Estimate(
            scenario="some",
            experiment_id="0123456789ab",
            stack=stack,
            sweep={},
            gpu="h100-sxm",
            devices=8,
            shape=shape,
            memory=MemoryEstimate(
                parts=dict.fromkeys(get_args(Part), 1_234_567_890.0),
                tensor_bytes=8_641_975_230,
                phase="backward",
                needed_bytes=span,
                device_bytes=2**36,
                fit="does not hold",
            ),
            largest_micro_batch_size=Limit(value=128, bounded_by="model"),
            longest_sequence_length=Limit(value=131_072, bounded_by="search"),
            speed=SpeedEstimate(
                tokens_per_second=Bounds(low=123_456, high=234_567),
                step_seconds=Bounds(low=0.1234, high=0.2345),
                basis="the roofline",
            ),
            for_tokens=1e9,
            hours=Bounds(low=1.234, high=2.345),
            cost=CostEstimate(
                usd_per_hour=55.04,
                price="aws",
                usd_per_million_tokens=Bounds(low=0.01234, high=0.02345),
                usd=Bounds(low=1234.5, high=2345.6),
            ),
        )
        for stack in ("baseline", "activation-checkpointing-selective")
    ]
    return estimate_report(EstimateDocument(for_tokens=1e9, lengths=None, estimates=tuple(rows)))


def test_the_tables_of_estimates_are_whole() -> None:
    for section in estimated().sections:
        for table in section.tables:
            assert_whole(table)
