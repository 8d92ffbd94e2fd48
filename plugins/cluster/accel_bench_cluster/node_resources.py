"""Resources of the nodes of an allocation: their number, devices, cores, threads and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_bench import device_words, read_machine
from accel_bench.errors import ScenarioError
from accel_bench_cluster.remote import Agent


def largest(scenarios: Sequence[Any]) -> tuple[int, int]:
    """Return the largest number of nodes of any scenario, and the largest number of devices on a
    node."""
    nodes = max(scenario.resources.nodes for scenario in scenarios)
    return nodes, max(scenario.resources.devices for scenario in scenarios)


def devices_of_nodes(scenarios: Sequence[Any]) -> tuple[int, ...]:
    """Return for each node the largest number of devices that any scenario of a sweep needs."""
    nodes, devices = largest(scenarios)
    if not any(scenario.resources.devices_by_node for scenario in scenarios):
        return (devices,) * nodes
    every = [scenario.resources for scenario in scenarios]
    return tuple(
        max(resources.devices_of(node) for resources in every if node < resources.nodes)
        for node in range(nodes)
    )


def refuse_unequal(scenarios: Sequence[Any], launcher: str) -> None:
    """Raise ScenarioError if a scenario asks for nodes with different numbers of devices.
    `launcher` is named in the error."""
    listed = next(
        filter(None, (scenario.resources.devices_by_node for scenario in scenarios)), None
    )
    if listed is not None:
        raise ScenarioError(
            f"launcher {launcher} starts as many processes on each node, and "
            f"resources.devices_by_node is {[*listed]}; use the launcher slurm or ray, or start "
            "the processes yourself and use the launcher env"
        )


def type_of_device(scenarios: Sequence[Any], launcher: str, group: str) -> str | None:
    """Return the device type that the scenarios ask for, such as `a100 80gb`, or None if none asks.

    Raises ScenarioError for two types. `launcher` and `group`, such as `job`, are words for the
    error message: a group of nodes has only one type.
    """
    written = [
        kind for scenario in scenarios if (kind := scenario.resources.device_type) is not None
    ]
    kinds = sorted({device_words(kind): kind for kind in written}.values())
    if len(kinds) > 1:
        raise ScenarioError(
            f"launcher {launcher}: one {group} cannot have the device types {' and '.join(kinds)}; "
            "run the points one after the other"
        )
    return kinds[0] if kinds else None


def device_of_nodes(scenarios: Sequence[Any], launcher: str) -> tuple[str, str | None]:
    """Return the device (`cpu` or `cuda`) and the device type (or None) of a job's nodes.

    The job runs all points of a sweep. Raises ScenarioError for two device types, or for the device
    `auto` if this machine has no GPU, since the job's nodes may have one.
    """
    if (kind := type_of_device(scenarios, launcher, "job")) is not None:
        return "cuda", kind
    wanted = {scenario.resources.device for scenario in scenarios}
    if "auto" in wanted and read_machine().device == "cpu":
        raise ScenarioError(
            f"launcher {launcher}: resources.device is auto, and the machine that submits has no "
            "GPU, which says nothing of the job's nodes; run with --device cuda or --device cpu"
        )
    return ("cpu" if wanted == {"cpu"} else "cuda"), None


def memory_of_nodes(scenarios: Sequence[Any]) -> tuple[int | None, int | None]:
    """Return the GiB of host memory needed on a job's first node and on each other node; None if no
    scenario sets it."""
    first, others = (
        max(
            filter(None, (scenario.resources.host_memory_of(node) for scenario in scenarios)),
            default=None,
        )
        for node in (0, 1)
    )
    return first, others


def wrong_size(launcher: str, started: int, size: int) -> str:
    """Return the error message that `launcher` has started `started` processes, not `size`."""
    processes = f"{started} process" + ("es" if started != 1 else "")
    return (
        f"{launcher or 'the launcher'} has started {processes}, and the scenario asks for {size} "
        f"(of all nodes); have it start {size}, or set resources"
    )


def overlap(one: Agent, other: Agent) -> bool:
    """Return whether two agents of a node may run on the same core. This is assumed if an agent's
    cores are unknown."""
    affinities = [set(agent.description["affinity"]) for agent in (one, other)]
    return one is other or not all(affinities) or bool(affinities[0] & affinities[1])


def cores_of(agents: Sequence[Agent]) -> int:
    """Return how many cores a node's agents may use together; shared cores count once.

    An agent whose cores are unknown shares those of all others.
    """
    affinities = [set(agent.description["affinity"]) for agent in agents]
    cores = [int(agent.description["cores"]) for agent in agents]
    total, counted = 0, set[int]()
    for affinity, number in zip(affinities, cores, strict=True):
        total += min(number, len(affinity - counted))
        counted |= affinity
    return max(total, *cores)


def threads_of(agents: Sequence[Agent]) -> int:
    """Return the number of threads of each rank: the cores per rank of the node with the fewest.

    `agents` has the agent of each rank. Ranks on unequal nodes then use equally many threads.
    """
    sharing = [
        sum(agent.key == other.key and overlap(agent, other) for other in agents)
        for agent in agents
    ]
    cores = [int(agent.description["cores"]) for agent in agents]
    return max(1, min(here // ranks for here, ranks in zip(cores, sharing, strict=True)))


def gpus_of(agents: Sequence[Agent]) -> dict[str, str]:
    """Return the names of all GPUs that the agents of a node see, by UUID."""
    return {
        uuid: name
        for agent in agents
        for uuid, name in zip(
            agent.description["gpu_uuids"], agent.description["gpus"], strict=True
        )
    }


def device_index(agent: Agent, local_rank: int, agents: Sequence[Agent]) -> int:
    """Return the index of a rank's GPU among the GPUs visible to its agent.

    `agents` are all agents. Agents of a node may see different GPUs, each counted from 0, as under
    `srun --gpus-per-task`.
    """
    own = gpus_of([agent])
    others = [peer for peer in agents if peer.key == agent.key and peer is not agent]
    if not own or not others or own.keys() & gpus_of(others).keys():
        return local_rank
    return [number for _, number in agent.ranks].index(local_rank)


def refuse_node(agents: Sequence[Agent], number: int, resources: Any) -> None:
    """Raise ScenarioError if a node has too little memory, too few devices, or devices of another
    type.

    `agents` start the ranks of the node. `number` is the index of the node. `resources` are the
    scenario's.
    """
    if lack := resources.lacks_memory(number, int(agents[0].description["memory_bytes"])):
        raise ScenarioError(f"node {agents[0].name} {lack}; leave the node out, or ask for less")
    refuse_devices(agents, resources, number)


def refuse_devices(agents: Sequence[Agent], resources: Any, number: int = 0) -> None:
    """Raise ScenarioError if a node has too few devices, or devices of another type.

    `agents` start the ranks of the node. `number` is the index of the node. `resources` are the
    scenario's.
    """
    node, devices = agents[0].name, resources.devices_of(number)
    names = list(gpus_of(agents).values())[:devices]
    if resources.device == "cuda" and len(names) < devices:
        raise ScenarioError(
            f"node {node} has {len(names)} of the {devices} CUDA devices that "
            "resources.devices asks for; leave the node out, or ask for fewer"
        )
    for name in names if resources.device_type else ():
        if not resources.is_device(name):
            raise ScenarioError(
                f"resources.device_type is {resources.device_type}, and a device of node "
                f"{node} is {name}; leave the node out, or set another type"
            )
