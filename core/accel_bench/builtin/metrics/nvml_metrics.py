"""From a device's readings to a rank's metrics: energy, power, memory, throttling, strangers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from accel_bench import Metric, Window, nvml
from accel_bench.builtin.metrics.nvml_sampler import Subject, Track

MINIMUM_SECONDS = 2.0
"""Shortest window whose energy means something: the counter moves every tenth of a second or so."""

MEMORY_KINDS = {"process": "process", "device": "device_above_start"}
"""How memory was measured, by option."""


class Obstacle(NamedTuple):
    """Why there is no number, or what is wrong with it."""

    reason: str
    """In a sentence."""

    degrades: bool
    """Whether it should be otherwise: NVML is missing or denied, the device is lost or slowed."""


NO_WINDOW = Obstacle("no window was measured", False)


@dataclass(frozen=True)
class DeviceRank:
    """A rank, and the device that it used."""

    rank: int
    """Global rank."""

    window: Window | None
    """What it measured; None when it did not get that far."""

    track: Track | None
    """Readings of its device; None when there are none."""

    problem: str = ""
    """Why there are none; empty for a rank that uses no GPU."""

    def obstacle(self, subject: Subject) -> Obstacle | None:
        """What keeps this rank's device from answering about a subject; None when it does.

        What was read before a device was lost is not used: it could be too low.
        """
        if self.track is None:
            if not self.problem:
                return Obstacle(f"rank {self.rank} used no GPU", False)
            return Obstacle(f"nvml: {self.problem}", True)
        problem = self.track.problems.get(subject)
        return Obstacle(f"nvml: {problem}", True) if problem else None

    def metric(self, name: str, value: float | None, unit: str, **more: object) -> Metric:
        """A metric of this rank's device."""
        facts = {"scope": "device", "better": "lower", "rank": self.rank, **more}
        return Metric.model_validate({"name": name, "value": value, "unit": unit, **facts})


def metrics_of(rank: DeviceRank, memory: Sequence[str]) -> Iterable[Metric]:
    """All metrics of one rank."""
    for way in memory:
        yield from _memory(rank, way)
    yield _energy(rank)
    yield _power(rank)
    yield _throttling(rank)
    yield _strangers(rank)


def energy_joules(
    times: Sequence[float], millijoules: Sequence[float], started: float, ended: float
) -> float | None:
    """Energy from `started` to `ended`, the counter interpolated between two readings.

    None when the readings do not cover that time, or when the counter went back.
    """
    if len(times) < 2 or started < times[0] or ended > times[-1]:
        return None
    inside = [value for at, value in zip(times, millijoules, strict=True) if started < at < ended]
    first, last = (_between(times, millijoules, at) for at in (started, ended))
    if any(b < a for a, b in pairwise([first, *inside, last])):
        return None
    return (last - first) / 1000


def mean_watts(
    times: Sequence[float], watts: Sequence[float], started: float, ended: float
) -> float | None:
    """Mean power from `started` to `ended`, by trapezia; None when readings do not cover that."""
    if len(times) < 2 or ended <= started or started < times[0] or ended > times[-1]:
        return None
    inside = [(at, w) for at, w in zip(times, watts, strict=True) if started < at < ended]
    ends = [(at, _between(times, watts, at)) for at in (started, ended)]
    points = [ends[0], *inside, ends[1]]
    joules = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    return joules / (ended - started)


