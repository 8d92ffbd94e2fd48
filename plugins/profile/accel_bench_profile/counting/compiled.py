"""Count what torch's compiler has made: kernels that a step calls, graph breaks, recompilations.

Torch keeps its reasons for itself and they are not public: what is gone in another version is left
out, with a sentence.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any
from unittest.mock import patch

from accel_bench_profile.counting.counter import StepCounter
from accel_bench_profile.counting.sites import NOWHERE, Place, is_users_file
from accel_bench_profile.ledger.schema import Figure, Kind

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
