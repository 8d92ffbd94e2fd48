"""Place of each operation in a step: its module, kind and direction."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from accel_bench_profile.figures.kernel_kinds import kind_in, step_kind, stronger
from accel_bench_profile.figures.modules import DATA, StepDirection, StepKind, StepPart
from accel_bench_profile.figures.spans import MODULE, NODE, STEP, Cycle, Span, in_order

OPTIMIZER = "Optimizer."
"""Prefix of the names of torch's ranges around `step` and `zero_grad`."""

COMPILED = "Torch-Compiled Region"
"""Prefix of the name of the range around compiled code."""

GRAPH = "## Call CompiledFxGraph"
"""Prefix of the name of the range around a graph's kernels, which are no events on a CPU."""


NO_WORK = re.compile(
    r"autograd::|torch::autograd::|\w+Backward\d*$|Torch-Compiled Region|"
    r"aten::(as_strided|t|transpose|permute|view|reshape|_reshape_alias|_unsafe_view|expand|"
    r"expand_as|slice|select|narrow|split\w*|chunk|unbind|squeeze|unsqueeze|movedim|flatten|"
    r"detach|alias|resolve_\w+|lift_fresh|empty\w*|resize_|set_|result_type|to|contiguous|item|is_nonzero)_?$"
)
"""Names of events without computation: backward nodes, views, allocations."""


OF_PHASE = {
    "data": StepPart(DATA, "data"),
    "optimizer": StepPart(kind="optimizer", direction="optimizer"),
}
"""Places of the phases outside of modules."""


class HostPlaces:
    """The place (module, kind, direction) of each host operation in a series of recorded steps.

    `lanes` has pairs of span and place by thread, in order of start. `roles` has the kind of the
    operations that a module itself calls, by the module's path. `collectives` are spans that end
    on another thread. `events` counts recorded events by place: on a CPU those of the steps'
    thread, with a device those of all threads, since all lengthen the device's idle time.
    """

    def __init__(self, cycle: Cycle, roles: Mapping[str, str]) -> None:
        self._cycle = cycle
        self._roles = roles
        self._stacks: dict[int, list[tuple[Span, StepPart]]] = defaultdict(list)
        self._operations: dict[tuple[int, int], StepPart] = {}
        self._last_node = StepPart(direction="backward")
        self._by_id: dict[int, StepPart] = {}
        self.compiled: set[str] = set()
        self.lanes: dict[int, list[tuple[Span, StepPart]]] = defaultdict(list)
        self.collectives: list[Span] = []
        self.events: Counter[StepPart] = Counter()
        for span in in_order(cycle.spans):
            if span.is_async:
                self.collectives += [span] if step_kind(span.name) == "communication" else []
            elif span.kind in ("operation", "range"):
                self._add(span)

    def placed(self, place: StepPart, moment: int) -> StepPart:
        """Return `place`, or if it is empty the place of the step's phase at the time `moment`."""
        if place != StepPart():
            return place
        return OF_PHASE.get(self._cycle.phase_at(moment), place)

    def launching(self, kernel: Span) -> StepPart:
        """Return the place (module, kind, direction) of the operation that launched a kernel."""
        place = self._by_id.get(kernel.operation) if kernel.operation else None
        return place or StepPart()

    def _add(self, span: Span) -> None:
        stack = self._stacks[span.lane]
        while stack and stack[-1][0].end <= span.start:
            stack.pop()
        outer = self.placed(stack[-1][1] if stack else StepPart(), span.start)
        self._count(span, outer)
        place = self._place(span, outer)
        stack.append((span, place))
        self._by_id[span.operation] = place
        self.lanes[span.lane].append((span, place))
        if span.sequence >= 0 and not span.name.startswith(NODE):
            self._operations[span.lane, span.sequence] = place

    def _count(self, span: Span, outer: StepPart) -> None:
        if span.name.startswith(STEP):
            return
        if self._cycle.device:
            self.events[outer._replace(kind="idle")] += 1
        elif span.lane == self._cycle.lane:
            self.events[outer] += 1

    def _place(self, span: Span, outer: StepPart) -> StepPart:
        """Return a span's module, kind and direction; `outer` are those of the surrounding span."""
        name = span.name
        if name.startswith(MODULE):
            return self._module(name.removeprefix(MODULE), outer)
        if name.startswith(NODE):
            return self._node(span)
        if name.startswith(OPTIMIZER):
            return OF_PHASE["optimizer"]
        if span.kind == "range" or name.startswith((COMPILED, GRAPH)):
            return self._range(name, outer)
        return outer._replace(kind=_kind(name, outer))

    def _module(self, path: str, outer: StepPart) -> StepPart:
        again = outer.direction in ("backward", "recompute")
        direction: StepDirection = "recompute" if again else "forward"
        return StepPart(path, "idle", direction, self._roles.get(path, ""))

    def _node(self, span: Span) -> StepPart:
        """Return a backward node's place: its forward operation's module, or the last node's."""
        place = self._operations.get((span.forward_lane, span.sequence))
        if span.sequence < 0 or place is None:
            return self._last_node._replace(kind="memory-bound")
        kind = stronger(place.kind, "memory-bound")
        self._last_node = StepPart(place.module, kind, "backward")
        return self._last_node

    def _range(self, name: str, outer: StepPart) -> StepPart:
        if name.startswith(COMPILED):
            self.compiled.add(outer.module)
        if name.startswith(GRAPH):
            return outer._replace(kind="memory-bound")
        return StepPart() if name.startswith(STEP) else outer


def kernel_place(kernel: Span, host: HostPlaces) -> StepPart:
    """Return the module, kind and direction of the operation that launched a kernel.

    The kernel's name gives the kind if the operation's own kind is `idle` or `memory-bound`.
    """
    place = host.launching(kernel)
    if place.kind not in ("idle", "memory-bound"):
        return place
    return place._replace(kind=step_kind(kernel.name))


def _kind(name: str, outer: StepPart) -> StepKind:
    # A module's own calls; what these call in their turn is of their kind.
    kind = kind_in(name, outer.role if outer.kind == "idle" else "")
    if kind != "communication" and outer.direction == "optimizer":
        return "optimizer"
    return stronger(outer.kind, kind)


def computing(spans: Sequence[Span]) -> set[int]:
    """Return the indices of a thread's operations that compute and contain no such operation."""
    indices: set[int] = set()
    around: list[int] = []
    for number, span in enumerate(spans):
        while around and spans[around[-1]].end <= span.start:
            around.pop()
        if span.kind == "operation" and not NO_WORK.match(span.name):
            indices.difference_update(around)
            indices.add(number)
        around.append(number)
    return indices