def _between(times: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at a time, on the straight line between the readings before and after it."""
    after = next(index for index, time in enumerate(times) if time >= at)
    if times[after] == at or after == 0:
        return values[after]
    share = (at - times[after - 1]) / (times[after] - times[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])


def _memory(rank: DeviceRank, way: str) -> Iterable[Metric]:
    """Peaks of the whole run and of the window, for one way of measuring."""
    subject: Subject = "processes" if way == "process" else "memory"
    scope = "rank" if way == "process" else "device"
    for name, figure, in_window in (
        ("nvml_peak_memory_bytes", "run_peak_driver", False),
        ("nvml_window_peak_memory_bytes", "peak_driver", True),
    ):
        value, obstacle = None, rank.obstacle(subject)
        if obstacle is None:
            value, obstacle = _peak(rank, way, in_window)
        facts = {"figure": figure, "kind": MEMORY_KINDS[way], "scope": scope}
        yield rank.metric(name, value, "bytes", **facts, **_why(obstacle))


def _peak(rank: DeviceRank, way: str, in_window: bool) -> tuple[int | None, Obstacle | None]:
    """The largest reading; of the whole device, less what was in use before the rank used any."""
    assert rank.track is not None
    readings = rank.track.rank_bytes.get(rank.rank)
    if way == "device":
        readings = rank.track.memory_bytes
    values = readings.all() if readings else ()
    if not values or readings is None:
        return None, Obstacle(f"NVML does not list the memory of the {way}", False)
    start = values[0] if way == "device" else 0
    if in_window and rank.window is None:
        return None, NO_WINDOW
    if in_window and rank.window is not None:
        values = readings.within(rank.window.started, rank.window.ended)
    return (max(0, max(values) - start), None) if values else (None, NO_WINDOW)


def _energy(rank: DeviceRank) -> Metric:
    """Energy of the board over the measured window."""
    value, obstacle = None, rank.obstacle("energy") or _short(rank.window)
    if obstacle is None and rank.track is not None and rank.window is not None:
        track = rank.track
        value = energy_joules(
            track.energy_times, track.energy_millijoules, rank.window.started, rank.window.ended
        )
        if value is None:
            obstacle = _uncovered("energy counter", track.energy_times)
    return rank.metric("gpu_board_energy_joules", value, "J", **_why(obstacle))


def _power(rank: DeviceRank) -> Metric:
    """Mean of the power readings in the window: an independent check of the energy."""
    value, obstacle = None, rank.obstacle("power") or _short(rank.window)
    if obstacle is None and rank.track is not None and rank.window is not None:
        track = rank.track
        value = mean_watts(
            track.power_times, track.power_watts, rank.window.started, rank.window.ended
        )
        if value is None:
            obstacle = _uncovered("power", track.power_times)
    return rank.metric("gpu_board_power_watts", value, "W", **_why(obstacle))


def _short(window: Window | None) -> Obstacle | None:
    """Why a window is not long enough; None when it is."""
    if window is None:
        return NO_WINDOW
    seconds = window.ended - window.started
    if seconds >= MINIMUM_SECONDS:
        return None
    return Obstacle(f"the window of {seconds:.2f} s is shorter than {MINIMUM_SECONDS:g} s", False)


def _uncovered(what: str, times: Sequence[float]) -> Obstacle:
    """Why readings give no number: the device has none, or they do not cover the window."""
    if not times:
        return Obstacle(f"the device has no reading of its {what}", False)
    return Obstacle(f"nvml: the readings of the {what} do not cover the window", True)


def _throttling(rank: DeviceRank) -> Metric:
    """Share of the window's readings in which something unusual held the clocks down."""
    value, obstacle = None, rank.obstacle("clocks") or (NO_WINDOW if not rank.window else None)
    if obstacle is None and rank.track is not None and rank.window is not None:
        track, window = rank.track, rank.window
        pairs = zip(track.limit_times, track.limit_masks, strict=True)
        masks = [mask for at, mask in pairs if window.started <= at <= window.ended]
        limits = [nvml.throttled(nvml.limits_in(mask)) for mask in masks]
        value = sum(map(bool, limits)) / len(limits) if limits else None
        obstacle = _slowed(value, limits, track.device.uuid)
    return rank.metric("gpu_throttled_fraction", value, "1", **_why(obstacle))


def _slowed(share: float | None, limits: Sequence[Sequence[str]], uuid: str) -> Obstacle | None:
    """What held the clocks down, and for how much of the window."""
    if share is None:
        return Obstacle("the clocks were not read in the window", False)
    words = ", ".join(sorted({limit for found in limits for limit in found}))
    reason = f"throttled: {words} in {100 * share:.0f} % of the window on {uuid}"
    return Obstacle(reason, True) if share else None


def _strangers(rank: DeviceRank) -> Metric:
    """How many processes that are not ours were seen on the device while the ranks ran."""
    value, obstacle = None, rank.obstacle("processes")
    if obstacle is None and rank.track is not None:
        track = rank.track
        value = len(track.other_processes) if track.rank_bytes or track.other_processes else None
        if value is None:
            obstacle = Obstacle("NVML does not list the rank's own process", False)
        uuid, others = track.device.uuid, track.other_processes.values()
        if others:
            named = (nvml.other_process_reason(other.pid, other.name, uuid) for other in others)
            obstacle = Obstacle("; ".join(named), True)
    return rank.metric("gpu_other_processes", value, "1", **_why(obstacle))


def _why(obstacle: Obstacle | None) -> dict[str, object]:
    """The fields of a metric that say what is wrong with it."""
    return {} if obstacle is None else obstacle._asdict()
