"""Measure a repeated large matrix product: its share of the peak, its clocks and its energy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import torch
from accel_bench_metrics.nvml_metrics import energy_joules, mean_watts
from accel_bench_metrics.nvml_sampler import Sampler, Track

from accel_bench.catalog.hardware import peak_flops
from accel_bench.machine.devices import of_torch_type
from accel_bench.machine.nvml import NoReadingError, devices, find_device
from accel_bench.worker.clocks import HostClock, clock_for
from benchmarks.figure import Figure, clock_figure, energy_figure, ratio_figure

DTYPE = torch.bfloat16
"""Dtype of the matrices."""

SHARE_OF_PEAK = (0.6, 1.0)
"""Limits of a large product's share of the peak; above 1 the table of peaks is wrong."""


class Size(NamedTuple):
    """Sizes and durations of the products."""

    side: int
    """Rows and columns of both matrices."""

    batches: int
    """Readings of the clock, but for the first."""

    batch_seconds: float
    """Approximate seconds of the products between two readings."""

    heat_seconds: float
    """Seconds of products before the first reading, so that clocks and power have settled."""


LARGE = Size(side=8192, batches=20, batch_seconds=0.2, heat_seconds=2.0)
"""Four seconds after two of warming up: energy needs a window of two, readings of power lag one."""

SMALL = Size(side=64, batches=3, batch_seconds=0.01, heat_seconds=0.0)
"""Size to check that everything works."""


class Timing(NamedTuple):
    """Times of the products."""

    started: float
    """time.monotonic() of the first."""

    ended: float
    """time.monotonic() when the device had done the last."""

    host_seconds: tuple[float, ...]
    """Of each batch, by the host's clock."""

    device_seconds: tuple[float, ...]
    """Of each batch, between events; empty where the device has none."""

    flops_per_batch: float
    """Operations of a batch."""


class Watch(NamedTuple):
    """Samples of a device."""

    track: Track | None
    """Readings of the device; None where there are none."""

    reason: str
    """Why there are none, or no number from them."""


def product_figures(device: str, name: str, uuid: str, size: Size) -> tuple[Figure, ...]:
    """Return the figures of products on a torch device; an empty uuid is not sampled."""
    subject = f"product of {size.side} x {size.side} {DTYPE}"
    with watched(uuid) as watch:
        timing = multiply(device, size)
    seconds = timing.device_seconds or timing.host_seconds
    rates = [timing.flops_per_batch / second for second in seconds]
    peak = peak_flops(name, str(DTYPE))
    return (
        ratio_figure(
            "mfu",
            subject,
            median(rates) / peak if peak else None,
            SHARE_OF_PEAK,
            {"flops_per_second": rates, "peak_flops_per_second": [peak]},
            f"the table of peaks has no {name}",
        ),
        clock_figure(subject, timing.device_seconds, timing.ended - timing.started),
        _energy(subject, watch, timing),
    )


def multiply(device: str, size: Size) -> Timing:
    """Time batches of products of two random matrices as accel-bench times steps."""
    left = torch.randn(size.side, size.side, device=device, dtype=DTYPE)
    right = torch.randn(size.side, size.side, device=device, dtype=DTYPE)
    out = torch.empty_like(left)
    clock: HostClock = clock_for(of_torch_type(device))

    def batch(products: int) -> None:
        for _ in range(products):
            torch.mm(left, right, out=out)

    def timed_batch(products: int) -> float:
        clock.synchronize()
        started = time.monotonic()
        batch(products)
        clock.synchronize()
        return time.monotonic() - started

    timed_batch(3)
    products = max(1, round(3 * size.batch_seconds / timed_batch(3)))
    heated = time.monotonic() + size.heat_seconds
    while time.monotonic() < heated:
        timed_batch(products)
    clock.reserve(size.batches + 1)
    clock.synchronize()
    started = time.monotonic()
    clock.mark()
    for _ in range(size.batches):
        batch(products)
        clock.mark()
    clock.synchronize()
    ended = time.monotonic()
    host, events = clock.read()
    flops = 2.0 * size.side**3 * products
    return Timing(started, ended, tuple(host), tuple(events or ()), flops)


@contextlib.contextmanager
def watched(uuid: str) -> Iterator[Watch]:
    """Sample a device as the plugin `nvml` does, within the block."""
    try:
        device = find_device(devices().found, uuid) if uuid else None
    except NoReadingError as error:
        yield Watch(None, str(error))
        return
    if device is None:
        yield Watch(None, f"NVML does not list {uuid}" if uuid else "no GPU was used")
        return
    sampler = Sampler([device], {}, "benchmark", 0.1)
    sampler.start()
    try:
        yield Watch(sampler.tracks[device.uuid], "readings of energy or power are missing")
    finally:
        sampler.stop()


def _energy(subject: str, watch: Watch, timing: Timing) -> Figure:
    """Return the products' energy by NVML's counter over that of the sampled power."""
    window, seconds = (timing.started, timing.ended), timing.ended - timing.started
    track = watch.track
    if track is None:
        return energy_figure(subject, None, None, seconds, watch.reason)
    joules = energy_joules(track.energy.times, track.energy.values, *window)
    watts = mean_watts(track.power.times, track.power.values, *window)
    reason = "; ".join(track.problems.values()) or watch.reason
    return energy_figure(subject, joules, watts, seconds, reason)
