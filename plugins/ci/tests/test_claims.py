"""Claims about servers whose requests arrive at a rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from accel_bench_ci.claims import CheckedClaim, Claim, check_claim
from serving_factory import serving

from accel_bench.analysis.metrics.offered_load import OTHER_LOAD

LATENCY = "request_latency_p50"


def checked(metric: str, late: Mapping[str, Any] = {}, **base: Any) -> CheckedClaim:
    """A checked claim about a server that answers later at a higher busy speed."""
    runs = [*serving("base", 850, seconds=0.106, **base), *serving("late", 4540, **late)]
    return check_claim(Claim(stack="late", baseline="base", metric=metric, at_least=1.02), runs)


def test_the_latency_is_compared_and_the_speed_of_busy_time_is_not() -> None:
    found = checked(LATENCY)
    assert found.verdict == "holds"
    assert found.value is not None and found.value.median == pytest.approx(4540 / 850)
    for metric in ("tokens_per_second", "step_seconds"):
        busy = checked(metric)
        assert (busy.verdict, busy.value) == ("inconclusive", None)
        assert busy.reason.endswith(f"is that of busy time (metric: {LATENCY})")
    assert checked("peak_memory_bytes").value is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rate": 1.0}, "requests arrive at 1 and at 4 a second"),
        ({"rate": None}, OTHER_LOAD),
        ({"saturated": True}, "saturated: base at 4 requests/s"),
    ],
)
def test_servers_under_other_loads_are_not_compared(changes: dict[str, Any], reason: str) -> None:
    found = checked(LATENCY, {"declares": True}, **changes)
    assert found.verdict == "inconclusive"
    assert found.reason.startswith(reason)


def test_without_a_rate_the_speed_is_compared() -> None:
    assert checked("tokens_per_second", {"rate": None}, rate=None).verdict == "holds"
