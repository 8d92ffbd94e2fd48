"""`accel-bench scenarios count`: the work of one training step, and its changes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_bench.analysis import wording
from accel_bench.cli.options import WorkOptions, takes
from accel_bench.cli.output import print_report
from accel_bench.cli.request import plan_request, single_draft
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Planned
from accel_bench.planning.resolve import resolve_request
from accel_bench.report.table import Column, Report, Section, Table, columns_of, paths, reader
from accel_bench.runner.purpose import ask_ranks, plan_stack
from accel_bench.scenario.draft import dotted
from accel_bench_profile.ledger.difference import LedgerDifference, TotalChange, difference, totals
from accel_bench_profile.ledger.line_changes import (
    FIGURES,
    PlaceChange,
    amount,
    line_of,
    signed_amount,
)
from accel_bench_profile.ledger.schema import (
    Figure,
    Ledger,
    LedgerEntry,
    RankLedger,
    Site,
    merge,
    read_ledger,
    write_ledger,
)

ROSE = 1
"""Exit code if any figure rose."""


@dataclass(frozen=True, kw_only=True)
class CountOptions(WorkOptions):
    """Command-line options of `accel-bench scenarios count`."""

    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or a shipped scenario's name.")
    ] = "quickstart"
    stack: Annotated[str | None, typer.Option(help="The stack to count; else the baseline.")] = None
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="The reference: another stack, or a file that --save wrote. Differences read REF "
            "-> counted stack; exit code 1 if anything rose.",
        ),
    ] = None
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the ledger to a JSON file.")
    ] = None


@takes(CountOptions)
def count(options: CountOptions) -> int:
    """Count what one training step does: operations, bytes, copies, synchronizations, graph breaks.

    Nothing is timed, so two runs of the same code differ by nothing, on any machine. With --against
    the difference is printed, from the reference to the stack, with the module and the source line
    of each rise.
    """
    draft, machine = single_draft(options.scenario, "count"), read_machine()
    against, reference, other = options.against, None, None
    if against is not None and Path(against).is_file():
        reference = read_ledger(Path(against))
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        # No tracker: nothing is stored.
        plugins = tuple(options.plugin or ())
        request = replace(plan_request(options, {}), plugins=plugins, trackers=())
        planned = plan_stack(draft, machine, request, options.stack)
        if against is not None and reference is None:
            stacks = resolve_request(draft, request).stacks
            if against not in stacks:
                text = f"--against {against}: neither a file nor a stack of the scenario"
                raise ScenarioError(text + did_you_mean(against, stacks))
            other = plan_stack(draft, machine, request, against)
    ledger = _count(options, planned, machine)
    if options.save is not None:
        write_ledger(options.save, ledger)
        typer.echo(f"ledger: {options.save}", err=True)
    if other is not None:
        reference = _count(options, other, machine)
    if reference is None:
        print_report(ledger_report(ledger), options.output)
        return 0
    changes = difference(reference, ledger)
    print_report(difference_report(changes), options.output)
    return ROSE if changes.closes else 0


def _count(options: CountOptions, planned: Planned, machine: Machine) -> Ledger:
    """Count the operations of an experiment's step in fresh processes, and return the counts.

    No result is stored. Raises WorkerError if a rank failed.
    """
    if sys.stderr.isatty():
        typer.echo(f"counting a step of {planned.experiment.stack.name}", err=True)
    remote = options.trust_remote_code
    with redirect_stdout(sys.stderr):
        texts = ask_ranks("count", planned, machine, trust_remote_code=remote)
    ranks = [RankLedger.model_validate_json(text) for text in texts]
    return make_ledger(planned, planned.machine(machine), ranks)


NOT_WORK = {"name", "description", "environment", "launcher", "measure", "metrics"}
"""Keys of a scenario without influence on a step's work, or with secrets."""

LEFT_OUT = (
    "segments of the allocator, workspaces of kernels and what other threads do are not counted: "
    "they are not the same in every run"
)


def make_ledger(planned: Planned, machine: Machine, ranks: list[RankLedger]) -> Ledger:
    """Return an experiment's ledger: the counts of all ranks together, settings and versions."""
    scenario = planned.experiment.scenario
    entries: list[LedgerEntry] = [entry for rank in ranks for entry in rank.entries]
    reasons = (reason for rank in ranks for reason in rank.left_out)
    plugins = {plugin.distribution: plugin.version for plugin in planned.active.versions()}
    work = scenario.model_dump(mode="json", exclude=NOT_WORK, exclude_none=True)
    return Ledger(
        scenario=scenario.name,
        stack=planned.experiment.stack.name,
        work=dict(dotted(work)),
        device=scenario.resources.device,
        ranks=len(ranks),
        versions={"python": machine.python, **machine.versions, **plugins},
        entries=merge(entries),
        left_out=tuple(dict.fromkeys((LEFT_OUT, *reasons))),
    )


