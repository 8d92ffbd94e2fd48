"""Position of this process among a launcher's processes, read from environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from accel_bench.errors import ScenarioError


class _Variables(NamedTuple):
    """Names of a launcher's environment variables; empty for a value that the launcher lacks."""

    launcher: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    node: str = ""
    nodes: str = ""


PER_PROCESS = (
    _Variables(
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
    ),
    _Variables(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Variables(
        "MVAPICH",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _Variables("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Variables(
        "SLURM",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "",
        "SLURM_NODEID",
        "SLURM_STEP_NUM_NODES",
    ),
)
"""Variables of launchers that start one process for each rank. The innermost launcher comes first:
MPI or SLURM may start torchrun once on each node."""

PER_NODE = (
    _Variables("Kubeflow", "PET_NODE_RANK", "PET_NNODES", "", "PET_NPROC_PER_NODE"),
    _Variables(
        "SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "", "SKYPILOT_NUM_GPUS_PER_NODE"
    ),
    _Variables("dstack", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "", "DSTACK_GPUS_PER_NODE"),
)
"""Variables of launchers that start one process on each node; `local_size` counts its devices."""

ADDRESSES = ("MASTER_ADDR", "PET_MASTER_ADDR", "DSTACK_MASTER_NODE_IP")
"""Variables with the address of rank 0; SkyPilot and SLURM have lists of all machines instead."""

FIRST_NODE = re.compile(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?")
"""Pattern of the first node in SLURM's list of nodes: `n1` in `n[1-2,7]`, `n1,m4` or `n1`."""


@dataclass(frozen=True)
class Placement:
    """Position of this process among the processes of the launcher that has started it."""

    launcher: str
    """Name of the launcher."""

    rank: int
    """Index of the process, or of the node if there is one process for each node."""

    size: int
    """Number of all processes."""

    local_rank: int | None = None
    """Index of the process on its node; None if unknown."""

    local_size: int | None = None
    """Number of processes on the node, or of its devices if there is one process for each node."""

    node: int | None = None
    """Index of the node; None if unknown."""

    nodes: int | None = None
    """Number of all nodes; None if unknown."""

    per_node: bool = False
    """True for one process on each node, which starts the node's ranks."""

    address: str = ""
    """Name or address of the machine of rank 0."""

    port: int | None = None
    """Port that the launcher itself uses on the machine of rank 0; None if unknown."""


def read_placement(variables: Mapping[str, str]) -> Placement | None:
    """Return this process's position by its environment variables; None if no launcher set any.

    If launchers are nested, the innermost is read. Raises ScenarioError for contradictory
    variables.
    """
    matches = [
        *filter(None, (_read(names, variables, False) for names in PER_PROCESS)),
        *filter(None, (_read(names, variables, True) for names in PER_NODE)),
    ]
    if not matches:
        return None
    first, *others = matches
    for other in others:
        _refuse_contradiction(first, other)
    return first


def _read(names: _Variables, variables: Mapping[str, str], per_node: bool) -> Placement | None:
    """Return the position from the variables `names` of one launcher; None if they are unset."""
    if not variables.get(names.size):  # such as SLURM_PROCID alone, in the batch step of a job
        return None
    if not variables.get(names.rank):
        if _number(variables, names.size) in (None, 1):
            return None
        raise ScenarioError(
            f"{names.size}={variables[names.size]} is set and {names.rank} is not; have the "
            "launcher set both, or unset it"
        )
    values = {
        field: _number(variables, name)
        for field, name in zip(names._fields[1:], names[1:], strict=True)
    }
    rank, size = values["rank"], values["size"]
    assert rank is not None and size is not None
    for part, whole in (("rank", "size"), ("local_rank", "local_size"), ("node", "nodes")):
        inside, limit = values[part], values[whole]
        if inside is not None and limit is not None and inside >= limit and not per_node:
            part_name, whole_name = getattr(names, part), getattr(names, whole)
            raise ScenarioError(
                f"{part_name}={inside} is not below {whole_name}={limit}; unset the one that is "
                "left over from another launch"
            )
    return Placement(
        names.launcher,
        rank,
        size,
        values["local_rank"],
        values["local_size"] or None,
        rank if per_node else values["node"],
        size if per_node else values["nodes"],
        per_node,
        _address(variables),
        _number(variables, "MASTER_PORT") or _number(variables, "PET_MASTER_PORT"),
    )


def _number(variables: Mapping[str, str], name: str) -> int | None:
    """Return the integer in the variable `name`; None if unset, or a word such as `auto`."""
    text = variables.get(name, "") if name else ""
    if not text or (name.startswith("PET_") and text.isalpha()):
        return None
    if not text.isdecimal():
        raise ScenarioError(f"{name}={text} is no number; unset it, or mend the launcher")
    return int(text)


def _address(variables: Mapping[str, str]) -> str:
    named = next((variables[name] for name in ADDRESSES if variables.get(name)), "")
    named = named or next(iter(variables.get("SKYPILOT_NODE_IPS", "").split()), "")
    first = FIRST_NODE.match(variables.get("SLURM_STEP_NODELIST", ""))
    return named or "".join(part or "" for part in first.groups()) if first else named


def _refuse_contradiction(inner: Placement, outer: Placement) -> None:
    """Raise ScenarioError if neither of two launchers can have started the other.

    A launcher may start another launcher once, once for each node, or once for each process.
    """
    problems = list(_contradictions(inner, outer))
    if problems:
        raise ScenarioError(
            f"{inner.launcher} and {outer.launcher} contradict one another: {problems[0]}; unset "
            "the variables of the one that has not started this process"
        )


def _contradictions(inner: Placement, outer: Placement) -> Iterator[str]:
    if outer.size == 1:
        return
    nodes = inner.nodes if not inner.per_node else inner.size
    if not outer.per_node and outer.size == inner.size and nodes != outer.size:
        if outer.rank != inner.rank:
            yield f"this process has rank {inner.rank} by the one and {outer.rank} by the other"
    elif nodes is not None and outer.size != nodes:
        sizes = f"{inner.size} processes on {nodes} nodes"
        yield f"the one has started {sizes}, the other {outer.size}"
    elif nodes is None and outer.size > inner.size:
        yield f"the one has started {inner.size} processes, the other {outer.size}"
