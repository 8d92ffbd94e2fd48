"""`accel-bench op`: one operation at a time, under several executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from accel_bench.cli.options import MeasureOptions, Names, takes
from accel_bench.cli.output import AnyFormat

app = typer.Typer(
    no_args_is_help=True, help="Operations, blocks and small models on their own: list, run, show."
)

Sizes = Annotated[
    Names,
    typer.Option("--size", help="A size that `op list` prints, or `all`; else the smallest."),
]
ComputeTypes = Annotated[
    Names,
    typer.Option(
        "--compute-type", metavar="TYPE", help="inference, forward or backward; else all of them."
    ),
]
Executors = Annotated[
    Names,
    typer.Option(
        "--executor",
        help="Beside eager; `all` adds those that cannot run here, with the reason. Without it, "
        "all that can.",
    ),
]
DTypes = Annotated[
    Literal["float32", "bfloat16", "float16"], typer.Option(help="Dtype of the tensors.")
]


@app.command("list")
def list_operations(
    names: Annotated[
        Names, typer.Argument(metavar="NAME", help="Benchmarks; without any, all.")
    ] = None,
    output: AnyFormat = "table",
) -> None:
    """List benchmarks with their sizes, and the executors that can run them here or why not.

    Those of other distributions are listed too: they come by the entry points `accel_bench.micro`
    and `accel_bench.executors`.
    """
    from accel_bench_op.request import print_list

    print_list(names or (), output)


@dataclass(frozen=True, kw_only=True)
class OpRunOptions(MeasureOptions):
    """Options of `op run`."""

    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Benchmarks that `op list` prints.")
    ]
    executor: Executors = None
    size: Sizes = None
    compute_type: ComputeTypes = None
    dtype: DTypes = "float32"
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds.")] = None
    calls: Annotated[
        int, typer.Option(min=1, help="Calls between two readings of the clock; backward: 1.")
    ] = 1


@app.command("run")
@takes(OpRunOptions)
def run(options: OpRunOptions) -> int:
    """Measure operations under several executors and compare each with eager.

    Each run is a fresh process, and the executors take turns. What a run computes is compared with
    eager in float64, output and gradients, and makes it `invalid` where it is wrong. Running out of
    memory is an answer, not an error.
    """
    from accel_bench_op.request import run_operations

    return run_operations(options)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A benchmark that `op list` prints.")],
    executor: Executors = None,
    size: Annotated[str | None, typer.Option(help="A size; else the smallest.")] = None,
    compute_type: Annotated[
        Literal["inference", "forward", "backward"], typer.Option(help="What is timed.")
    ] = "inference",
    dtype: DTypes = "float32",
) -> None:
    """Print the scenario file of one operation, for `run`, `gate` and changes of your own."""
    from accel_bench_op.request import print_scenario

    print_scenario(name, executor or (), size, compute_type, dtype)
