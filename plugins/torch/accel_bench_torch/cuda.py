"""The device type `cuda`: NVIDIA's GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench import DeviceType, Machine


class CUDA(DeviceType):
    """NVIDIA's GPUs, as NVML lists them."""

    torch_type = "cuda"
    label = "CUDA"
    preference = 40
    process_group_backend = "nccl"
    pins_memory = True

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the names of the GPUs by NVML."""
        return [gpu.name for gpu in machine.gpus]

    def driver(self, machine: Machine) -> str | None:
        """Return the version of the driver by NVML."""
        return machine.driver

    def lacks(self, torch_version: str) -> str:
        """Return the reason for a torch built for another device type, by its version."""
        if torch_version.endswith("+cpu"):
            return "the installed torch is built for CPUs only"
        if "+rocm" in torch_version or "+xpu" in torch_version:
            return f"the installed torch {torch_version} is not built for CUDA"
        return ""
