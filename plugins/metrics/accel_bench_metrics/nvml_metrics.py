"""Metrics of a rank from its device's readings: energy, power, memory, throttling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from accel_bench import Metric, Window, nvml
from accel_bench_metrics.nvml_fields import field_of, metric_name
from accel_bench_metrics.nvml_sampler import Readings, Track

MINIMUM_SECONDS = 2.0
"""Minimum seconds of a window for energy: the counter changes about every tenth of a second."""

MEMORY_KINDS = {"process": "process", "device": "device_above_start"}
"""Kind of memory that a metric names, for each value of the option `memory`."""


class NoFigureError(Exception):
    """Exception whose text is the reason why a metric has no value.

    The run is degraded if `degrades` is True: NVML is missing or denied, or a device was lost.
    """

    def __init__(self, reason: str, degrades: bool = False) -> None:
        super().__init__(reason)
        self.degrades = degrades


@dataclass(frozen=True)
class DeviceRank:
    """A rank with its measured window and the readings of its device."""

    rank: int
    window: Window | None
    track: Track | NoFigureError

    def readings(self, subject: str) -> Track:
        """Return the device's readings.

        Raises NoFigureError if readings of `subject`, a quantity or a field, failed. Readings
        before the loss of a device are unused, since they may be too low.
        """
        if isinstance(self.track, NoFigureError):
            raise self.track
        if problem := self.track.problems.get(subject):
            raise NoFigureError(f"nvml: {problem}", degrades=True)
        return self.track

    def measured_window(self, minimum_seconds: float = 0.0) -> Window:
        """Return the measured window.

        Raises NoFigureError if it is missing, or shorter than `minimum_seconds`.
        """
        if self.window is None:
            raise NoFigureError("no window was measured")
        seconds = self.window.ended - self.window.started
        if seconds < minimum_seconds:
            raise NoFigureError(
                f"the window of {seconds:.2f} s is shorter than {minimum_seconds:g} s"
            )
        return self.window

    def metric(
        self, name: str, unit: str, read: Callable[[], tuple[float, str]], **more: Any
    ) -> Metric:
        """Return a metric of this rank's device.

        `read` returns the value, and a problem or an empty text. If it raises NoFigureError, the
        value is null. `more` are further fields of the metric.
        """
        value: float | None
        try:
            value, reason = read()
            degrades = bool(reason)
        except NoFigureError as error:
            value, reason, degrades = None, str(error), error.degrades
        facts = {"scope": "device", "better": "lower", "rank": self.rank, **more}
        return Metric(name=name, value=value, unit=unit, reason=reason, degrades=degrades, **facts)


def metrics_of(rank: DeviceRank, memory: Sequence[str]) -> Iterable[Metric]:
    """Yield the metrics of one rank: memory, energy, power, throttling, other processes.

    `memory` has the kinds of memory: `process`, `device`.
    """
    for way in memory:
        facts = {"kind": MEMORY_KINDS[way], "scope": "rank" if way == "process" else "device"}
        for name, figure, in_window in (
            ("nvml_peak_memory_bytes", "run_peak_driver", False),
            ("nvml_window_peak_memory_bytes", "peak_driver", True),
        ):
            peak = partial(_peak, rank, way, in_window)
            yield rank.metric(name, "bytes", peak, figure=figure, **facts)
    yield rank.metric("gpu_board_energy_joules", "J", partial(_energy, rank))
    # An independent check of the energy.
    yield rank.metric("gpu_board_power_watts", "W", partial(_power, rank))
    yield rank.metric("gpu_throttled_fraction", "1", partial(_throttled_fraction, rank))
    yield rank.metric("gpu_other_processes", "1", partial(_other_processes, rank))


def field_metrics(rank: DeviceRank, fields: Iterable[str]) -> Iterable[Metric]:
    """Yield a metric for each sampled field: a number for the window, and the time series.

    `fields` are names of fields. The metric of an unreadable field is null, and does not degrade
    the run.
    """
    for name in fields:
        track = rank.track if isinstance(rank.track, Track) else None
        yield rank.metric(
            metric_name(name),
            field_of(name).unit,
            partial(_field, rank, name),
            better="neither",
            kind="last" if field_of(name).counts else "mean",
            series=track.fields[name][1].stored() if track else None,
        )


def energy_joules(
    times: Sequence[float], millijoules: Sequence[float], started: float, ended: float
) -> float | None:
    """Return the joules used from `started` to `ended`, interpolated between counter readings.

    `times` are the seconds of the readings `millijoules`. Returns None if the readings do not cover
    that time, or if the counter decreased.
    """
    values = [value for _, value in _readings(times, millijoules, started, ended)]
    if not values or any(after < before for before, after in pairwise(values)):
        return None
    return (values[-1] - values[0]) / 1000


def mean_watts(
    times: Sequence[float], watts: Sequence[float], started: float, ended: float
) -> float | None:
    """Return the mean power in watts from `started` to `ended`, by the trapezoidal rule.

    `times` are the seconds of the readings `watts`. Returns None if the readings do not cover that
    time.
    """
    points = _readings(times, watts, started, ended)
    if not points or ended <= started:
        return None
    joules = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    return joules / (ended - started)


def _readings(
    times: Sequence[float], values: Sequence[float], started: float, ended: float
) -> list[tuple[float, float]]:
    """Return (time, value) pairs from `started` to `ended`, with interpolated ends.

    The list is empty if the readings do not cover that time.
    """
    if len(times) < 2 or started < times[0] or ended > times[-1]:
        return []
    inside = [(at, value) for at, value in zip(times, values, strict=True) if started < at < ended]
    first, last = ((at, _between(times, values, at)) for at in (started, ended))
    return [first, *inside, last]


def _between(times: Sequence[float], values: Sequence[float], at: float) -> float:
    """Return the value at the time `at`, linearly interpolated between readings."""
    after = next(index for index, time in enumerate(times) if time >= at)
    if times[after] == at or after == 0:
        return values[after]
    fraction = (at - times[after - 1]) / (times[after] - times[after - 1])
    return values[after - 1] + fraction * (values[after] - values[after - 1])


def _peak(rank: DeviceRank, way: str, in_window: bool) -> tuple[int, str]:
    """Return the peak memory in bytes, and an empty text for no problem.

    `way` is `process`, or `device` for all memory of the device above its use before the run. The
    peak is over the window if `in_window`, else over the run. Raises NoFigureError without
    readings.
    """
    if way == "device":
        readings = rank.readings("memory").memory_bytes
    else:
        readings = rank.readings("processes").rank_bytes.get(rank.rank, Readings())
    values: Sequence[int] = readings.values
    if values and in_window:
        window = rank.measured_window()
        values = readings.within(window.started, window.ended)
    if not values:
        raise NoFigureError(f"NVML does not list the memory of the {way}")
    start = readings.values[0] if way == "device" else 0
    return max(0, max(values) - start), ""


def _field(rank: DeviceRank, name: str) -> tuple[float, str]:
    try:
        field, series = rank.readings(name).fields[name]
    except NoFigureError as error:
        raise NoFigureError(str(error)) from error
    if not series.times:
        raise NoFigureError(f"the device has no reading of {name}")
    window = rank.measured_window()
    if field.counts:
        return series.within(window.started, window.ended)[-1], ""
    value = series.mean(window.started, window.ended)
    if value is None:
        raise NoFigureError(f"nvml: the readings of {name} do not cover the window")
    return value, ""


def _energy(rank: DeviceRank) -> tuple[float, str]:
    return _over_window(rank, "energy counter", rank.readings("energy").energy, energy_joules)


def _power(rank: DeviceRank) -> tuple[float, str]:
    return _over_window(rank, "power", rank.readings("power").power, mean_watts)


def _over_window(
    rank: DeviceRank, what: str, series: Readings, integrate: Callable[..., float | None]
) -> tuple[float, str]:
    window = rank.measured_window(MINIMUM_SECONDS)
    value = integrate(series.times, series.values, window.started, window.ended)
    if value is not None:
        return value, ""
    if not series.times:
        raise NoFigureError(f"the device has no reading of its {what}")
    raise NoFigureError(f"nvml: the readings of the {what} do not cover the window", degrades=True)


def _throttled_fraction(rank: DeviceRank) -> tuple[float, str]:
    """Return the fraction of readings in the window with throttled clocks, and a problem.

    The problem names the reasons of throttling; it is empty for a fraction of 0.
    """
    track, window = rank.readings("clocks"), rank.measured_window()
    readings = zip(track.limits.times, track.limits.values, strict=True)
    masks = [int(mask) for at, mask in readings if window.started <= at <= window.ended]
    if not masks:
        raise NoFigureError("the clocks were not read in the window")
    limits = [nvml.throttled(nvml.limits_in(mask)) for mask in masks]
    fraction = sum(map(bool, limits)) / len(limits)
    words = ", ".join(sorted({limit for group in limits for limit in group}))
    reason = f"throttled: {words} in {100 * fraction:.0f} % of the window on {track.device.uuid}"
    return fraction, reason if fraction else ""


def _other_processes(rank: DeviceRank) -> tuple[int, str]:
    """Return the number of foreign processes on the device while the ranks ran, and a problem.

    The problem names these processes; it is empty if there are none.
    """
    track = rank.readings("processes")
    others = track.other_processes.values()
    if not track.rank_bytes and not others:
        raise NoFigureError("NVML does not list the rank's own process")
    uuid = track.device.uuid
    return len(others), "; ".join(nvml.other_process_reason(p.pid, p.name, uuid) for p in others)
