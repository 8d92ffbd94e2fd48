"""The device type `cuda`: NVIDIA's GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench import DeviceType, Machine


class CUDA(DeviceType):
    """Device type of NVIDIA's GPUs, which NVML lists."""

    torch_type = "cuda"
    label = "CUDA"
    preference = 40
    process_group_backend = "nccl"
    pins_memory = True

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the names of the GPUs that NVML lists."""
        return [gpu.name for gpu in machine.gpus]

    def driver(self, machine: Machine) -> str | None:
        """Return the version of the driver that NVML reports."""
        return machine.driver

    def lacks(self, torch_version: str) -> str:
        """Return why this version of torch is not built for CUDA; empty if it is or may be."""
        if torch_version.endswith("+cpu"):
            return "the installed torch is built for CPUs only"
        if "+rocm" in torch_version or "+xpu" in torch_version:
            return f"the installed torch {torch_version} is not built for CUDA"
        return ""
