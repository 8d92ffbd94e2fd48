"""Spans of a recorded cycle: operations, kernels, and the ranges around them.

A cycle is a series of consecutive recorded steps. A lane is a host thread or a device stream.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from accel_bench_profile.figures.modules import OUTSIDE
from accel_bench_profile.figures.schema import ModulePhase

SpanKind: TypeAlias = Literal["operation", "range", "kernel", "copy", "runtime"]

KINDS: dict[str, SpanKind] = {
    "cpu_op": "operation",
    "user_annotation": "range",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "runtime",
}
"""Kinds of events by torch's profiler category, `cat` in a Chrome trace; others are ignored."""

STEP, MODULE, PHASE, PREEMPTED = "ProfilerStep#", "module: ", "phase: ", "preempted: "
"""Names of ranges: torch's step, a module's forward pass, the end of a phase, and the nanoseconds
of preemption since the previous mark."""

NODE = "autograd::engine::evaluate_function: "
"""Prefix of the names of backward nodes."""

EDGE = "profile: wait for the device"
"""Range in which the profiler waits for the device, at the edges of recorded steps."""

Interval: TypeAlias = tuple[int, int]
"""Start and end in nanoseconds."""

Key = TypeVar("Key", bound=Hashable)


class Span(NamedTuple):
    """A recorded event with a duration; times are in nanoseconds of one clock."""

    name: str
    kind: SpanKind
    start: int
    end: int

    lane: int = 0
    """Host thread, or device stream."""

    correlation: int = 0
    """Number shared by a kernel and its launching call; 0 for none."""

    is_async: bool = False
    """True if the event ends on another thread than it started on, as gloo's collectives do."""

    sequence: int = -1
    """Number shared by an operation and its backward nodes; -1 for none."""

    forward_lane: int = 0
    """Thread of the forward operation of a backward node."""

    operation: int = 0
    """Identifier shared by an operation and its kernels; 0 for none."""


@dataclass(frozen=True)
class Cycle:
    """Spans of consecutive recorded steps of one rank, in the order of their starts."""

    spans: Sequence[Span]

    def ranges(self, *names: str) -> list[Span]:
        """Return the ranges whose names begin with one of these prefixes."""
        return [span for span in self.spans if span.kind == "range" and span.name.startswith(names)]

    @cached_property
    def steps(self) -> list[Span]:
        """Spans of the recorded steps."""
        return self.ranges(STEP)

    @cached_property
    def lane(self) -> int:
        """Identifier of the host thread that ran the steps."""
        return self.steps[0].lane if self.steps else 0

    @cached_property
    def operations(self) -> list[Span]:
        """Spans of host operations, except operations that end on another thread."""
        return [span for span in self.spans if span.kind == "operation" and not span.is_async]

    @cached_property
    def device(self) -> list[Span]:
        """Spans of the device's kernels and copies."""
        return [span for span in self.spans if span.kind in ("kernel", "copy")]

    @cached_property
    def launches(self) -> dict[int, Span]:
        """Spans of calls of the device's runtime, by the correlation number of their kernels."""
        runtime = (span for span in self.spans if span.kind == "runtime" and span.correlation)
        return {span.correlation: span for span in runtime}

    @cached_property
    def edges(self) -> list[Interval]:
        """Intervals in which the profiler waits for the device."""
        return [(span.start, span.end) for span in self.ranges(EDGE)]

    @cached_property
    def places(self) -> list[tuple[Interval, str]]:
        """Intervals of the steps' thread in order, each with its innermost module."""
        calls = [span for span in self.ranges(MODULE) if span.lane == self.lane]
        return [((start, end), calls[number].name) for start, end, number in innermost(calls)]

    @cached_property
    def marks(self) -> list[tuple[int, str]]:
        """Times in nanoseconds at which phases ended, with the names of the phases."""
        return sorted((span.start, span.name.removeprefix(PHASE)) for span in self.ranges(PHASE))

    @cached_property
    def preempted(self) -> list[Interval]:
        """Pairs of a preemption mark's time and the nanoseconds of preemption since the last mark.

        The list is empty if the operating system does not report preemption.
        """
        marks = self.ranges(PREEMPTED)
        return [(mark.start, int(mark.name.removeprefix(PREEMPTED))) for mark in marks]

    @cached_property
    def boundaries(self) -> list[int]:
        """Times at which preemption may be marked: ends of phases, edges of modules' ranges."""
        ranges = self.ranges(MODULE, PHASE)
        return sorted(moment for span in ranges for moment in (span.start, span.end))

    def preempted_within(self, start: int, end: int) -> int:
        """Return the nanoseconds of possible preemption within an interval.

        They are the sum of all preemption marks from `start` to the first boundary at or after
        `end`.
        """
        number = bisect_left(self.boundaries, end)
        until = self.boundaries[number] if number < len(self.boundaries) else end
        return sum(spent for moment, spent in self.preempted if start <= moment <= until)

    @cached_property
    def nodes(self) -> list[tuple[Interval, str]]:
        """Intervals of backward nodes, each with the module of the node's forward operation."""
        modules: dict[tuple[int, int], str] = {}
        for span in self.operations:
            if span.sequence >= 0 and not span.name.startswith(NODE):
                modules.setdefault((span.lane, span.sequence), self._module_at(span.start))
        nodes = (span for span in self.operations if span.name.startswith(NODE))
        known = ((node, modules.get((node.forward_lane, node.sequence), OUTSIDE)) for node in nodes)
        return [((node.start, node.end), module) for node, module in known]

    def place_at(self, moment: int) -> ModulePhase:
        """Return the innermost module and the phase at a time.

        In the backward pass, the module is the one whose forward operation is being differentiated.
        """
        module = self._module_at(moment)
        before = bisect_right(self.nodes, moment, key=lambda node: node[0][0])
        if module == OUTSIDE and before and moment <= self.nodes[before - 1][0][1]:
            module = self.nodes[before - 1][1]
        return ModulePhase(module=module, phase=self.phase_at(moment))

    def _module_at(self, moment: int) -> str:
        """Return the innermost module whose forward pass includes a time; `OUTSIDE` if none."""
        number = bisect_left(self.places, moment, key=lambda place: place[0][1])
        if number < len(self.places) and self.places[number][0][0] <= moment:
            return self.places[number][1].removeprefix(MODULE)
        return OUTSIDE

    def times_of(self, phase: str) -> list[Interval]:
        """Return the intervals of a phase, each from the previous mark or the step's start."""
        edges = sorted([*((step.start, "") for step in self.steps), *self.marks])
        return [(before, end) for (before, _), (end, name) in pairwise(edges) if name == phase]

    def phase_at(self, moment: int) -> str:
        """Return the phase at a time, named by the next mark in the step; empty if none follows."""
        number = bisect_left(self.marks, (moment, ""))
        if number == len(self.marks):
            return ""
        end = next((step.end for step in self.steps if step.start <= moment <= step.end), None)
        return self.marks[number][1] if end is not None and self.marks[number][0] <= end else ""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals merged where they overlap, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def without(intervals: Sequence[Interval], covered: Sequence[Interval]) -> list[Interval]:
    """Return the parts of intervals outside of `covered`; both are merged intervals in order."""
    left: list[Interval] = []
    first = 0
    for start, end in intervals:
        while first < len(covered) and covered[first][1] <= start:
            first += 1
        number, now = first, start
        while number < len(covered) and covered[number][0] < end:
            if covered[number][0] > now:
                left.append((now, covered[number][0]))
            now = max(now, covered[number][1])
            number += 1
        if now < end:
            left.append((now, end))
    return left


