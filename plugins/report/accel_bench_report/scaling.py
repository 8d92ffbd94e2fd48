"""`accel-bench scaling`: how the stacks of a scenario scale over devices and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli.options import MeasureOptions, Names, takes


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(MeasureOptions):
    """Options of `scaling`."""

    scenario: Annotated[str, typer.Argument(help="A scenario file, or a shipped scenario's name.")]
    devices: Annotated[
        str | None, typer.Option(metavar="1,2,4", help="Devices on each node, in turn.")
    ] = None
    nodes: Annotated[str | None, typer.Option(metavar="1,2", help="Nodes, in turn.")] = None
    strong: Annotated[
        bool,
        typer.Option("--strong", help="Keep the global batch; else each device keeps its batch."),
    ] = False
    project: Annotated[
        str | None,
        typer.Option(metavar="8,64", help="Estimate the speed at these numbers of devices."),
    ] = None
    only: Annotated[Names, typer.Option(help="Run only this stack, beside the baseline.")] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds.")] = None


@takes(ScalingOptions)
def scaling(options: ScalingOptions) -> int:
    """Measure a scenario on more and more devices: speed-up, efficiency and elapsed time.

    Weak scaling keeps each device's batch, --strong the global one. Without --devices and --nodes
    the scenario sweeps `resources.devices` or `resources.nodes` itself. All numbers of devices are
    measured in each round, so that they are pairs. With --resume what is stored is shown again.
    """
    from accel_bench_report.scaling_request import run_scaling

    return run_scaling(options)
