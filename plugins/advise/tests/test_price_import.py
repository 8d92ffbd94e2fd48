"""A catalog is read row by row, and errors name the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from accel_bench_advise.price_import import MAXIMUM_CATALOG_BYTES, Origin, read_catalog
from accel_bench_advise.price_table import Price

from accel_bench.errors import PriceError

HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,"
    "Region,AvailabilityZone"
)
GPU_INFO = "\"{'Gpus': [{'Name': 'A10G', 'Count': 1.0}], 'TotalGpuMemoryInMiB': 24576}\""
ORIGIN = Origin("aws", "a catalog", "2026-03-04")


def write(folder: Path, *lines: str, header: str = HEADER) -> Path:
    """Write a catalog with the given rows."""
    path = folder / "aws.csv"
    path.write_text("\n".join((header, *lines)) + "\n", encoding="utf8")
    return path


def a10g(region: str = "us-east-1", zone: str = "a", usd: str = "1.006", spot: str = "0.4") -> str:
    """A catalog row with one device."""
    return f"g5.xlarge,A10G,1.0,4.0,16.0,{GPU_INFO},{usd},{spot},{region},{region}{zone}"


def read(path: Path) -> tuple[list[Price], dict[str, int]]:
    """Read all rows of a catalog."""
    return read_catalog(path, ORIGIN)


def test_a_row_becomes_a_price_with_source_date_and_region(tmp_path: Path) -> None:
    (price,) = read(write(tmp_path, a10g()))[0]
    assert price.model_dump() == {
        "provider": "aws",
        "instance": "g5.xlarge",
        "region": "us-east-1",
        "device": "A10G",
        "devices": 1,
        "usd_per_hour": 1.006,
        "spot_usd_per_hour": 0.4,
        "source": "a catalog",
        "date": "2026-03-04",
    }


def test_the_columns_may_stand_in_any_order_and_only_some_are_needed(tmp_path: Path) -> None:
    header = "Region,Price,AcceleratorCount,AcceleratorName,InstanceType"
    (price,) = read(write(tmp_path, "x,2,8,H100,big", header=header))[0]
    assert (price.instance, price.devices, price.usd_per_hour) == ("big", 8, 2.0)
    assert price.spot_usd_per_hour is None


def test_zones_of_a_region_become_one_row_with_the_dearest_price(tmp_path: Path) -> None:
    rows = [a10g(zone="a", spot="0.3"), a10g(zone="b", usd="1.2", spot=""), a10g("eu-west-1")]
    found = {price.region: price for price in read(write(tmp_path, *rows))[0]}
    assert found["us-east-1"].usd_per_hour == 1.2
    assert found["us-east-1"].spot_usd_per_hour == 0.3
    assert found["eu-west-1"].usd_per_hour == 1.006


def test_rows_that_are_no_machine_with_accelerators_are_counted(tmp_path: Path) -> None:
    found, left_out = read(
        write(
            tmp_path,
            "m5.large,,,2.0,8.0,,0.096,0.03,us-east-1,a",
            ",T4,1.0,,,,0.35,0.1,us-central1,a",
            "NV6ads,A10,0.1667,6.0,55.0,,0.454,0.1,eastus,",
            "p4d.24xlarge,A100,8.0,96.0,1152.0,,,9.8,us-east-1,a",
            a10g(),
        )
    )
    assert len(found) == 1
    assert left_out == {
        "no accelerator": 1,
        "no instance": 1,
        "a part of an accelerator": 1,
        "no price on demand": 1,
    }


def test_regions_and_instances_can_be_chosen(tmp_path: Path) -> None:
    big = a10g("eu-west-1").replace("g5.xlarge", "g5.big")
    path = write(tmp_path, a10g(), a10g("eu-west-1"), big)
    assert len(read(path)[0]) == 3
    assert len(read_catalog(path, ORIGIN, regions=["eu-west-1"])[0]) == 2
    (one,) = read_catalog(path, ORIGIN, ["eu-west-1"], ["g5.big"])[0]
    assert one.instance == "g5.big"


@pytest.mark.parametrize("number", ["free", "nan", "inf", "-1", "0", "1e9", "1,5", "0x10", "1_0"])
def test_a_bad_number_is_refused_with_file_and_line(number: str, tmp_path: Path) -> None:
    path = write(tmp_path, a10g(), a10g(usd=f'"{number}"', zone="b"))
    with pytest.raises(PriceError, match=rf"aws\.csv:3: Price is '{number}', no positive number"):
        read(path)


def test_a_bad_count_and_a_bad_spot_price_are_refused_too(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r":2: AcceleratorCount is 'many'"):
        read(write(tmp_path, a10g().replace(",1.0,", ",many,", 1)))
    with pytest.raises(PriceError, match=r":2: SpotPrice is '-3'"):
        read(write(tmp_path, a10g(spot="-3")))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("InstanceType,Price,Region", "lacks AcceleratorName, AcceleratorCount"),
        (HEADER.replace("SpotPrice", "Price"), "has Price twice"),
        ("", "names nothing"),
        ("<html><body>404", "lacks"),
    ],
)
def test_other_columns_are_refused_with_what_is_needed(
    header: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(PriceError, match=words) as caught:
        read(write(tmp_path, a10g(), header=header))
    assert "aws.csv:1:" in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_bytes(b"")
    with pytest.raises(PriceError, match="names nothing"):
        read(path)


def test_a_row_with_too_few_cells_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r":3: 3 cells, while the header names 10 columns"):
        read(write(tmp_path, a10g(), "g5.xlarge,A10G,1"))


def test_an_instance_with_two_kinds_of_devices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r":3: g5\.xlarge has 1 x L4 here and 1 x A10G above"):
        read(write(tmp_path, a10g(), a10g(zone="b").replace("A10G,1.0", "L4,1.0", 1)))


@pytest.mark.parametrize("name", ["x" * 101, "a\x1b[31mb", "a\u202eb"])
def test_a_name_that_cannot_be_printed_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=":2: InstanceType is"):
        read(write(tmp_path, a10g().replace("g5.xlarge", name)))


def test_a_file_that_is_no_csv_no_text_too_large_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r"aws\.csv:\d+: no CSV"):
        read(write(tmp_path, 'g5.xlarge,"A10G'))
    path = tmp_path / "other.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PriceError, match="not UTF-8"):
        read(path)
    with path.open("wb") as file:
        file.truncate(MAXIMUM_CATALOG_BYTES + 1)
    with pytest.raises(PriceError, match="larger than"):
        read(path)
    with pytest.raises(PriceError, match="cannot be read"):
        read(tmp_path / "nothing.csv")
    with pytest.raises(PriceError, match="cannot be read"):
        read(tmp_path)
