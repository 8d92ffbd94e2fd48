"""Discovery of installed device types by entry point, and selection of one of them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING

from accel_bench.errors import PluginError, ScenarioError, did_you_mean
from accel_bench.machine.device_type import DeviceType

if TYPE_CHECKING:
    from accel_bench.machine.info import Machine

DEVICES = "accel_bench.devices"
"""Entry-point group of device types: `name = "package.module:Class"`."""

AUTO = "auto"
"""Value of `resources.device` that selects the usable device type of highest preference."""

HOST = "cpu"
"""Name of the device type that every machine has."""

OTHERS = {
    "hpu": "Intel's Gaudi",
    "musa": "Moore Threads' GPUs",
    "npu": "Huawei's Ascend",
    "xla": "Google's TPUs",
    "xpu": "Intel's GPUs",
}
"""Torch backends that no shipped device type supports, with their devices."""


@lru_cache(maxsize=1)
def device_types() -> Mapping[str, DeviceType]:
    """Return the installed device types by name, in the order of their preference.

    A shipped type replaces other types of the same name. A type that cannot be imported is left out
    with a warning. Raises PluginError if the type `cpu` is missing.
    """
    types: dict[str, DeviceType] = {}
    entries = metadata.entry_points(group=DEVICES)
    for entry in sorted(entries, key=lambda entry: (not _is_own(entry), entry.name)):
        try:
            types.setdefault(entry.name, _load(entry))
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            text = f"the device type {entry.name!r} ({entry.value}) is left out: {reason}"
            warnings.warn(text, stacklevel=2)
    if HOST not in types:
        raise PluginError(
            "the metadata of accel-bench list no device types; install it again "
            "(in a checkout: pip install --no-deps -e .)"
        )
    ordered = sorted(types.items(), key=lambda item: (-item[1].preference, item[0]))
    return MappingProxyType(dict(ordered))


def device_type(name: str) -> DeviceType:
    """Return the installed device type called `name`, as `resources.device` names it.

    Raises ScenarioError if it is not installed, with the nearest name or the missing entry point.
    """
    known = device_types()
    if name in known:
        return known[name]
    if name in OTHERS:
        listed = ", ".join((AUTO, *sorted(known)))
        raise ScenarioError(
            f"the device type {name!r} ({OTHERS[name]}) is not installed; a "
            f"distribution with an entry point {name!r} of the group {DEVICES} brings it "
            f"(docs/devices.md). There are {listed}"
        )
    hint = did_you_mean(name, (AUTO, *known))
    raise ScenarioError(f"no device type is called {name!r}{hint}")


def best_device(machine: Machine) -> str:
    """Return the name of the device type that `resources.device: auto` selects on a machine."""
    torch = machine.versions.get("torch", "")
    usable = (n for n, dev in device_types().items() if dev.find(machine) and not dev.lacks(torch))
    return next(usable, HOST)


def of_torch_type(torch_type: str, name: str = "") -> DeviceType:
    """Return an installed device type of `torch_type`, preferably the one called `name`.

    If none is installed, return a device type that calls the module `torch.<torch_type>`. Without
    such a module, as for `meta`, return the device type of the CPU.
    """
    known = device_types()
    if name in known and known[name].torch_type == torch_type:
        return known[name]
    match = next((kind for kind in known.values() if kind.torch_type == torch_type), None)
    return match or _undescribed(torch_type) or known[HOST]


def _undescribed(torch_type: str) -> DeviceType | None:
    """Return a device type that calls `torch.<torch_type>`, or None if torch has no such module."""
    module = getattr(sys.modules.get("torch"), torch_type, None)
    if not hasattr(module, "synchronize"):
        return None
    known = {"torch_type": torch_type, "label": torch_type}
    kind: type[DeviceType] = type("Undescribed", (DeviceType,), known)
    return kind()


def computes_on_host(torch_type: str) -> bool:
    """Return whether devices of a torch type compute in host memory; false for an unknown type."""
    known = (kind for kind in device_types().values() if kind.torch_type == torch_type)
    return torch_type == HOST or any(kind.on_host for kind in known)


def started_device() -> DeviceType | None:
    """Return the device type, other than `cpu`, that this process has started; None without any."""
    if "torch" not in sys.modules:
        return None
    others = (kind for kind in device_types().values() if not kind.on_host)
    return next((kind for kind in others if kind.is_started()), None)


def _load(entry: metadata.EntryPoint) -> DeviceType:
    kind = entry.load()
    if not (isinstance(kind, type) and issubclass(kind, DeviceType)):
        raise PluginError("it is no subclass of accel_bench.DeviceType")
    return kind()


def _is_own(entry: metadata.EntryPoint) -> bool:
    return entry.module.partition(".")[0] == __name__.partition(".")[0]
