"""Measure the stopwatch's overhead of steps that do nothing: time, synchronizations, calls."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from accel_bench_profile.recording.window import ProfileWindow

from accel_bench.engine import Batch, Stopwatch, TokenCounts
from accel_bench.worker.clocks import HostClock
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.stopwatch import WindowStopwatch
from benchmarks.entry import Counts, Entry, interleave, this_machine
from benchmarks.watched_clock import WatchedClock

BATCHES = (Batch({}, 1, TokenCounts(512, 512, 511), 511),)
"""Batches of a lap of one micro-batch."""


class DeviceLoss:
    """Stand-in for a loss on a device: reading its value would wait for the device."""

    def __init__(self, clock: WatchedClock) -> None:
        self._clock = clock

    def __float__(self) -> float:
        self._clock.note("read")
        return 0.0


def measure_overhead(counts: Counts) -> Entry:
    """Measure the microseconds per step that laps add to a loop of steps that do nothing."""
    machine = this_machine()
    with tempfile.TemporaryDirectory() as folder:
        heartbeat = Heartbeat(Path(folder, "heartbeat"))
        samples = interleave(
            {
                "measured_microseconds": lambda: measured_loop(heartbeat, counts.laps),
                "bare_microseconds": lambda: bare_loop(counts.laps),
            },
            counts.rounds,
        )
    both = zip(samples["measured_microseconds"], samples["bare_microseconds"], strict=True)
    return Entry(
        name="harness",
        value=median(measured - bare for measured, bare in both),
        unit="microseconds per step",
        goal=1.5,
        goal_is="at most",
        samples=samples,
        machine=machine,
    )


def measure_waits(counts: Counts) -> Entry:
    """Count the stopwatch's synchronizations between the first and last mark of a window."""
    machine = this_machine()
    clock = WatchedClock(HostClock())
    with tempfile.TemporaryDirectory() as folder:
        stopwatch = WindowStopwatch(
            clock,
            Heartbeat(Path(folder, "heartbeat")),
            warmup=5,
            steps=counts.laps,
            before_window=clock.open,
        )
        stopwatch.start()
        run_steps(stopwatch, DeviceLoss(clock))
    in_window, at_end = clock.waits("synchronize")
    reads, _ = clock.waits("read")
    return Entry(
        name="synchronisations",
        value=in_window + reads,
        unit="synchronisations in a window",
        goal=0,
        goal_is="at most",
        samples={
            "in_window_synchronisations": (in_window,),
            "in_window_loss_reads": (reads,),
            "at_its_end_synchronisations": (at_end,),
        },
        machine=machine,
    )


def measure_calls(counts: Counts) -> Entry:
    """Count the calls that a requested profile adds to the stopwatch within a window."""
    machine = this_machine()
    with tempfile.TemporaryDirectory() as folder:
        heartbeat = Heartbeat(Path(folder, "heartbeat"))
        plain = calls_in_window(heartbeat, None, counts.laps)
        requested = calls_in_window(heartbeat, ProfileWindow([], lambda: None), counts.laps)
    return Entry(
        name="profile",
        value=requested - plain,
        unit="calls in a window",
        goal=0,
        goal_is="at most",
        samples={"plain_calls": (plain,), "requested_calls": (requested,)},
        machine=machine,
    )


def calls_in_window(heartbeat: Heartbeat, profile: ProfileWindow | None, laps: int) -> int:
    """Return how many calls accel-bench makes from the opening of a window to its end."""
    found = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call") and "accel_bench" in frame.f_code.co_filename

    stopwatch = WindowStopwatch(
        HostClock(),
        heartbeat,
        warmup=5,
        steps=laps,
        before_window=lambda: sys.setprofile(count),
        after_window=lambda window: sys.setprofile(None),
        stages=[] if profile is None else [profile],
    )
    stopwatch.start()
    run_steps(stopwatch, 0.0)
    return found


def measured_loop(heartbeat: Heartbeat, laps: int) -> float:
    """Return microseconds per step of a window whose steps do nothing."""
    stopwatch = WindowStopwatch(HostClock(), heartbeat, warmup=5, steps=laps)
    stopwatch.start()
    run_steps(stopwatch, 0.0)
    window = stopwatch.window()
    return (window.ended - window.started) / laps * 1e6


def bare_loop(laps: int) -> float:
    """Return microseconds per step of a plain loop whose steps do nothing."""
    started = time.monotonic()
    for _ in range(laps):
        do_nothing()
    return (time.monotonic() - started) / laps * 1e6


def run_steps(stopwatch: Stopwatch, loss: object) -> None:
    """Run steps that do nothing, with the phases marked as every engine should."""
    while stopwatch.running:
        do_nothing()
        stopwatch.mark("data")
        stopwatch.mark("forward")
        stopwatch.mark("backward")
        stopwatch.mark("optimizer")
        stopwatch.lap(BATCHES, loss)


def do_nothing() -> None:
    """Do nothing, as a step."""
