"""The parent's side of the heartbeat: each rank's step and phase, and when they were read.

So the parent's clock stands beside that of a rank: it knows moments at which a window had surely
begun, or surely not ended, however late it read. The bounds that follow hold on a busy machine too,
where they are only wider. The lower one falls short of the truth by at most two polls and a step; a
window that is shorter than that is not judged.
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
    """The last heartbeat of a rank."""

    step: int
    """Optimizer steps that have ended."""

    phase: str
    """One of `PHASES`."""

    plugin: int = 0
    """Number of the active plugin whose code was called, from 1; 0 for none."""

    passes: int = 0
    """Forward passes outside of steps that have ended."""

    live: str = ""
    """What observers show of the ranks meanwhile."""


def read_progress(job: Job, rank: int) -> Progress | None:
    """Return the last heartbeat of a rank; None before it has written one."""
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
    """A heartbeat, with when the parent read it by its own clock, in seconds."""

    progress: Progress

    first: float
    """After the first reading that gave it."""

    last: float
    """Before the last one."""


def note(sightings: list[Sighting], progress: Progress, before: float, after: float) -> None:
    """Add what was read between two moments to the sightings of a rank."""
    if sightings and sightings[-1].progress == progress:
        sightings[-1].last = before
    else:
        sightings.append(Sighting(progress, after, before))


def seen_windows(
    job: Job, sightings: Mapping[int, Sequence[Sighting]], ranks: Mapping[int, RankResult]
) -> tuple[SeenWindow, ...]:
    """Return the bounds of each rank's window; none of another node's, whose page may lag."""
    if job.experiment.scenario.resources.nodes > 1:
        return ()
    return tuple(
        bounds(rank, sightings.get(rank, ()), result.window)
        for rank, result in sorted(ranks.items())
        if result.window is not None and result.window.samples
    )


def bounds(rank: int, sightings: Sequence[Sighting], window: Window) -> SeenWindow:
    """Return the shortest and the longest that a window can have lasted.

    A step is stored when it has ended, so that the first step of a window ends after its start, and
    its last one before its end; the phase changes before its start and after its end.
    """
    first, last = window.samples[0].step, window.samples[-1].step + 1
    steps = [(one, one.progress.step, _phase(one)) for one in sightings]
    begun = next((one.first for one, step, _ in steps if step > first), None)
    running = [one.last for one, step, _ in steps if step < last]
    waiting = [one.last for one, step, phase in steps if step < first or phase < WINDOW]
    over = (one.first for one, step, phase in steps if step > last or phase > WINDOW)
    ended = next(over, None)
    return SeenWindow(
        rank=rank,
        at_least=max(0.0, running[-1] - begun) if running and begun is not None else 0.0,
        at_most=ended - waiting[-1] if waiting and ended is not None else None,
    )


def _phase(sighting: Sighting) -> int:
    """Return the place of a phase; that of the window for an unknown one, which says nothing."""
    phase = sighting.progress.phase
    return PHASES.index(phase) if phase in PHASES else WINDOW
