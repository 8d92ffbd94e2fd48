"""The device type `rocm`: AMD's GPUs, which torch calls `cuda` where it is built for ROCm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accel_bench import DeviceType, Machine

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
"""Folder in which Linux lists processors of AMD's driver: GPUs are those with SIMD units."""


class ROCm(DeviceType):
    """AMD's GPUs, as the compute driver lists them; torch's names and modules are those of CUDA."""

    torch_type = "cuda"
    label = "ROCm"
    preference = 30
    process_group_backend = "nccl"
    pins_memory = True

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the GPUs of the driver's topology, by architecture where it tells no name."""
        nodes = sorted(TOPOLOGY.glob("[0-9]*"), key=lambda node: int(node.name))
        return [_name(node, facts) for node in nodes if (facts := _facts(node))]

    def lacks(self, torch_version: str) -> str:
        """Return that torch was not built for ROCm; wheels say so in their version."""
        if "+rocm" in torch_version:
            return ""
        return f"the installed torch {torch_version} is not built for ROCm".replace("  ", " ")


def _facts(node: Path) -> dict[str, str]:
    """Return a GPU's properties; nothing of a CPU, or of a node that may not be read."""
    try:
        lines = (node / "properties").read_text(encoding="utf8").splitlines()
    except OSError:
        return {}
    facts = dict(pair for line in lines if len(pair := line.split(maxsplit=1)) == 2)
    return facts if facts.get("simd_count", "0") != "0" else {}


def _name(node: Path, facts: dict[str, str]) -> str:
    """Return the marketing name where the driver has it, else the architecture, as `gfx942`."""
    try:
        name = (node / "name").read_text(encoding="utf8").strip()
    except OSError:
        name = ""
    version = int(facts.get("gfx_target_version", "0"))
    architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return name or architecture
