"""The device type `rocm`: AMD's GPUs, which torch calls `cuda` if built for ROCm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accel_bench import DeviceType, Machine

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
"""Linux folder of AMD's driver with a folder for each processor; those with SIMD units are GPUs."""


class ROCm(DeviceType):
    """Device type of AMD's GPUs, for which torch uses the names and modules of CUDA."""

    torch_type = "cuda"
    label = "ROCm"
    preference = 30
    process_group_backend = "nccl"
    pins_memory = True

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the marketing names of the GPUs that AMD's driver lists.

        A GPU without a marketing name is called by its architecture, such as `gfx942`.
        """
        nodes = sorted(TOPOLOGY.glob("[0-9]*"), key=lambda node: int(node.name))
        return [_name(node, facts) for node in nodes if (facts := _facts(node))]

    def lacks(self, torch_version: str) -> str:
        """Return the reason why a torch of this version is not built for ROCm; empty if it is."""
        if "+rocm" in torch_version:
            return ""
        return f"the installed torch {torch_version} is not built for ROCm".replace("  ", " ")


def _facts(node: Path) -> dict[str, str]:
    """Return the properties in a processor's folder by name; empty for a CPU or if unreadable."""
    try:
        lines = (node / "properties").read_text(encoding="utf8").splitlines()
    except OSError:
        return {}
    facts = dict(pair for line in lines if len(pair := line.split(maxsplit=1)) == 2)
    return facts if facts.get("simd_count", "0") != "0" else {}


def _name(node: Path, facts: dict[str, str]) -> str:
    """Return a GPU's marketing name, or its architecture, such as `gfx942`, if it has no name.

    `node` is its folder in the driver's topology, and `facts` are its properties.
    """
    try:
        name = (node / "name").read_text(encoding="utf8").strip()
    except OSError:
        name = ""
    version = int(facts.get("gfx_target_version", "0"))
    architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return name or architecture
