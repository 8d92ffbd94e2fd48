"""Readings are stored with their times."""

from __future__ import annotations

from typing import Any

import pytest
from accel_bench_metrics import nvml_sampler
from accel_bench_metrics.nvml_sampler import Track


class Counter:
    """A device with an energy counter only, whose readings take given times."""

    def __init__(self, *seconds: float) -> None:
        self.now = 0.0
        self.seconds = list(seconds)
        self.values = iter(range(1, 100))

    def monotonic(self) -> float:
        return self.now

    def ask(self, question: str) -> Any:
        assert question == "GetTotalEnergyConsumption"
        self.now += self.seconds.pop(0)
        return next(self.values)


@pytest.mark.parametrize(
    ("seconds", "value", "at"),
    [
        ((0.002,), 1, 0.001),
        ((0.4, 0.002), 2, 0.401),
        ((0.4, 0.2, 0.3), 2, 0.5),
    ],
    ids=["at once", "interrupted once", "always interrupted"],
)
def test_an_interrupted_reading_of_energy_is_taken_again(
    seconds: tuple[float, ...], value: int, at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter: Any = Counter(*seconds)
    monkeypatch.setattr(nvml_sampler, "time", counter)
    track = Track(counter)
    track._read_energy()
    assert list(track.energy.values) == [value]
    assert list(track.energy.times) == [pytest.approx(at)]
    assert counter.seconds == []
