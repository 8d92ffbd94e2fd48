"""Unequal nodes: ranks get the threads of the smallest, and devices of one type."""

from __future__ import annotations

import pytest
from accel_bench_cluster.node_resources import (
    cores_of,
    device_index,
    refuse_devices,
    refuse_node,
    threads_of,
)
from accel_bench_cluster.remote import Agent

from accel_bench.errors import ScenarioError
from accel_bench.scenario.settings import Resources


def agent(node: str, cores: list[int], *gpus: str, uuids: str = "abcdefgh", rank: int = 0) -> Agent:
    """Return an agent on a node, bound to some of its cores and devices."""
    facts = {"name": node, "address": "10.0.0.1", "cores": len(cores), "affinity": cores}
    facts |= {"gpus": list(gpus), "gpu_uuids": list(uuids)[: len(gpus)]}
    return Agent(None, facts, node, [(rank, rank)])


def test_ranks_that_share_cores_divide_them_and_others_do_not() -> None:
    shared = [agent("a", [0, 1, 2, 3]), agent("a", [0, 1, 2, 3])]
    bound = [agent("a", [0, 1]), agent("a", [2, 3])]
    assert threads_of(shared) == threads_of(bound) == 2
    assert cores_of(shared) == cores_of(bound) == 4
    assert cores_of([agent("a", [0, 1, 2, 3]), agent("a", [2, 3, 4, 5])]) == 6
    assert cores_of([agent("a", [0, 1]), agent("a", [1, 2]), agent("a", [2, 3])]) == 4
    unknown = agent("a", [])
    unknown.description["cores"] = 3
    assert cores_of([unknown, *bound]) == 4 and cores_of([unknown, agent("a", [0])]) == 3


def test_ranks_on_unequal_nodes_get_the_threads_of_the_smallest() -> None:
    large, small = agent("large", list(range(16))), agent("small", [0, 1, 2])
    assert threads_of([large, small]) == 3
    assert threads_of([small, small, small, small]) == 1


def test_a_node_with_other_devices_is_refused_by_name() -> None:
    asked = Resources(device="cuda", device_type="l4")
    refuse_devices([agent("a", [0], "NVIDIA L4")], asked)
    with pytest.raises(ScenarioError, match=r"device_type is l4, and a device of node b .* L40S"):
        refuse_devices([agent("b", [0], "NVIDIA L40S")], asked)
    with pytest.raises(ScenarioError, match=r"node c .* has 0 of the 1 CUDA devices"):
        refuse_devices([agent("c", [0])], asked)


def test_a_node_with_too_little_memory_is_refused_by_name() -> None:
    asked = Resources(device="cpu", nodes=2, host_memory_gib=16, first_node_host_memory_gib=64)
    node = agent("a", [0])
    node.description["memory_bytes"] = 32 << 30
    refuse_node([node], 1, asked)
    lack = r"node a .* has 32.0 GiB of host memory, and resources.first_node_host_memory_gib is 64"
    with pytest.raises(ScenarioError, match=lack):
        refuse_node([node], 0, asked)
    node.description["memory_bytes"] = 8 << 30
    with pytest.raises(ScenarioError, match=r"has 8.0 GiB .* resources.host_memory_gib is 16"):
        refuse_node([node], 1, asked)


def test_agents_that_see_one_device_each_have_those_of_the_node_together() -> None:
    asked = Resources(device="cuda", devices=2)
    own = [agent("a", [0], "L4", uuids="x"), agent("a", [1], "L4", uuids="y", rank=1)]
    refuse_devices(own, asked)
    assert [device_index(one, rank, own) for rank, one in enumerate(own)] == [0, 0]
    same = [agent("a", [0], "L4"), agent("a", [1], "L4", rank=1)]
    with pytest.raises(ScenarioError, match=r"node a .* has 1 of the 2 CUDA devices"):
        refuse_devices(same, asked)


def test_agents_that_see_all_devices_take_that_of_their_number() -> None:
    every = [agent("a", [0], "L4", "L4"), agent("a", [1], "L4", "L4", rank=1)]
    refuse_devices(every, Resources(device="cuda", devices=2))
    assert [device_index(one, rank, every) for rank, one in enumerate(every)] == [0, 1]
    without = [agent("a", [0]), agent("a", [1], rank=1)]
    assert device_index(without[1], 1, without) == 1
