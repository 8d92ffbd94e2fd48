"""What the plugin asks of the program that speaks to Ray."""

from __future__ import annotations

from dataclasses import dataclass

NOTICE = "notice: "
"""What a line begins with that the program prints for the user."""


@dataclass(frozen=True)
class Request:
    """Nodes to reserve for a session, and where their agents find the parent."""

    address: str
    """Address of the cluster; `local` starts one."""

    nodes: int

    devices: int
    """Ranks on each node."""

    device: str
    """`cuda`, `cpu`, or `auto` where the parent has no GPU and the scenario does not say."""

    device_type: str | None
    """Type of the devices, such as `l4`."""

    cpus: int | None
    """CPUs that each rank reserves."""

    seconds: float
    """How long the reservation may take."""

    parent: int
    """Process id of the parent, with which the program ends."""

    ports: tuple[int, ...]
    """Ports of the parent, one for each group of all these nodes."""
