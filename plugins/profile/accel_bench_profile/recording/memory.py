"""Record what memory is used for, over a few steps: bytes by category, and a snapshot on CUDA."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import Action, Category, TensorKey

from accel_bench.modeling.saved_tensors import one_forward, saved_bytes_by_module
from accel_bench.run_context import Run
from accel_bench_profile.figures.schema import MemoryPoint, MemoryTimeline
from accel_bench_profile.recording.window import Part

STEPS = 2
"""Steps that are recorded: in the first one gradients may come that stay."""

MOST_POINTS = 2000
"""Points of a timeline; of more the fullest ones stay, at even distances."""

SNAPSHOT_FILE = "memory_snapshot.pickle"
"""What https://pytorch.org/memory_viz shows."""

MOST_EVENTS = 200_000
"""Allocations in a snapshot's history, the newest."""

CATEGORIES: Mapping[Category | None, str] = {
    Category.PARAMETER: "weights",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.INPUT: "inputs",
    Category.ACTIVATION: "activations",
    Category.GRADIENT: "gradients",
    Category.AUTOGRAD_DETAIL: "backward pass",
    Category.TEMPORARY: "temporaries",
    None: "other",
}
"""How torch's categories are called here. `inputs` is all that no gradient reaches, `backward pass`
what it makes for itself, `other` what no tensor of an operation is known of."""


class Change(NamedTuple):
    """A category that grows or shrinks at a moment."""

    at: int
    """Nanoseconds of the profiler's clock; less than 0 for what was there before."""

    category: str
    bytes: int


class MemoryRecorder(Part):
    """The part of the profile about memory, by torch's profiler in steps of its own.

    Following every tensor through every operation takes long, so that nothing is timed in them.
    """

    name = "memory"
    steps = STEPS

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self._folder = run, folder
        self._profiler: Any = None
        self._snapshot = ""
        self._recorded: MemoryTimeline | None = None
        self._saved: dict[str, int] | None = None
        self._warnings: list[str] = []

    def start(self) -> None:
        """Add up what a forward pass keeps, then follow all tensors.

        On CUDA the allocator's history is kept too, for the snapshot.
        """
        try:
            model = self._run.unwrapped_model
            self._saved = one_forward(self._run, model, saved_bytes_by_module)
        except Exception as error:
            # Whatever a model does not take about one more pass, the rest can be recorded.
            text = (str(error).splitlines() or [""])[0]
            problem = f"saved for the backward pass: {type(error).__name__}: {text}"
            self._warnings.append(problem)
        if self._run.device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS, stacks="python")
        self._profiler = profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
        )
        self._profiler.start()

    def stop(self) -> None:
        """Stop following tensors; write the snapshot."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that no step was marked
                profiler.stop()
            if self._run.device.type == "cuda":
                self._write_snapshot()
        finally:
            if self._run.device.type == "cuda":
                torch.cuda.memory._record_memory_history(enabled=None)
        device = torch.device(str(self._run.device))
        self._recorded = timeline_of(changes_on(profiler._memory_profile(), device))

    def result(self) -> Mapping[str, Any]:
        """Return the timeline, and what a forward pass keeps."""
        found: dict[str, Any] = {"saved": self._saved, "warnings": tuple(self._warnings)}
        if self._recorded is not None:
            found["memory"] = self._recorded.model_copy(update={"snapshot": self._snapshot})
        return found

    def _write_snapshot(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(self._folder / SNAPSHOT_FILE))
        self._snapshot = SNAPSHOT_FILE


def changes_on(found: Any, device: torch.device) -> Iterator[Change]:
    """Yield how categories change on a device, in order, by torch's memory profile."""
    categories = found._categories
    for at, action, (key, version), size in found.timeline:
        if key.device != device:
            continue
        now, after = (
            CATEGORIES[categories.get(key, number) if isinstance(key, TensorKey) else None]
            for number in (version, version + 1)
        )
        if action in (Action.PREEXISTING, Action.CREATE):
            yield Change(at, now, size)
        elif action == Action.DESTROY:
            yield Change(at, now, -abs(size))
        elif now != after:
            yield Change(at, now, -size)
            yield Change(at, after, size)


def timeline_of(changes: Iterable[Change]) -> MemoryTimeline | None:
    """Return bytes by category over time; None where nothing was allocated."""
    points: list[tuple[int, Counter[str]]] = []
    used: Counter[str] = Counter()
    for change in changes:
        used[change.category] += change.bytes
        if points and points[-1][0] == change.at:
            points[-1] = change.at, Counter(used)
        else:
            points.append((change.at, Counter(used)))
    if not points:
        return None
    began = next((at for at, _ in points if at >= 0), 0)
    at, peak = max(points, key=lambda point: point[1].total())
    kept = [
        MemoryPoint(seconds=max(0, at - began) / 1e9, bytes=dict(_known(sizes)))
        for at, sizes in _fullest(points)
    ]
    return MemoryTimeline(
        steps=STEPS,
        peak_bytes=peak.total(),
        peak_seconds=max(0, at - began) / 1e9,
        peak=dict(sorted(_known(peak), key=lambda one: -one[1])),
        points=tuple(kept),
    )


def _known(sizes: Counter[str]) -> Iterator[tuple[str, int]]:
    return ((name, size) for name, size in sizes.items() if size)


def _fullest(points: Sequence[tuple[int, Counter[str]]]) -> list[tuple[int, Counter[str]]]:
    """Return at most `MOST_POINTS`, of each stretch of points the one with the most bytes."""
    length = -(-len(points) // MOST_POINTS)
    stretches = (points[first : first + length] for first in range(0, len(points), length))
    return [max(stretch, key=lambda point: point[1].total()) for stretch in stretches]
