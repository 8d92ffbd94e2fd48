"""Counters of torch's compiler in this process: graphs, breaks, recompilations, seconds.

The counters are not public in torch, so a count is null if the installed torch lacks it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

REASONS = 3
"""Largest number of stored reasons for graph breaks, and for recompilations."""


def read_compilation() -> dict[str, Any]:
    """Return counts of all compilations in this process, by the names of `Compilation`'s fields.

    A count that this version of torch lacks is None. The call imports torch's compiler.
    """
    parts = {
        _seconds: ("compile_seconds",),
        _graph_counts: ("graphs", "graph_breaks", "uncompiled_frames"),
        _recompile_counts: ("recompiles",),
        _cache_counts: ("graph_cache_hits", "graph_cache_misses"),
    }
    counts: dict[str, Any] = {}
    for read, keys in parts.items():
        try:
            counts |= read()
        except (ImportError, AttributeError, KeyError):
            counts |= dict.fromkeys(keys)
    return counts


def reset_compiler() -> None:
    """Reset the compiler's counters to 0, if this version of torch has any."""
    try:
        from torch._dynamo import utils

        utils.counters.clear()
        utils.clear_compilation_metrics()
    except (ImportError, AttributeError):
        return


def _seconds() -> dict[str, Any]:
    from torch._dynamo.utils import calculate_time_spent

    return {"compile_seconds": float(calculate_time_spent()["total_wall_time"])}


def _graph_counts() -> dict[str, Any]:
    """Return counts of graphs, graph breaks and uncompiled functions, and reasons for breaks."""
    frames, breaks = _counter("frames"), _counter("graph_break")
    # Here are breaks by branching on a tensor, say, or by the recompile limit.
    breaks.update(_counter("unimplemented"))
    return {
        "graphs": _counter("stats")["unique_graphs"],
        "graph_breaks": breaks.total(),
        "graph_break_reasons": _first_lines(breaks),
        "uncompiled_frames": frames["total"] - frames["ok"],
    }


def _recompile_counts() -> dict[str, Any]:
    """Return the number of recompilations, and the first few reasons for recompilation."""
    from torch._dynamo.utils import get_compilation_metrics

    reasons = (entry.recompile_reason for entry in get_compilation_metrics())
    recompiles = [reason for reason in reasons if reason]
    return {"recompiles": len(recompiles), "recompile_reasons": _first_lines(recompiles)}


def _cache_counts() -> dict[str, Any]:
    """Return how many graphs inductor read from its disk cache, and how many it compiled."""
    counts = _counter("inductor")
    return {
        "graph_cache_hits": counts["fxgraph_cache_hit"],
        "graph_cache_misses": counts["fxgraph_cache_miss"],
    }


def _counter(name: str) -> Counter[str]:
    from torch._dynamo.utils import counters

    return Counter(counters.get(name, {}))


def _first_lines(reasons: Counter[str] | list[str]) -> list[str]:
    return [reason.strip().splitlines()[0] for reason in list(reasons)[:REASONS]]
