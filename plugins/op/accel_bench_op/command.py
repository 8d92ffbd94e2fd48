"""`accel-bench op`: benchmark single operations under several executors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import typer
import yaml

from accel_bench.analysis.schema import Summary
from accel_bench.analysis.summary import exit_code
from accel_bench.cli.options import MeasureOptions, Names, takes
from accel_bench.cli.output import AnyFormat, print_aside, print_report, print_text
from accel_bench.cli.request import Invocation, plan_request, run_plans
from accel_bench.documents.escaping import plain, printable
from accel_bench.machine.devices import AUTO
from accel_bench.machine.info import read_machine
from accel_bench.result import Status
from accel_bench.scenario.find import find_drafts
from accel_bench_op import scenarios
from accel_bench_op.document import operation_report
from accel_bench_op.scenarios import CellChoice, OpRegistry, cell_scenarios, read_installed
from accel_bench_op.view import list_report, operations_report

ANSWERS = (Status.OOM, Status.SKIPPED)
"""Statuses of a run that are no failures of the command."""

app = typer.Typer(help="Operations, blocks and small models on their own: list, run, show.")

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
    """List benchmarks, their sizes and executors that run here.

    Other distributions add benchmarks and executors by the entry points `accel_bench.micro` and
    `accel_bench.executors`.
    """
    machine = read_machine()
    with redirect_stdout(sys.stderr):  # what an import prints is no part of the document
        entries = scenarios.list_operations(_installed(), names or (), machine.device)
    print_report(list_report(entries), output)


@dataclass(frozen=True, kw_only=True)
class OpRunOptions(MeasureOptions):
    """Command-line options of `accel-bench op run`."""

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
    """Measure operations, and compare executors with eager.

    Each run is a fresh process, and the executors take turns. Outputs and gradients of a run are
    compared with eager in float64; a wrong value makes the run `invalid`. Running out of memory is
    a result, not an error.
    """
    invoked = Invocation(options)
    choice = CellChoice(
        names=options.names,
        executors=options.executor or (),
        sizes=options.size or (),
        compute_types=options.compute_type or (),
        dtype=options.dtype,
        calls=options.calls,
        device=invoked.machine.device if options.device in (None, AUTO) else options.device,
    )
    with redirect_stdout(sys.stderr):
        request = plan_request(options, {"measure.rounds": options.rounds})
        drafts = find_drafts(cell_scenarios(choice, _installed()))
    plans = [invoked.plan(draft, request) for draft in drafts]
    known = [[planned.experiment.scenario for planned in plan.planned] for plan in plans]

    def show(summaries: Sequence[Summary]) -> None:
        print_report(operations_report(operation_report(summaries, known)), options.output)

    return run_plans(plans, invoked, show, partial(exit_code, answers=ANSWERS))


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
    """Print the scenario file of one operation.

    It is an input of `run` and `gate`, or a start for changes.
    """
    choice = CellChoice(
        names=[name],
        executors=executor or (),
        sizes=[size] if size else (),
        compute_types=[compute_type],
        dtype=dtype,
        device=read_machine().device,
    )
    with redirect_stdout(sys.stderr):
        (scenario,) = cell_scenarios(choice, _installed())
    print_text(printable(yaml.safe_dump(scenario, sort_keys=False).rstrip()))


def _installed() -> OpRegistry:
    """Return the installed benchmarks and executors; print a warning for each unusable one."""
    registry = read_installed()
    for entry in (*registry.benchmarks.unusable, *registry.executors.unusable):
        print_aside(plain(entry.problem), "warning")
    return registry
