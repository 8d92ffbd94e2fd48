"""`accel-bench reproduce`: run a bundle's scenario again, and compare the results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import MeasureOptions, takes
from accel_bench.cli.output import as_events, print_aside, print_report
from accel_bench.cli.request import Invocation, parse_overrides, plan_request, print_failures
from accel_bench.documents.escaping import plain
from accel_bench.errors import NothingToRunError
from accel_bench.machine.info import Machine
from accel_bench.machine.provenance import distribution_version
from accel_bench.planning.plan import Plan
from accel_bench.report.formats import render_report
from accel_bench.report.table import Report
from accel_bench.runner.interrupted import open_results
from accel_bench_share.bundle_reader import Bundle, read_bundle
from accel_bench_share.permissions import draft_of, evaluated, repeats, request_of
from accel_bench_share.reproduction import (
    differences,
    differences_section,
    facts,
    facts_of,
    judge_bundle,
    plugins_of,
    reproduction_report,
)


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(MeasureOptions):
    """Command-line options of `accel-bench reproduce`."""

    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of `accel-bench bundle new`.")
    ]
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds; else as many as the bundle has.")
    ] = None


@takes(ReproduceOptions)
def reproduce(options: ReproduceOptions) -> int:
    """Verify a bundle, say what differs here, run its scenario again, and compare both.

    A ratio is reproduced if it is within 5 % of the bundle's, or on the same side of 1 with no sure
    difference. Absolute speeds are compared on the same device model alone, without a verdict.

    A bundle chooses no files, environments, variables, launcher and code of this machine, and no
    other machine to contact. To allow them, use --set, --allow-env or --trust-remote-code.

    Exits with 0 reproduced, 1 a stack failed, 4 not reproduced, 5 inconclusive.
    """
    bundle = read_bundle(options.file)
    evaluated(bundle)
    here = Invocation(options)
    _print_differences(bundle, here.machine)
    asked = plan_request(
        options,
        {"measure.rounds": options.rounds},
        build_environments=not options.dry_run,
        notify=print_aside,
    )
    draft = draft_of(bundle, [key for key, _ in parse_overrides(options.set_ or [], {})])
    request = request_of(bundle, asked)
    with here.allocated([draft], request) as invoked:
        plan = invoked.plan(draft, request)
        if options.dry_run:
            invoked.show([plan])
        if not plan.runnable:
            raise NothingToRunError(plan.nothing)
        return 0 if options.dry_run else _run(plan, bundle, options, invoked)


def _print_differences(bundle: Bundle, machine: Machine) -> None:
    """Print the bundle's name and checksums, and how this machine differs from the bundle's."""
    made = bundle.manifest
    print_aside(plain(f"{bundle.file}: {made.scenario} of {made.started_at}"))
    print_aside(f"verified, sha256 {made.sha256}, identity {bundle.identity}")
    there = facts_of(bundle.results)
    if there is None:
        print_aside("the bundle does not say on which machine it was measured")
        return
    here = [
        plugin.model_copy(update={"version": distribution_version(plugin.distribution)})
        for plugin in plugins_of(bundle.results)
    ]
    differing = differences(there, facts(machine, here))
    report = Report([differences_section(differing)])
    table = render_report(report, "table").rstrip("\n")
    if as_events.get():
        print_aside(table)
    else:
        typer.echo(table, err=True)


def _run(plan: Plan, bundle: Bundle, options: ReproduceOptions, invoked: Invocation) -> int:
    """Run the plan, print the bundle's and the new results side by side; return the exit code."""
    with open_results(options.results, write=True) as store:
        known = store.sessions() if options.resume else []
        before = [
            record.id for record in known if record.document.get("repeats") == bundle.identity
        ]
        with invoked.sessions(store) as new_session:
            session = new_session(
                continues=before,
                resume=False,  # the bundle's own runs may be in this store too
                repeats=repeats(bundle),
                repeated_sessions=bundle.manifest.sessions,
            )
            try:
                session.run_plan(plan)
            finally:
                results = session.results(plan)
                there, here = bundle.results, plan.summarize(results)
                sha256 = bundle.manifest.sha256
                document = judge_bundle(bundle.file, sha256, there, here, results)
        print_report(reproduction_report(document), options.output)
        if options.output == "table":
            print_failures(store, [session])
    return document.exit_code
