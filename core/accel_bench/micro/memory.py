"""Measure the most bytes that a call holds beyond its weights and its batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def peak_memory_bytes(call: Callable[[], Any], device_type: str) -> int | None:
    """Return the peak of a call above what was allocated before it; None on other devices.

    On a CPU the events of torch's allocator are added up.
    """
    if device_type == "cuda":
        return _on_gpu(call)
    return _on_cpu(call) if device_type == "cpu" else None


def _on_gpu(call: Callable[[], Any]) -> int:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - int(before)


def _on_cpu(call: Callable[[], Any]) -> int | None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = call()
    del kept
    results = getattr(profiler.profiler, "kineto_results", None)
    if results is None:
        return None
    events = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return int(peak)
