"""`resources.device_type`: devices by the words of their names."""

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
    ],
)
def test_a_device_is_of_a_type_by_the_words_of_its_name(
    wanted: str | None, name: str, fits: bool
) -> None:
    assert Resources(device_type=wanted).is_device(name) is fits
