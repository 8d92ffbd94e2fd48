"""Recording of operations and kernels with torch's profiler, and traces for TensorBoard."""

from __future__ import annotations

import gzip
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import (
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    supported_activities,
)

from accel_bench.documents.files import aside_of
from accel_bench.engine import Batch, PhaseName
from accel_bench.machine.device_type import DeviceType
from accel_bench.run_context import Run
from accel_bench_profile.figures.spans import EDGE, KINDS, Cycle, Span, in_order
from accel_bench_profile.figures.summarize import figures_of
from accel_bench_profile.plugin import RecordingOptions
from accel_bench_profile.recording.attribution import attribute
from accel_bench_profile.recording.ranges import ModuleRanges, Preemption, mark_phase
from accel_bench_profile.recording.window import WindowRecorder

MOST_EVENTS = 1_000_000
"""Maximum number of events in a rank's traces: 20 MiB compressed, 300 MiB uncompressed."""

MOST_SPANS = 2_000_000
"""Maximum number of a rank's spans in memory, about 1 GiB. The first cycle is kept whole."""

RUNTIME = re.compile(r"(cuda|cu|hip)[A-Z]")
"""Prefixes of names of a device runtime's calls."""

TRACE_SUFFIX = ".pt.trace.json.gz"
"""Suffix by which TensorBoard recognizes a trace, after the worker's name and a time."""


class Recorder(WindowRecorder):
    """Recorder of steps by torch's profiler and its schedule."""

    name = "torch's profiler"

    def __init__(
        self, request: RecordingOptions, run: Run, folder: Path, synchronize: Callable[[], None]
    ) -> None:
        self.steps = request.steps
        self._synchronize = synchronize
        self._ended = self._spans = 0
        self._request, self._run, self._folder = request, run, folder
        self._cycles: list[Cycle] = []
        self._traces: list[str] = []
        self._warnings: list[str] = []
        self._events = self._recorded = 0
        self._ranges: ModuleRanges | None = None
        self._profiler: Any = None
        self._preemption: Preemption | None = None

    def start(self) -> None:
        """Add ranges to modules, and start the profiler."""
        asked = self._request
        self._preemption = Preemption()
        self._ranges = ModuleRanges(self._run.unwrapped_model, self._preemption.check)
        on_device = device_activity(self._run.device_type)
        with warnings.catch_warnings():
            # That no warm-up skews figures, which was asked for; that cycles lose their events.
            warnings.simplefilter("ignore")
            steps = schedule(
                skip_first=asked.skip,
                wait=asked.wait,
                warmup=asked.warmup,
                active=asked.active,
                repeat=asked.repeat,
            )
            self._profiler = profile(
                activities=[
                    activity
                    for activity in (ProfilerActivity.CPU, on_device)
                    if activity is not None
                ],
                schedule=steps,
                on_trace_ready=self._keep,
                record_shapes=asked.shapes,
                with_stack=asked.python_stack,
            )
            self._profiler.start()

    def mark(self, phase: PhaseName) -> None:
        """Record the end of a phase as a mark in the trace."""
        if self._preemption is not None:
            self._preemption.check()
        mark_phase(phase)

    def end_step(self, batches: Sequence[Batch]) -> None:
        """Advance the profiler's schedule."""
        if self._profiler is not None:
            if self._preemption is not None:
                self._preemption.check(least=0)
            self._ended += 1
            if self._at_edge():
                with record_function(EDGE):
                    self._synchronize()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a cycle ends: its events are kept
                self._profiler.step()

    def stop(self) -> None:
        """Stop the profiler, and remove the named ranges around modules."""
        if self._ranges is not None:
            self._ranges.remove()
        if self._preemption is not None:
            self._preemption.close()
        if self._profiler is not None:
            self._profiler.stop()
        seen = self._run.device_type.on_host or any(cycle.device for cycle in self._cycles)
        if self._cycles and not seen:
            self._warnings.append(
                f"torch's profiler has recorded no kernel of the {self._run.device.type} device: "
                "operations and their times are those of the host"
            )
        if self._ended < self.steps:
            self._warnings.append(
                f"{self._ended} of {self.steps} steps ended; where one was cut short, figures "
                "have what is left of it"
            )

    def _at_edge(self) -> bool:
        """Return whether recording begins or ends after the step that has just ended.

        The device must then be synchronized, so that the recording has all work of the recorded
        steps, and nothing else.
        """
        asked = self._request
        quiet = asked.wait + asked.warmup
        done = self._ended - asked.skip
        within = done % (quiet + asked.active)
        return (done >= 0 and within == quiet) or (done > 0 and within == 0)

    def result(self) -> Mapping[str, Any]:
        """Return the fields of a `RankProfile` from all recorded cycles."""
        return {
            **figures_of(self._cycles, self._request.top),
            "modules": attribute(self._cycles, self._ranges.roles, self._ranges.unlike)
            if self._ranges
            else None,
            "traces": tuple(self._traces),
            "warnings": tuple(self._warnings),
        }

    def _keep(self, profiler: Any) -> None:
        """Store the spans of a cycle, a series of recorded steps, and write the cycle's trace."""
        events = profiler.profiler.kineto_results.events()
        self._recorded += 1
        self._keep_spans(in_order(filter(None, map(span_of, events))))
        self._events += len(events)
        if self._events > MOST_EVENTS:
            self._warnings.append(
                f"no trace of cycle {self._recorded}: with {self._events:,} events, the traces "
                f"of this rank would hold more than {MOST_EVENTS:,}; record less with --active or "
                "--repeat (figures do not need it)"
            )
            return
        name = f"rank{self._run.rank}.{time.time_ns()}{TRACE_SUFFIX}"
        try:
            # All ranks write to one folder: TensorBoard compares the workers that lie in one.
            write_trace(profiler, self._folder.parent / name)
            self._traces.append(name)
        except (OSError, RuntimeError) as error:
            self._warnings.append(f"the trace could not be written: {error} (figures are complete)")

    def _keep_spans(self, spans: list[Span]) -> None:
        """Store the spans of one more series of steps, unless all exceed `MOST_SPANS` together."""
        self._spans += len(spans)
        if self._cycles and self._spans > MOST_SPANS:
            self._warnings.append(
                f"cycle {self._recorded} is in no figure: with {self._spans:,} spans, the cycles "
                f"would take more than {MOST_SPANS:,}; record less with --active or --repeat"
            )
            return
        self._cycles.append(Cycle(spans))