def length(intervals: Iterable[Interval]) -> int:
    """Return the total nanoseconds of merged intervals."""
    return sum(end - start for start, end in intervals)


def within(spans: Iterable[Span], span: Span) -> list[Interval]:
    """Return the parts of a span that other spans cover, as merged intervals."""
    both = ((max(inner.start, span.start), min(inner.end, span.end)) for inner in spans)
    return union((start, end) for start, end in both if start < end)


def self_times(spans: Sequence[Span]) -> Iterator[tuple[Span, int]]:
    """Yield each span with its nanoseconds outside of the spans nested in it on its thread."""
    lanes: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        lanes[span.lane].append(span)
    for lane in lanes.values():
        own: Counter[int] = Counter()
        for start, end, number in innermost(lane):
            own[number] += end - start
        yield from ((span, own[number]) for number, span in enumerate(lane))


def innermost(spans: Sequence[Span]) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces of one thread's time: start, end, and the index of the innermost span.

    `spans` are the thread's nested spans by start, outer spans first.
    """
    stack: list[int] = []
    now = 0
    for number, span in enumerate([*spans, None]):
        while stack and (span is None or spans[stack[-1]].end <= span.start):
            inner = stack.pop()
            if now < spans[inner].end:
                yield now, spans[inner].end, inner
            now = max(now, spans[inner].end)
        if span is not None:
            if stack and now < span.start:
                yield now, span.start, stack[-1]
            now = span.start
            stack.append(number)


def mean_step(calls: Iterable[tuple[Key, int]], steps: int) -> dict[Key, tuple[float, float]]:
    """Return the number and seconds of calls in a mean step, by key.

    `calls` are pairs of a key and nanoseconds, recorded over `steps` steps.
    """
    numbers: Counter[Key] = Counter()
    spent: Counter[Key] = Counter()
    for key, nanoseconds in calls:
        numbers[key] += 1
        spent[key] += nanoseconds
    return {key: (numbers[key] / steps, spent[key] / steps / 1e9) for key in numbers}


def in_order(spans: Iterable[Span]) -> list[Span]:
    """Return spans by start, outer spans first."""
    return sorted(spans, key=lambda span: (span.start, -span.end))
