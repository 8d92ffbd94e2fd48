"""The devices that cells run on, by the names that `resources.device` has for them."""

from __future__ import annotations

from functools import cache

from accel_bench.errors import ScenarioError
from accel_bench.machine.devices import HOST, device_type, device_types
from accel_bench.machine.info import read_machine


def torch_name(name: str) -> str:
    """Return what torch calls a device such as `rocm:1`: `cuda:1`; a name of torch's as it is."""
    kind, colon, index = name.partition(":")
    known = device_types().get(kind)
    return name if known is None else f"{known.torch_type}{colon}{index}"


def prepare_device(name: str) -> str:
    """Return what torch calls a device, which this process may use; with a number it is current.

    Raises ScenarioError for a type of device that nothing installed describes, and for one that
    torch cannot use.
    """
    kind, _, index = name.partition(":")
    if reason := _lacks(kind):
        raise ScenarioError(f"nothing can run on device {name!r}: {reason}")
    if index:
        device_type(kind).use(int(index))
    return torch_name(name)


@cache
def _lacks(kind: str) -> str:
    """Prepare a type of device; return why torch cannot use it, empty where it can."""
    import torch

    device = device_type(kind)
    reason = device.lacks(str(torch.__version__))
    if not reason:
        device.prepare()
    return reason


@cache
def default_device() -> str:
    """Return the device of `resources.device: auto`; the host where torch cannot reach that."""
    import torch

    name = read_machine().device
    available = getattr(torch.get_device_module(prepare_device(name)), "is_available", None)
    return name if available is None or available() else HOST