def device_activity(device: DeviceType) -> ProfilerActivity | None:
    """Return torch's profiler activity for a device type; None if torch cannot record it."""
    kind = device.torch_type
    if kind == "cuda":  # Where its library is missing, torch records by events.
        return ProfilerActivity.CUDA
    own = kind == torch._C._get_privateuse1_backend_name()
    activity = getattr(ProfilerActivity, "PrivateUse1" if own else kind.upper(), None)
    return None if device.on_host or activity not in supported_activities() else activity


def write_trace(profiler: Any, path: Path) -> None:
    """Write a compressed trace, whole or not at all.

    Raises OSError or RuntimeError if it cannot be written, such as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(path)
    # Where a process is killed, hundreds of megabytes stay: in the system's folder, not in results.
    with TemporaryDirectory(prefix="accel-bench-trace-") as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        check_whole(plain)
        try:
            with plain.open("rb") as source, gzip.open(aside, "wb", 6) as target:
                shutil.copyfileobj(source, target)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def check_whole(path: Path) -> None:
    """Raise OSError for a truncated trace: torch does not report a full disk."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(f"{path.parent} has no room for it")


def category_of(event: Any) -> str:
    """Return a profiler event's category, such as `cpu_op`, even if torch does not state it."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    return category_by_name(event)


def category_by_name(event: Any) -> str:
    """Return the category of a profiler event, derived from its device and its name."""
    on_host = event.device_type() == torch.autograd.DeviceType.CPU
    name = event.name()
    if event.is_user_annotation():
        return "user_annotation" if on_host else "gpu_user_annotation"
    if not on_host:
        return "gpu_memcpy" if name.startswith(("Memcpy", "Memset")) else "kernel"
    # Where torch cannot be asked, as in 2.11, calls of Python functions are no events of its own.
    asks = getattr(event, "is_python_function", None)
    if asks is not None and asks():
        return "python_function"
    return "cuda_runtime" if RUNTIME.match(name) else "cpu_op"


def span_of(event: Any) -> Span | None:
    """Return a profiler event as a span; None if figures do not use it."""
    kind = KINDS.get(category_of(event))
    if kind is None:
        return None
    on_device = kind in ("kernel", "copy")
    return Span(
        name=sys.intern(event.name()),
        kind=kind,
        start=event.start_ns(),
        end=event.end_ns(),
        lane=event.device_resource_id() if on_device else event.start_thread_id(),
        correlation=event.correlation_id() if on_device or kind == "runtime" else 0,
        is_async=event.is_async() or event.start_thread_id() != event.end_thread_id(),
        sequence=event.sequence_nr(),
        forward_lane=event.fwd_thread_id(),
        operation=event.linked_correlation_id() if on_device else event.correlation_id(),
    )
