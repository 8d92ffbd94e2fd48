"""Compare two readings of the same quantity as a ratio."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import computed_field

from accel_bench.documents.base import Frozen

CLOCKS = (0.98, 1.02)
"""Limits of device events over the wall clock: a row is flagged beyond 2 %."""

POWERS = (0.9, 1.1)
"""The same for the energy counter and power x time: a reading of power is itself a mean over up to
a second, which blurs the edges of a window of some seconds."""


class Figure(Frozen):
    """Ratio and its limits."""

    name: str
    """Name of the ratio."""

    subject: str
    """Subject of the measurement: the product, or a run."""

    value: float | None
    """The ratio; null where one of the readings is missing."""

    low: float
    """Least that it should be."""

    high: float | None = None
    """Most that it should be; null where there is no such limit."""

    samples: dict[str, tuple[float, ...]]
    """Available readings by name, which ends in the unit."""

    reason: str = ""
    """Why there is no value."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def met(self) -> bool | None:
        """Whether the value lies within the limits; null without a value."""
        if self.value is None:
            return None
        return self.value >= self.low and (self.high is None or self.value <= self.high)


def ratio_figure(  # noqa: PLR0913, PLR0917 - a ratio, where it should lie, what it is made of
    name: str,
    subject: str,
    value: float | None,
    limits: tuple[float, float | None],
    samples: dict[str, Sequence[float | None]],
    reason: str,
) -> Figure:
    """Return a figure, with the reason only where there is no value."""
    low, high = limits
    known = {
        key: tuple(reading for reading in readings if reading is not None)
        for key, readings in samples.items()
    }
    return Figure(
        name=name,
        subject=subject,
        value=value,
        low=low,
        high=high,
        samples={key: readings for key, readings in known.items() if readings},
        reason=reason if value is None else "",
    )


def clock_figure(subject: str, events: Sequence[float | None], wall: float) -> Figure:
    """Return the seconds between device events over those of the wall clock around them."""
    seconds = [second for second in events if second is not None]
    known = bool(seconds) and len(seconds) == len(events) and wall > 0
    return ratio_figure(
        "events_over_wall",
        subject,
        sum(seconds) / wall if known else None,
        CLOCKS,
        {"event_seconds": seconds, "wall_seconds": [wall]},
        "this device has no events",
    )


def energy_figure(
    subject: str, joules: float | None, watts: float | None, seconds: float, reason: str
) -> Figure:
    """Return energy in joules by the counter over mean power in watts x seconds."""
    known = joules is not None and watts
    return ratio_figure(
        "energy_over_power_times_time",
        subject,
        joules / (watts * seconds) if known and joules is not None and watts else None,
        POWERS,
        {"energy_joules": [joules], "mean_power_watts": [watts], "window_seconds": [seconds]},
        reason,
    )
