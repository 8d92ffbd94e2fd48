"""What nodes need: devices by the words of their names, host memory by the number of the node."""

from __future__ import annotations

import pytest

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
