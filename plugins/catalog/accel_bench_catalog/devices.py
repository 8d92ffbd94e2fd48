"""`accel-bench catalog devices`: known devices, their peaks, and the lookup of a device name."""

from __future__ import annotations

from typing import Annotated

import typer

from accel_bench.cli.output import OutputFormat, print_fields, print_rows

app = typer.Typer(help="Peak FLOP/s, memory and bandwidth of devices, with their sources.")


@app.command("list")
def list_devices(output: OutputFormat = "table") -> None:
    """List the devices whose peaks are known: dense FLOP/s by dtype."""
    from accel_bench.catalog.hardware import list_hardware
    from accel_bench_catalog.view import HARDWARE

    rows = [
        {"name": name, **row.model_dump(mode="json"), **row.peak_flops.model_dump()}
        for name, row in list_hardware().items()
    ]
    print_rows(HARDWARE, rows, output)


@app.command("show")
def show_device(
    device_name: Annotated[
        str,
        typer.Argument(help="How torch or NVML names the device, or a name of `catalog devices`."),
    ],
    output: OutputFormat = "table",
) -> None:
    """Show which device a name means and what is known of it.

    Exits with 2 when it is none.
    """
    from accel_bench.catalog.hardware import named_hardware
    from accel_bench_catalog.view import PEAKS, figure_of_device

    name, hardware = named_hardware(device_name)
    document = {"name": name, **hardware.model_dump(mode="json")}
    peaks = {f"peak_flops.{key}": document["peak_flops"][key] for key in PEAKS}
    facts = {key: value for key, value in document.items() if key != "peak_flops"}
    shown = [(key, figure_of_device(key, value)) for key, value in {**facts, **peaks}.items()]
    print_fields(document, shown, output)
