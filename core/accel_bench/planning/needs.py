"""What a scenario needs, in words: devices, their memory, and extras that have to be installed."""

from __future__ import annotations

from collections.abc import Iterator

from accel_bench.plugins.shipped import extras
from accel_bench.scenario.models import ScenarioFile


def needs_of(file: ScenarioFile) -> list[str]:
    """Return what a scenario needs that not every machine has, such as `1 GPU of 24 GB`.

    Extras are those of the plugins that its slots and stacks name.
    """
    return [*_devices(file), *(f"extra {extra}" for extra in _extras(file))]


def _devices(file: ScenarioFile) -> Iterator[str]:
    resources = file.resources
    number = resources.devices * resources.nodes
    if resources.device in ("auto", "cpu"):
        if number > 1:
            yield f"{number} devices" if resources.device == "auto" else f"{number} processes"
        return
    kind = "GPU" if resources.device == "cuda" else f"{resources.device} device"
    memory = resources.device_memory_gib
    size = f" of {memory} GB" if memory else ""
    yield f"{number} {kind}{'s' if number > 1 else ''}{size}"


def _extras(file: ScenarioFile) -> list[str]:
    known = extras()
    used = {getattr(file, slot).use for slot in file.SLOTS}
    used |= {use.use for stack in file.stacks.values() for use in stack.use}
    return sorted({known[name].extra for name in used if name in known})
