"""`accel-bench catalog devices` prints the table of peaks and says what a device's name means."""

from __future__ import annotations

import json

from cli.program import call

from accel_bench.catalog.hardware import list_hardware


def test_the_list_has_a_row_for_every_device_with_numbers_for_programs() -> None:
    rows = {
        row["name"]: row
        for row in json.loads(call("catalog", "devices", "list", "--format", "json").out)
    }
    assert set(rows) == set(list_hardware())
    assert rows["t4"]["fp16"] == 65e12
    assert rows["t4"]["bf16"] is None
    printed = call("catalog", "devices", "list").out
    assert all(f"\n{name} " in printed for name in rows)
    t4 = next(line for line in printed.splitlines() if line.startswith("t4 "))
    assert t4.split() == "t4 - 65 - - 8.1 16.0 GiB 320 2019-03".split()


def test_a_device_s_own_name_shows_what_it_is_taken_for() -> None:
    shown = json.loads(
        call("catalog", "devices", "show", "NVIDIA H100 NVL", "--format", "json").out
    )
    row = list_hardware()["h100-nvl"]
    assert shown == {"name": "h100-nvl", **row.model_dump(mode="json")}
    printed = call("catalog", "devices", "show", "NVIDIA H100 NVL").out
    assert (
        "  836 TFLOP/s\n" in printed and "  94.0 GiB\n" in printed and "  3,900 GB/s\n" in printed
    )
    assert row.source in printed


def test_a_name_that_means_no_device_exits_with_2_and_names_its_relatives() -> None:
    done = call("catalog", "devices", "show", "NVIDIA H100")
    assert done.code == 2
    assert "known: h100-nvl, h100-pcie, h100-sxm" in done.err
    assert done.out == ""


def test_another_name_of_a_device_finds_it_and_one_of_several_shows_them() -> None:
    assert (
        json.loads(call("catalog", "devices", "show", "L4", "--format", "json").out)["name"] == "l4"
    )
    assert call("catalog", "devices", "show", "a100-80gb-sxm").code == 0
    shown = json.loads(call("catalog", "devices", "show", "H100", "--format", "json").out)
    assert [row["name"] for row in shown] == ["h100-nvl", "h100-pcie", "h100-sxm"]