NAMES: dict[Figure, str] = {figure: figure.replace("_", " ") for figure in FIGURES}
MOST_OPERATIONS = 4
"""Maximum number of operations named in a line."""

MOST_LINES = 12
"""Maximum number of printed lines."""

WIDTH = 120
"""Default width of the output in characters, for wrapping code lines."""


def ledger_report(ledger: Ledger) -> Report:
    """Return the report of a step's counts: sums, counts by kind; JSON and CSV have every entry."""
    counts = totals(ledger)
    sums = [(figure, counts[figure, "", ""]) for figure in FIGURES]
    kinds = Counter({key[1:]: number for key, number in counts.items() if key[1]})
    ranks = "one rank" if ledger.ranks == 1 else f"{ledger.ranks} ranks together"
    section = Section(
        title=f"{ledger.scenario}: {ledger.stack}",
        tables=[
            Table(SUMS, sums, title=f"one step of {ranks}"),
            Table(KINDS, kinds.most_common(), title="operations by kind"),
        ],
        notes=ledger.left_out,
    )
    return Report([section], ledger, Table(ENTRIES, ledger.entries))


def difference_report(found: LedgerDifference) -> Report:
    """Return the report on two steps' counts: which rose, at which source lines, and which fell."""
    left = len(found.places) - MOST_LINES
    more = (
        (f"and {wording.count(left, 'line')} more: --format json has them all",) if left > 0 else ()
    )
    tables = [
        Table(CHANGES, found.rose, title="what rose"),
        Table(PLACES, found.places[:MOST_LINES], title="where", notes=more),
        Table(CHANGES, found.fell, title="what fell"),
    ]
    before, after = found.before.stack, found.after.stack
    section = Section(
        title=f"{found.after.scenario}: {before} (reference) -> {after} (counted)",
        headline=found.answer,
        tables=[table for table in tables if table.rows],
        notes=(*(shift.sentence for shift in found.shifts), *found.notes),
    )
    return Report([section], found, Table(FLAT, [*found.rose, *found.fell]), WIDTH)


def _change_name(change: TotalChange) -> str:
    return " ".join(filter(None, (NAMES[change.figure], change.kind, change.dtype)))


def _figures(place: PlaceChange) -> tuple[str, ...]:
    return tuple(
        signed_amount(figure, number)
        + ("" if figure == "flops" else f" {NAMES[figure].removesuffix(' bytes')}")
        for figure, number in place.figures.items()
    )


SUMS = (
    Column("figure", lambda row: NAMES[row[0]], kind="name"),
    Column("step", lambda row: amount(*row), "in a step", kind="number"),
)
KINDS = (
    Column("kind", lambda row: " ".join(filter(None, row[0])), kind="name"),
    Column("operations", lambda row: row[1], form="{:,}".format, kind="number"),
)
CHANGES = (
    Column("figure", _change_name, kind="name"),
    Column("before", lambda row: amount(row.figure, row.before), kind="number"),
    Column("after", lambda row: amount(row.figure, row.after), kind="number"),
    Column("difference", lambda row: signed_amount(row.figure, row.change), kind="number"),
)
PLACES = (
    Column("line", line_of, kind="word"),
    Column("module", lambda row: ", ".join(filter(None, row.modules)) or None),
    Column("code", reader("code")),
    Column("operations", lambda row: wording.join_names(row.operations, MOST_OPERATIONS)),
    Column("difference", _figures, form=lambda parts: parts),
)

FLAT = (
    *paths("", "figure kind dtype before after"),
    Column("difference", reader("change")),
)
"""CSV columns of a difference between ledgers."""


def _figure(figure: Figure) -> Callable[[LedgerEntry], Any]:
    return lambda entry: entry.figures.get(figure, 0)


ENTRIES = (
    *columns_of(Site, "site"),
    *columns_of(LedgerEntry, names="operation kind dtype"),
    *(Column(figure, _figure(figure)) for figure in FIGURES),
)
"""CSV columns of a ledger."""
