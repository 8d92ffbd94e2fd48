"""Communication backends of process groups, by type of device."""

from __future__ import annotations

import torch

from accel_bench.machine.device_type import DeviceType
from accel_bench.machine.info import Device


def backends_for(device: DeviceType, asked: str | None = None) -> str:
    """Return the backend of `init_process_group` for ranks on a type of device.

    `asked` replaces the device type's default. With GPUs the result names a backend for the CPU
    too, on which offloaded tensors are reduced.
    """
    backend = asked or device.process_group_backend
    return backend if device.on_host else f"cpu:gloo,{device.torch_type}:{backend}"


def backend_of(device: Device) -> str:
    """Return the name of the backend in use for tensors on a device, such as `nccl`."""
    config = torch.distributed.get_backend_config()
    by_device = dict(part.split(":", 1) for part in config.split(",") if ":" in part)
    return str(by_device.get(device.type, torch.distributed.get_backend()))
