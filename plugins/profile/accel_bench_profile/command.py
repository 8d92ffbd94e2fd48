"""`accel-bench profile`: where the time of a step goes, recorded after the measured window."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from accel_bench.cli.options import Names, PlanOptions, takes


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(PlanOptions):
    """Options of `profile`."""

    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or a shipped scenario's name.")
    ] = "quickstart"
    stack: Annotated[
        Names, typer.Option(help="Profile only this stack; else all of the scenario.")
    ] = None
    against: Annotated[
        str | None,
        typer.Option(
            metavar="STACK|FILE",
            help="Say where the time goes from --stack (else the baseline) to this stack, or to "
            "that of another scenario's file.",
        ),
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds; else 1, or with --against the scenario's."),
    ] = None
    skip: Annotated[
        int, typer.Option(min=0, help="Steps that are left alone before the first cycle.")
    ] = 0
    wait: Annotated[
        int, typer.Option(min=0, help="Steps that are left alone at the start of a cycle.")
    ] = 0
    warmup: Annotated[
        int, typer.Option(min=0, help="Steps of a cycle in which the profiler runs, unrecorded.")
    ] = 1
    active: Annotated[int, typer.Option(min=1, help="Steps of a cycle that are recorded.")] = 3
    repeat: Annotated[int, typer.Option(min=1, help="Cycles, each with a trace of its own.")] = 1
    top: Annotated[
        int,
        typer.Option(min=1, help="Kernels to show by time and by count; with --against modules."),
    ] = 10
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Keep the shapes of inputs in the trace.")
    ] = False
    python_stack: Annotated[
        bool,
        typer.Option("--python-stack", help="Keep Python's calls in the trace; slows every step."),
    ] = False
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Record what memory is used for, and what each module keeps for the backward.",
        ),
    ] = False
    nsys: Annotated[
        bool,
        typer.Option("--nsys", help="Print the command by which Nsight Systems records this."),
    ] = False
    nvtx: Annotated[
        bool,
        typer.Option("--nvtx", help="Mark steps for Nsight, in the place of torch's profiler."),
    ] = False


@takes(ProfileOptions)
def profile(options: ProfileOptions) -> int:
    """Record a few steps with torch's profiler, and say what to look at first.

    The steps come after the measured window, which stays as it is and is stored as that of `run`:
    no recorded second is in any metric. Each rank leaves its figures and its traces, which
    TensorBoard and Perfetto open, in the folder of its run.

    With --against, two stacks run in interleaved rounds: the difference of their steps is divided
    by kind of operation and by module, and the modules that gained and that lost are named. With a
    file they are the baselines of two scenarios, or what --stack names: `NAME` is that of both,
    `NAME,OTHER` that of SCENARIO and that of FILE.
    """
    from accel_bench_profile.request import print_nsys, run_profile

    return print_nsys(sys.argv) if options.nsys else run_profile(options)
