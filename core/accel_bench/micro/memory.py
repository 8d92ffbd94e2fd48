"""Measure the most bytes that a call holds beyond its weights and its batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bench.machine.device_type import DeviceType
from accel_bench.machine.devices import HOST, of_torch_type


def peak_memory_bytes(call: Callable[[], Any], device_type: str) -> int | None:
    """Return the peak of a call above what was allocated before it.

    On a CPU the events of torch's allocator are added up. None on a device whose allocator keeps no
    peak, and on one that nothing installed describes.
    """
    if device_type == HOST:
        return _on_cpu(call)
    device = of_torch_type(device_type)
    return None if device.on_host else _on_device(call, device)


def _on_device(call: Callable[[], Any], device: DeviceType) -> int | None:
    device.synchronize()
    device.reset_peak_memory()
    before = device.memory().get("device_allocated_bytes")
    call()
    device.synchronize()
    peak = device.memory().get("device_peak_allocated_bytes")
    return None if before is None or peak is None else peak - before


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
