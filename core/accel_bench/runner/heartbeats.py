"""Heartbeats as the parent reads them: each rank's step and phase, with the times of reading.

With these times the parent checks a rank's clock: they bound the duration of the rank's window.
Late readings, as on a busy machine, only widen the bounds. The lower bound is at most two polls and
a step below the true duration; a window that is shorter than that is not judged.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from accel_bench.job import HEARTBEAT_BYTES, PHASES, Job
from accel_bench.result import RankResult, SeenWindow, Window

WINDOW = PHASES.index("window")


@dataclass(frozen=True)
class Progress:
    """Last heartbeat of a rank."""

    step: int
    """Number of optimizer steps that have ended."""

    phase: str
    """Phase of the rank, one of `PHASES`."""

    plugin: int = 0
    """Number of the active plugin whose code is being called, from 1; 0 for none."""

    passes: int = 0
    """Number of forward passes outside of steps that have ended."""

    live: str = ""
    """Text of observers for the progress line, such as the utilization of a GPU."""


def read_progress(job: Job, rank: int) -> Progress | None:
    """Return the last heartbeat of a rank, or None before the first heartbeat."""
    try:
        page = job.heartbeat_path(rank).read_bytes()
    except OSError:
        return None
    if len(page) != HEARTBEAT_BYTES:
        return None
    step, phase, plugin, passes = struct.unpack("=QQQQ", page)
    return Progress(step, PHASES[phase] if phase < len(PHASES) else "", plugin, passes)


@dataclass
class Sighting:
    """Heartbeat, with the seconds of its first and last reading by the parent's clock."""

    progress: Progress

    first: float
    """Time after the first reading of this heartbeat."""

    last: float
    """Time before the last reading of this heartbeat."""


def note(sightings: list[Sighting], progress: Progress, before: float, after: float) -> None:
    """Add a heartbeat of a rank, read between the times `before` and `after`, to `sightings`."""
    if sightings and sightings[-1].progress == progress:
        sightings[-1].last = before
    else:
        sightings.append(Sighting(progress, after, before))


def seen_windows(
    job: Job, sightings: Mapping[int, Sequence[Sighting]], ranks: Mapping[int, RankResult]
) -> tuple[SeenWindow, ...]:
    """Return bounds of the duration of each rank's window, from `sightings` and results by rank.
    The tuple is empty with several nodes, whose heartbeat pages may lag."""
    if job.experiment.scenario.resources.nodes > 1:
        return ()
    return tuple(
        bounds(rank, sightings.get(rank, ()), result.window)
        for rank, result in sorted(ranks.items())
        if result.window is not None and result.window.samples
    )


def bounds(rank: int, sightings: Sequence[Sighting], window: Window) -> SeenWindow:
    """Return the shortest and the longest possible duration of a rank's window, in seconds.

    The parent sees a step only after it has ended: the first step of the window after the window's
    start, the last step before its end. The phase changes before the start and after the end.
    """
    first, last = window.samples[0].step, window.samples[-1].step + 1
    steps = [(beat, beat.progress.step, _phase(beat)) for beat in sightings]
    begun = next((beat.first for beat, step, _ in steps if step > first), None)
    running = [beat.last for beat, step, _ in steps if step < last]
    waiting = [beat.last for beat, step, phase in steps if step < first or phase < WINDOW]
    over = (beat.first for beat, step, phase in steps if step > last or phase > WINDOW)
    ended = next(over, None)
    return SeenWindow(
        rank=rank,
        at_least=max(0.0, running[-1] - begun) if running and begun is not None else 0.0,
        at_most=ended - waiting[-1] if waiting and ended is not None else None,
    )


def _phase(sighting: Sighting) -> int:
    """Return the index in PHASES of a heartbeat's phase; an unknown phase counts as the window."""
    phase = sighting.progress.phase
    return PHASES.index(phase) if phase in PHASES else WINDOW
