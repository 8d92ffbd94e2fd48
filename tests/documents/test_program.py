"""Limits that environment variables set are read when they are needed, and checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from accel_bench.errors import AccelBenchError
from accel_bench.plugins.loading import limit_seconds
from accel_bench.runner.supervise import grace_seconds

LIMITS = {
    "ACCEL_BENCH_GRACE_SECONDS": (grace_seconds, 5.0),
    "ACCEL_BENCH_IMPORT_SECONDS": (limit_seconds, 10.0),
}


@pytest.mark.parametrize(("name", "limit"), LIMITS.items(), ids=LIMITS)
def test_a_limit_is_read_when_it_is_used_and_refused_by_name(
    name: str, limit: tuple[Callable[[], float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, default = limit
    monkeypatch.delenv(name, raising=False)
    assert read() == default
    monkeypatch.setenv(name, "0.5")
    assert read() == 0.5
    for wrong in ("long", "0", "-1", "nan", "inf", "1e10", ""):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(AccelBenchError, match=f"^{name}='{wrong}' is no number of seconds"):
            read()
