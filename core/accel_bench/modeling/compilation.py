"""What torch's compiler has done in this process: graphs, breaks, recompilations, seconds.

Torch keeps these counters for itself and they are not public, so a part is null where it is gone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

REASONS = 3
"""How many reasons of a kind are kept."""


def read_compilation() -> dict[str, Any]:
    """Return JSON of everything that was compiled so far; a count that torch does not keep is null.

    Imports torch's compiler where nothing has yet.
    """
    return {
        "compile_seconds": _seconds(),
        **_graph_counts(),
        **_recompile_counts(),
        **_cache_counts(),
    }


def reset_compiler() -> None:
    """Forget what was counted before; a torch without these counters has nothing to forget."""
    try:
        from torch._dynamo import utils

        utils.counters.clear()
        utils.clear_compilation_metrics()
    except (ImportError, AttributeError):
        return


def _seconds() -> float | None:
    """Wall-clock seconds of tracing and compiling, forward and backward."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except (ImportError, AttributeError, KeyError):
        return None


def _graph_counts() -> dict[str, Any]:
    """Graphs, breaks between them, and functions that were left to run as they are.

    Torch files breaks under two headings; branching on a tensor and the recompile limit, say, are
    under `unimplemented`.
    """
    frames, breaks, others = map(_counter, ("frames", "graph_break", "unimplemented"))
    if frames is None or breaks is None or others is None:
        return {"graphs": None, "graph_breaks": None, "uncompiled_frames": None}
    breaks.update(others)
    return {
        "graphs": (_counter("stats") or Counter())["unique_graphs"],
        "graph_breaks": breaks.total(),
        "graph_break_reasons": _first_lines(breaks),
        "uncompiled_frames": frames["total"] - frames["ok"],
    }


def _recompile_counts() -> dict[str, Any]:
    """Compilations of a function that had been compiled before, with what had changed."""
    try:
        from torch._dynamo.utils import get_compilation_metrics

        reasons = [entry.recompile_reason for entry in get_compilation_metrics()]
    except (ImportError, AttributeError):
        return {"recompiles": None}
    found = [reason for reason in reasons if reason]
    return {"recompiles": len(found), "recompile_reasons": _first_lines(found)}


def _cache_counts() -> dict[str, Any]:
    """Graphs that inductor took from its cache on disk, and those that it compiled."""
    counts = _counter("inductor")
    if counts is None:
        return {"graph_cache_hits": None, "graph_cache_misses": None}
    return {
        "graph_cache_hits": counts["fxgraph_cache_hit"],
        "graph_cache_misses": counts["fxgraph_cache_miss"],
    }


def _counter(name: str) -> Counter[str] | None:
    """One of torch's counters, empty when nothing was counted, or None when there are none."""
    try:
        from torch._dynamo.utils import counters

        return Counter(counters.get(name, {}))
    except (ImportError, AttributeError):
        return None


def _first_lines(reasons: Counter[str] | list[str]) -> list[str]:
    """The first line of each of the first few reasons; the rest of one is a stack trace."""
    return [reason.strip().splitlines()[0] for reason in list(reasons)[:REASONS]]
