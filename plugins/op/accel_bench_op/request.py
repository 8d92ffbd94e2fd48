"""`accel-bench op` from its options to its tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

import yaml

from accel_bench.analysis.schema import Summary
from accel_bench.cli.output import print_report, print_text
from accel_bench.cli.request import Command, plan_request, run_plans
from accel_bench.documents.shown import plain, printable
from accel_bench.machine.devices import AUTO
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import make_plan
from accel_bench.scenario.find import find_drafts
from accel_bench_op.command import OpRunOptions
from accel_bench_op.document import exit_code_of_cells, operation_report
from accel_bench_op.scenarios import (
    CellChoice,
    Installed,
    cell_scenarios,
    list_operations,
    read_installed,
)
from accel_bench_op.view import list_report, operations_report


def print_list(names: Sequence[str], output: str) -> None:
    """Print the installed benchmarks."""
    machine = read_machine()
    with redirect_stdout(sys.stderr):  # what an import prints is no part of the document
        entries = list_operations(_installed(), names, machine.device)
    print_report(list_report(entries), output)


def run_operations(options: OpRunOptions) -> int:
    """Run the chosen cells, print them, and return the exit code."""
    machine = read_machine()
    choice = CellChoice(
        names=options.names,
        executors=options.executor or (),
        sizes=options.size or (),
        compute_types=options.compute_type or (),
        dtype=options.dtype,
        calls=options.calls,
        device=machine.device if options.device in (None, AUTO) else options.device,
    )
    with redirect_stdout(sys.stderr):
        request = plan_request(options, {"measure.rounds": options.rounds})
        drafts = find_drafts(cell_scenarios(choice, _installed()))
        plans = [make_plan(draft, machine, request) for draft in drafts]
    known = [[one.experiment.scenario for one in plan.planned] for plan in plans]

    def show(summaries: Sequence[Summary]) -> None:
        print_report(operations_report(operation_report(summaries, known)), options.output)

    return run_plans(plans, Command(options, machine, None, show, {}, exit_code_of_cells))


def print_scenario(
    name: str, executors: Sequence[str], size: str | None, compute_type: str, dtype: str
) -> None:
    """Print the scenario file of one cell."""
    choice = CellChoice(
        names=[name],
        executors=executors,
        sizes=[size] if size else (),
        compute_types=[compute_type],
        dtype=dtype,
        device=read_machine().device,
    )
    with redirect_stdout(sys.stderr):
        (scenario,) = cell_scenarios(choice, _installed())
    print_text(printable(yaml.safe_dump(scenario, sort_keys=False).rstrip()))


def _installed() -> Installed:
    """Return what is installed, with a warning on stderr for each that cannot be used."""
    found = read_installed()
    for one in found.unusable:
        print(plain(f"warning: {one.problem}"), file=sys.stderr)
    return found
