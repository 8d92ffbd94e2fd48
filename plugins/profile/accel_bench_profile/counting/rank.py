"""One rank's ledger: build the run, take steps until they are alike, count the next one.

Of compiled code the kernels that a step calls are counted, graph breaks and recompilations. Torch
keeps its reasons for itself and they are not public: what is gone in another version is left out,
with a sentence.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from typing import Any
from unittest.mock import patch

from accel_bench.engine import Batch, PhaseName, Stopwatch
from accel_bench.errors import InvalidRunError
from accel_bench.run_context import Run
from accel_bench.worker.measurement import Rank
from accel_bench_profile.counting.counter import StepCounter
from accel_bench_profile.counting.sites import NOWHERE, Place, Sites, is_users_file
from accel_bench_profile.ledger.schema import Figure, Kind, RankLedger

WARMUP_STEPS = 3
"""Steps before the one that is counted: optimizers make their state in the first, data-parallel
models their buckets, and a compiler may compile the second shape again."""

COMPILED = (
    "of compiled code, the bytes and FLOPs of generated kernels and calls such as Tensor.cpu() are "
    "not counted"
)


def count(rank: Rank) -> RankLedger:
    """Return the ledger of a step of the run that a rank builds: a purpose of a worker."""
    return count_step(rank.run, partial(rank.take_steps, rank.build()))


def count_step(run: Run, take_steps: Callable[[Stopwatch], None]) -> RankLedger:
    """Return the ledger of the step after the warm-up. Raises InvalidRunError without that step."""
    keep_provenance()  # after the run is built, before anything is compiled
    steps = CountedSteps(run)
    try:
        take_steps(steps)
    finally:
        steps.close()
    if steps.counter is None or steps.running:
        raise InvalidRunError(["the engine returned before the step that is counted had ended"])
    compiled = has_compiled()
    if compiled:
        count_compilations(steps.counter)
    return RankLedger(entries=steps.counter.entries(), left_out=(COMPILED,) if compiled else ())


class CountedSteps:
    """The stopwatch of the counted step: nothing is timed."""

    def __init__(self, run: Run) -> None:
        self.running = True
        self.counter: StepCounter | None = None
        self._run = run
        self._done = 0
        self._counting = ExitStack()

    def resume(self) -> None:
        """Do nothing: no time is measured."""

    def mark(self, phase: PhaseName) -> None:
        """Pass on which part of the step has ended."""
        if self.counter is not None:
            self.counter.sites.mark(phase)

    def lap(self, batches: Sequence[Batch], loss: Any) -> None:
        """End a step: one of the warm-up, or the one that is counted."""
        self._done += 1
        if self.counter is not None:
            self.close()
            self.running = False
        elif self._done == WARMUP_STEPS + self._run.trains_from:
            self._start()

    def close(self) -> None:
        """Stop counting, unless that is done."""
        self._counting.close()

    def _start(self) -> None:
        model, state = self._run.unwrapped_model, _numbers(self._run.optimizer)
        kept = [*model.parameters(), *model.buffers()] if hasattr(model, "parameters") else []
        self.counter = StepCounter(Sites(model), kept, state)
        self._counting.callback(self.counter.stop)
        self.counter.start(host_calls=not has_compiled())
        self._counting.enter_context(counting_kernels(self.counter))


def _numbers(optimizer: Any) -> list[Any]:
    """Return the optimizer's state that lies in host memory on every device: numbers of steps."""
    values = (one for state in getattr(optimizer, "state", {}).values() for one in state.values())
    return [one for one in values if getattr(one, "numel", lambda: 0)() == 1 and one.is_cpu]


CALLS = re.compile(r"^ +(cpp_fused\w*|triton_\w+?)(?:\.run)?\(", re.MULTILINE)
"""A call of a generated kernel in the code that inductor writes."""

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def keep_provenance() -> None:
    """Have inductor keep the source lines of its kernels, where a compiler is there at all.

    Graphs that its cache has without them are not taken: a mark in the configuration, which is part
    of the cache's key and says nothing to a compiled step, keeps both apart.
    """
    if "torch._dynamo" not in sys.modules:
        return
    with suppress(ImportError, AttributeError):
        from torch._inductor import config

        config.trace.provenance_tracking_level = 1
        config.aot_inductor.metadata = {**config.aot_inductor.metadata, "kernels": "with lines"}


def has_compiled() -> bool:
    """Return whether anything was compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils and utils.counters["stats"].get("unique_graphs"))


def counting_kernels(counter: StepCounter) -> ExitStack:
    """Return a context in which each call of a compiled graph counts its generated kernels."""
    stack = ExitStack()
    code = sys.modules.get("torch._inductor.output_code")
    if code is None:
        return stack
    graph = code.CompiledFxGraph
    call: Callable[..., Any] = graph.__call__

    def counted(self: Any, inputs: Any) -> Any:
        provenance = getattr(self, "inductor_provenance_stack_traces_str", None) or ""
        for operation, place, number in _kernels(self.source_code, provenance):
            site = counter.sites.here()
            if place is not NOWHERE:
                site = counter.sites.site(place._replace(module=site.module), site.phase)
            counter.add((site, operation, "compiled", ""), {"kernels": number})
        return call(self, inputs)

    stack.enter_context(patch.object(graph, "__call__", counted))
    return stack


def count_compilations(counter: StepCounter) -> None:
    """Count graph breaks and recompilations since the start of the process, where they were."""
    from torch._dynamo.utils import get_compilation_metrics, graph_break_reasons

    def add(kind: Kind, figure: Figure, reason: str, place: Place) -> None:
        line = (reason.strip().splitlines() or [""])[0][:200]
        counter.add((counter.sites.site(place, "forward"), line, kind, ""), {figure: 1})

    for one in graph_break_reasons:
        frames = [frame for frame in one.user_stack if is_users_file(frame.filename)]
        last = (frames or one.user_stack or [None])[-1]
        place = Place("", last.filename, last.lineno or 0, last.name) if last else NOWHERE
        add("graph break", "graph_breaks", one.reason, place)
    for made in get_compilation_metrics():
        if made.recompile_reason:
            # Without its guard's number, which depends on what was compiled before.
            reason = re.sub(r"^\d+/\d+: ", "", made.recompile_reason.strip())
            line = made.co_firstlineno or 0
            place = Place("", made.co_filename or "", line, made.co_name or "")
            add("recompilation", "recompilations", reason, place)


@cache
def _kernels(source: str, provenance: str) -> tuple[tuple[str, Place, int], ...]:
    """Return the generated kernels that a graph calls, with their last source line."""
    places = _places(provenance)
    found: Counter[tuple[str, Place]] = Counter()
    for name in CALLS.findall(source):
        operation = re.sub(r"_\d+$", "", name)
        found[f"inductor.{operation}", places.get(name, NOWHERE)] += 1
    return tuple((operation, place, number) for (operation, place), number in found.items())


def _places(provenance: str) -> dict[str, Place]:
    """Return the last line outside of torch by kernel; keys of the text are `kernel:number`."""
    places = {}
    for key, traces in json.loads(provenance or "{}").items():
        frames = [match for trace in traces for match in FRAME.finditer(trace)]
        users = [match for match in frames if is_users_file(match["file"])]
        if users:
            last = users[-1]
            place = Place("", last["file"], int(last["line"]), last["function"])
            places[key.rpartition(":")[0]] = place
    return places
