"""The table of peaks knows real devices by their real names, and no look-alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bench.catalog import hardware
from accel_bench.catalog.hardware import (
    Hardware,
    devices_called,
    find_hardware,
    list_hardware,
    named_hardware,
    peak_flops,
)
from accel_bench.errors import HardwareError

REAL = {
    "Tesla V100-PCIE-16GB": ("v100-pcie-16gb", 112e12),
    "Tesla V100-PCIE-32GB": ("v100-pcie-32gb", 112e12),
    "Tesla V100-SXM2-16GB": ("v100-sxm-16gb", 125e12),
    "Tesla V100-SXM2-32GB": ("v100-sxm-32gb", 125e12),
    "Tesla T4": ("t4", 65e12),
    "NVIDIA A10": ("a10", 125e12),
    "NVIDIA A10G": ("a10g", 70e12),
    "A100-PCIE-40GB": ("a100-pcie-40gb", 312e12),
    "NVIDIA A100-PCIE-40GB": ("a100-pcie-40gb", 312e12),
    "A100-SXM4-40GB": ("a100-sxm-40gb", 312e12),
    "NVIDIA A100-SXM4-40GB": ("a100-sxm-40gb", 312e12),
    "NVIDIA A100 80GB PCIe": ("a100-pcie-80gb", 312e12),
    "NVIDIA A100-SXM4-80GB": ("a100-sxm-80gb", 312e12),
    "A100-SXM-80GB": ("a100-sxm-80gb", 312e12),
    "NVIDIA RTX A6000": ("rtx-a6000", 154.8e12),
    "RTX A6000": ("rtx-a6000", 154.8e12),
    "NVIDIA RTX 6000 Ada Generation": ("rtx-6000-ada", 364.2e12),
    "NVIDIA L4": ("l4", 121e12),
    "NVIDIA L40": ("l40", 181.05e12),
    "NVIDIA L40S": ("l40s", 362.05e12),
    "NVIDIA GeForce RTX 3090": ("rtx-3090", 71e12),
    "GeForce RTX 3090": ("rtx-3090", 71e12),
    "NVIDIA GeForce RTX 4090": ("rtx-4090", 165.2e12),
    "NVIDIA GeForce RTX 5090": ("rtx-5090", 209.5e12),
    "NVIDIA H100 PCIe": ("h100-pcie", 756.5e12),
    "NVIDIA H100 80GB HBM3": ("h100-sxm", 989.4e12),
    "NVIDIA H100 NVL": ("h100-nvl", 835.5e12),
    "NVIDIA H200": ("h200-sxm", 989.5e12),
    "NVIDIA H200 NVL": ("h200-nvl", 835.5e12),
    "NVIDIA B200": ("b200", 2250e12),
    "NVIDIA GB200": ("gb200", 2500e12),
    "NVIDIA GH200 480GB": ("gh200-96gb", 989.5e12),
    "NVIDIA GH200 120GB": ("gh200-96gb", 989.5e12),
    "NVIDIA GH200 144G HBM3e": ("gh200-144gb", 989.5e12),
    "AMD Instinct MI250": ("mi250", 181.05e12),
    "AMD Instinct MI250X": ("mi250x", 191.5e12),
    "AMD Instinct MI300X": ("mi300x", 1307.4e12),
    "AMD Instinct MI300X VF": ("mi300x", 1307.4e12),
    "AMD Instinct MI300X OAM": ("mi300x", 1307.4e12),
    "AMD Instinct MI325X": ("mi325x", 1307.4e12),
}
"""Names that torch or NVML were seen to give: the device, and its dense fp16 peak in FLOP/s."""

LOOK_ALIKES = [
    "NVIDIA H100",  # which of three?
    "H100",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    "NVIDIA A100-SXM-64GB",  # more multiprocessors than any A100 on sale
    "NVIDIA A100",
    "NVIDIA A100X",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA H800",
    "NVIDIA H20",
    "NVIDIA H100 64GB HBM2",
    "NVIDIA GH200",
    "GRID A100D-80C",
    "NVIDIA A10-24Q",
    "NVIDIA A10M",
    "NVIDIA T4G",
    "NVIDIA T400",
    "Tesla V100S-PCIE-32GB",
    "Tesla V100-SXM3-32GB",
    "Tesla V100-SXM2-32GB-LS",
    "Quadro RTX 6000",
    "NVIDIA RTX 6000",
    "Quadro RTX A6000",
    "NVIDIA RTX A6000 Laptop GPU",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA L40G",
    "NVIDIA L4000",
    "NVIDIA B200 NVL",
    "NVIDIA B300",
    "NVIDIA GB300",
    "AMD Instinct MI250X / MI250",  # one name for two products
    "AMD Instinct MI250X/MI250",
    "AMD Instinct MI300A",
    "AMD Instinct MI308X",
    "AMD Radeon Graphics",
    "Intel(R) Xeon(R) Platinum 8480+",
    "cpu",
    "",
]
"""Names that resemble a row and are another device, a part of one, or several."""


@pytest.mark.parametrize("name", REAL)
def test_a_real_name_means_its_device_and_dense_peak(name: str) -> None:
    found = find_hardware(name)
    assert found is not None
    assert (found.name, peak_flops(name, "float16")) == REAL[name]


def test_at_least_25_real_names_are_told_apart_and_every_device_has_one() -> None:
    assert len(REAL) >= 25
    assert {short for short, _ in REAL.values()} == set(list_hardware())


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_has_no_peak(name: str) -> None:
    assert find_hardware(name) is None
    assert peak_flops(name, "bfloat16") is None


def test_case_and_spaces_of_a_name_say_nothing() -> None:
    assert find_hardware("  nvidia  h100 PCIE ") == find_hardware("NVIDIA H100 PCIe")


def test_a_name_that_fits_two_devices_fits_none(monkeypatch: pytest.MonkeyPatch) -> None:
    table = list_hardware()
    twice = {**table, "copy": table["l4"]}
    monkeypatch.setattr(hardware, "list_hardware", lambda: twice)
    assert find_hardware("NVIDIA L4") is None
    with pytest.raises(HardwareError, match="several devices: copy, l4"):
        named_hardware("NVIDIA L4")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bfloat16", 989.4e12),
        ("torch.bfloat16", 989.4e12),
        ("bf16", 989.4e12),
        ("float8_e4m3fn", 1978.9e12),
        ("tf32", 494.7e12),
        ("float32", 66.9e12),
        ("float64", None),
        ("int8", None),
        ("", None),
    ],
)
def test_a_dtype_is_torch_s_or_the_table_s_and_others_have_no_peak(
    dtype: str, expected: float | None
) -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3", dtype) == expected


@pytest.mark.parametrize("precision", ["high", "medium"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", 156e12),
        ("Tesla T4", 8.1e12),  # has no tf32, so torch multiplies in fp32
        ("AMD Instinct MI300X", 163.4e12),  # torch does not round there
    ],
)
def test_float32_is_rounded_to_tf32_where_torch_may_and_the_device_can(
    name: str, precision: str, expected: float
) -> None:
    assert peak_flops(name, "float32", precision) == expected
    assert peak_flops("NVIDIA A100-SXM4-40GB", "float32", "highest") == 19.5e12
    assert peak_flops("NVIDIA A100-SXM4-40GB", "bfloat16", precision) == 312e12


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Tesla V100-SXM2-16GB", "bfloat16"),
        ("Tesla V100-SXM2-16GB", "tf32"),
        ("Tesla T4", "bfloat16"),
        ("NVIDIA A100-SXM4-80GB", "float8_e4m3fn"),
        ("NVIDIA GeForce RTX 3090", "float8_e5m2"),
        ("AMD Instinct MI250X", "float8_e4m3fnuz"),
    ],
)
def test_a_dtype_that_the_device_lacks_has_no_peak(name: str, dtype: str) -> None:
    assert peak_flops(name, dtype) is None


@pytest.mark.parametrize("name", sorted(list_hardware()))
def test_the_peaks_of_a_row_are_in_the_order_that_hardware_has(name: str) -> None:
    """A figure with sparsity or of a pair of devices among dense ones would break it."""
    device = list_hardware()[name]
    peak = device.peak_flops
    assert peak.fp16 is not None
    assert peak.fp32 is not None
    assert peak.fp32 < peak.fp16
    if peak.bf16 is not None:
        assert peak.bf16 == peak.fp16
    if peak.tf32 is not None:
        # Figures of data sheets are rounded.
        assert peak.fp16 / peak.tf32 == pytest.approx(2, rel=0.02)
        assert peak.fp32 <= peak.tf32
    if peak.fp8 is not None:
        assert peak.fp8 / peak.fp16 == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("name", sorted(list_hardware()))
def test_memory_is_plausible_and_consumer_cards_say_how_they_accumulate(name: str) -> None:
    device = list_hardware()[name]
    assert 16 <= device.memory_bytes / 2**30 <= 256
    assert device.peak_flops.fp16 is not None
    operations_per_byte = device.peak_flops.fp16 / device.memory_bandwidth_bytes_per_second
    assert 70 < operations_per_byte < 500
    assert ("fp32 accumulation" in device.note) == ("GeForce" in device.description)


def test_a_short_name_is_known_too_and_an_unknown_one_gets_a_way_out() -> None:
    assert named_hardware("h100-sxm") == named_hardware("NVIDIA H100 80GB HBM3")
    with pytest.raises(HardwareError, match=r"MFU are unknown.*h100-sxm"):
        named_hardware("NVIDIA H100")


def test_a_name_that_is_no_regular_expression_is_refused() -> None:
    data = list_hardware()["l4"].model_dump()
    with pytest.raises(ValueError, match="no regular expression"):
        Hardware.model_validate({**data, "names": ("nvidia (l4",)})


def test_a_broken_file_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new.yaml"
    path.write_text("description: A new one.\nvendor: acme\n")
    monkeypatch.setattr(hardware, "find_presets", lambda kind: {"new": path})
    with pytest.raises(HardwareError, match=r"new\.yaml:2:\d+: vendor"):
        list_hardware.__wrapped__()


@pytest.mark.parametrize(
    ("written", "devices"),
    [
        ("H100", ["h100-nvl", "h100-pcie", "h100-sxm"]),
        ("h100 nvl", ["h100-nvl"]),
        ("A100-80G", ["a100-pcie-80gb", "a100-sxm-80gb"]),
        ("a100 80gb", ["a100-pcie-80gb", "a100-sxm-80gb"]),
        ("A100-40G", ["a100-pcie-40gb", "a100-sxm-40gb"]),
        ("gh200", ["gh200-144gb", "gh200-96gb"]),
        ("rtx 4090", ["rtx-4090"]),
        ("A100", ["a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm-40gb", "a100-sxm-80gb"]),
        ("A10", ["a10"]),
        ("mi250x", ["mi250x"]),
    ],
)
def test_a_name_as_people_write_it_means_a_device_or_its_family(
    written: str, devices: list[str]
) -> None:
    assert [*devices_called(written)] == devices
