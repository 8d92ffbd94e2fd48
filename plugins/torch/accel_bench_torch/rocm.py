"""The device type `rocm`: AMD's GPUs, which torch calls `cuda` if built for ROCm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accel_bench import DeviceType, Machine

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
"""Folder of Linux with the processors of AMD's driver: GPUs are those with SIMD units."""


class ROCm(DeviceType):
    """AMD's GPUs, by the compute driver; torch's names and modules are those of CUDA."""

    torch_type = "cuda"
    label = "ROCm"
    preference = 30
    process_group_backend = "nccl"
    pins_memory = True

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the GPUs of the driver's topology, by architecture if they have no name."""
        nodes = sorted(TOPOLOGY.glob("[0-9]*"), key=lambda node: int(node.name))
        return [_name(node, facts) for node in nodes if (facts := _facts(node))]

    def lacks(self, torch_version: str) -> str:
        """Return the reason for a torch not built for ROCm, by its version."""
        if "+rocm" in torch_version:
            return ""
        return f"the installed torch {torch_version} is not built for ROCm".replace("  ", " ")


def _facts(node: Path) -> dict[str, str]:
    """Return a GPU's properties; empty for a CPU, or for an unreadable node."""
    try:
        lines = (node / "properties").read_text(encoding="utf8").splitlines()
    except OSError:
        return {}
    facts = dict(pair for line in lines if len(pair := line.split(maxsplit=1)) == 2)
    return facts if facts.get("simd_count", "0") != "0" else {}


def _name(node: Path, facts: dict[str, str]) -> str:
    """Return the marketing name by the driver, else the architecture, as `gfx942`."""
    try:
        name = (node / "name").read_text(encoding="utf8").strip()
    except OSError:
        name = ""
    version = int(facts.get("gfx_target_version", "0"))
    architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return name or architecture
