"""Recording of memory over a few steps: the peak by category, and a snapshot on CUDA."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import Action, Category, TensorKey

from accel_bench.modeling.saved_tensors import one_forward, saved_bytes_by_module
from accel_bench.run_context import Run
from accel_bench_profile.figures.schema import MemoryPeak
from accel_bench_profile.recording.window import WindowRecorder

STEPS = 2
"""Number of recorded steps; the first may allocate gradients that stay."""

SNAPSHOT_FILE = "memory_snapshot.pickle"
"""Name of the snapshot file for https://pytorch.org/memory_viz."""

MOST_EVENTS = 200_000
"""Maximum number of newest allocations in a snapshot's history."""

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
"""Names of torch's memory categories. `inputs` are tensors without gradient, `backward pass` its
own temporaries, `other` allocations of unknown tensors."""

CategoryChange: TypeAlias = tuple[int, str, int]
"""Nanoseconds of the profiler's clock, negative for earlier allocations; a category, and the change
of its bytes."""


class MemoryRecorder(WindowRecorder):
    """Recorder of memory, by torch's profiler in separate steps.

    It follows every tensor through every operation, which is slow: these steps are not timed.
    """

    name = "memory"
    steps = STEPS

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self._folder = run, folder
        self._profiler: Any = None
        self._recorded: MemoryPeak | None = None
        self._saved: dict[str, int] | None = None
        self._warnings: list[str] = []

    def start(self) -> None:
        """Sum the bytes saved by a forward pass, then follow all tensors.

        On CUDA the allocator's history is recorded too, for the snapshot.
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
                self._folder.mkdir(parents=True, exist_ok=True)
                torch.cuda.memory._dump_snapshot(str(self._folder / SNAPSHOT_FILE))
        finally:
            if self._run.device.type == "cuda":
                torch.cuda.memory._record_memory_history(enabled=None)
        device = torch.device(str(self._run.device))
        peak = peak_of(changes_on(profiler._memory_profile(), device))
        if peak is not None and self._run.device.type == "cuda":
            peak = peak.model_copy(update={"snapshot": SNAPSHOT_FILE})
        self._recorded = peak

    def result(self) -> Mapping[str, Any]:
        """Return `RankProfile` fields: the memory peak, and the bytes saved by a forward pass."""
        warned = tuple(self._warnings)
        return {"memory": self._recorded, "saved": self._saved, "warnings": warned}


def changes_on(found: Any, device: torch.device) -> Iterator[CategoryChange]:
    """Yield changes of memory by category on a device, in order of time.

    `found` is the memory profile of torch's profiler.
    """
    categories = found._categories
    for at, action, (key, version), size in found.timeline:
        if key.device != device:
            continue
        now, after = (
            CATEGORIES[categories.get(key, number) if isinstance(key, TensorKey) else None]
            for number in (version, version + 1)
        )
        if action in (Action.PREEXISTING, Action.CREATE):
            yield (at, now, size)
        elif action == Action.DESTROY:
            yield (at, now, -abs(size))
        elif now != after:
            yield (at, now, -size)
            yield (at, after, size)


def peak_of(changes: Iterable[CategoryChange]) -> MemoryPeak | None:
    """Return the bytes by category at the moment of most memory; None without allocations."""
    used: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for _, moment in groupby(changes, itemgetter(0)):
        for _, category, size in moment:
            used[category] += size
        if used.total() > peak.total():
            peak = Counter(used)
    known = {name: size for name, size in peak.most_common() if size}
    return MemoryPeak(steps=STEPS, peak_bytes=peak.total(), peak=known) if known else None
