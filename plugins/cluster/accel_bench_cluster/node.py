"""Description of an agent's machine: name, network, cores, memory, devices."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from accel_bench import read_machine


def describe_node(address: str) -> dict[str, Any]:
    """Return a description of this machine: its name, network, cores, memory in bytes and GPUs.

    `address` is the address from which it connects to the parent.
    """
    machine = read_machine()
    interface = interface_of(address)
    return {
        "name": os.environ.get("SLURMD_NODENAME") or machine.host,
        "address": address,
        "interface": interface,
        "link_megabits_per_second": link_speed(interface),
        "cores": machine.cores,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "memory_bytes": machine.memory_bytes,
        "gpus": [gpu.name for gpu in machine.gpus],
        "gpu_uuids": [gpu.uuid for gpu in machine.gpus],
    }


def described_at(description: dict[str, Any], address: str) -> dict[str, Any]:
    """Return a copy of the parent's `description` with the address and interface by which other
    nodes reach it."""
    interface = interface_of(address)
    link = {"interface": interface, "link_megabits_per_second": link_speed(interface)}
    return {**description, "address": address, **link}


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that has `address`, or None if none has it."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return name
    return None


def link_speed(interface: str | None) -> int | None:
    """Return a network interface's speed in Mbit/s, or None if unknown, as for loopback."""
    if interface is None:
        return None
    try:
        speed = int(Path(f"/sys/class/net/{interface}/speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


def free_port(address: str) -> int:
    """Return a currently free TCP port on an address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
