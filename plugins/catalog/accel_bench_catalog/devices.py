"""`accel-bench catalog devices`: list known devices and their peaks, and look up a device name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli.output import OutputFormat, print_fields, print_rows

if TYPE_CHECKING:
    from accel_bench.catalog.hardware import Hardware

app = typer.Typer(help="Peak FLOP/s, memory and bandwidth of devices, with their sources.")


@app.command("list")
def list_devices(output: OutputFormat = "table") -> None:
    """List the devices whose peaks are known: dense FLOP/s by dtype."""
    from accel_bench.catalog.hardware import list_hardware

    _print_devices(list_hardware(), output)


@app.command("show")
def show_device(
    device_name: Annotated[
        str,
        typer.Argument(
            help="How torch, NVML or people name it, such as A100-80G; or of `catalog devices`."
        ),
    ],
    output: OutputFormat = "table",
) -> None:
    """Show the devices that a name means, and their known figures.

    A name of several devices, such as H100, shows a row of each. Exits with 2 for an unknown name.
    """
    from accel_bench.catalog.hardware import devices_called
    from accel_bench_catalog.view import PEAKS, figure_of_device

    devices = devices_called(device_name)
    if len(devices) > 1:
        _print_devices(devices, output)
        return
    name, hardware = devices.popitem()
    document = {"name": name, **hardware.model_dump(mode="json")}
    peaks = {f"peak_flops.{key}": document["peak_flops"][key] for key in PEAKS}
    facts = {key: value for key, value in document.items() if key != "peak_flops"}
    shown = [(key, figure_of_device(key, value)) for key, value in {**facts, **peaks}.items()]
    print_fields(document, shown, output)


def _print_devices(devices: Mapping[str, Hardware], output: OutputFormat) -> None:
    from accel_bench_catalog.view import HARDWARE

    rows = [
        {"name": name, **row.model_dump(mode="json"), **row.peak_flops.model_dump()}
        for name, row in devices.items()
    ]
    print_rows(HARDWARE, rows, output)
