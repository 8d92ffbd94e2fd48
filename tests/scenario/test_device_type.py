"""Needs of nodes: devices by the words of their names; devices and host memory of each node."""

from __future__ import annotations

from typing import Any

import pytest

from accel_bench import Scenario
from accel_bench.scenario.settings import Resources


@pytest.mark.parametrize(
    ("wanted", "name", "fits"),
    [
        (None, "NVIDIA L4", True),
        ("l4", "NVIDIA L4", True),
        ("l4", "NVIDIA L40S", False),
        ("a100", "NVIDIA A100-SXM4-80GB", True),
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("a100 80gb", "NVIDIA A100-SXM4-40GB", False),
        ("rtx 4090", "NVIDIA GeForce RTX 4090", True),
        ("A100-80G", "NVIDIA A100-SXM4-80GB", True),
        ("A100 80 GB", "NVIDIA A100 80GB PCIe", True),
        ("A100-40G", "NVIDIA A100-SXM4-80GB", False),
        ("A10G", "NVIDIA A10G", True),
        ("A10", "NVIDIA A10G", False),
        ("H200", "NVIDIA H200", True),
    ],
)
def test_a_device_is_of_a_type_by_the_words_of_its_name(
    wanted: str | None, name: str, fits: bool
) -> None:
    assert Resources(device_type=wanted).is_device(name) is fits


def test_the_first_node_may_need_other_memory_than_the_rest() -> None:
    some = Resources(host_memory_gib=16, first_node_host_memory_gib=64)
    assert [some.host_memory_of(node) for node in range(3)] == [64, 16, 16]
    assert [Resources(host_memory_gib=16).host_memory_of(node) for node in range(2)] == [16, 16]
    assert Resources().lacks_memory(0, 1) == ""
    with pytest.raises(ValueError, match="needs host_memory_gib, of the other nodes"):
        Resources(first_node_host_memory_gib=64)


def test_nodes_may_have_different_numbers_of_devices() -> None:
    some = Resources(devices_by_node=(8, 4))
    assert (some.nodes, some.devices, some.world_size) == (2, 8, 12)
    assert [some.devices_of(node) for node in range(2)] == [8, 4]
    assert Resources.model_validate(some.model_dump()) == some
    alike = Resources(nodes=2, devices=4)
    assert ([alike.devices_of(node) for node in range(2)], alike.world_size) == ([4, 4], 8)
    scenario = Scenario.model_validate({"resources": {"devices_by_node": [2, 1]}})
    assert (scenario.world_size, scenario.train.global_batch_size) == (3, 3)
    assert scenario.parallel.use == "ddp"


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ({"devices_by_node": [4, 4]}, "is for nodes that differ"),
        ({"devices_by_node": []}, "is for nodes that differ"),
        ({"devices_by_node": [8, 4], "nodes": 3}, "has 2 nodes with at most 8 devices; leave"),
        ({"devices_by_node": [8, 4], "devices": 4}, "has 2 nodes with at most 8 devices; leave"),
        ({"devices_by_node": [8, 0]}, "greater than or equal to 1"),
        ({"devices_by_node": 8}, "valid tuple"),
    ],
)
def test_devices_of_nodes_that_contradict_the_rest_are_refused(
    resources: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        Scenario.model_validate({"resources": resources})
