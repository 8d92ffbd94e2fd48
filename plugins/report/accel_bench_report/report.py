"""`accel-bench report`: stored results as a page that explains itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli.options import DEFAULT_RESULTS, Names, ResultsOption, Where, takes
from accel_bench.cli.output import print_aside

if TYPE_CHECKING:
    from accel_bench_report.commands import CommandRuns
    from accel_bench_report.page.model import Page

DEFAULT_FILE = Path("accel-bench-report.html")
"""Default file of the page."""

ANONYMIZERS = "accel_bench.anonymizers"
"""Entry-point group of the function `runs`, which anonymizes sessions, runs and texts."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Command-line options of `accel-bench report`."""

    selection: Annotated[
        Names,
        typer.Argument(
            metavar="SELECTION",
            help="Sessions, experiments, runs (their beginning will do) or scenarios; else the "
            "newest session.",
        ),
    ] = None
    where: Where = None
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Page to write; else {DEFAULT_FILE}.")
    ] = None
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Markdown for a pull request; - prints it."),
    ] = None
    with_names: Annotated[
        bool,
        typer.Option(
            "--with-names",
            help="Keep names of users and hosts, and folders; else words stand in their place.",
        ),
    ] = False
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False
    results: ResultsOption = DEFAULT_RESULTS


@takes(ReportOptions)
def report(options: ReportOptions) -> None:
    """Write a page about stored results: the answer first, then its grounds.

    The page is one file without outside requests, for the screen, light or dark, and print. With
    --markdown alone, only the Markdown is written, short enough for a comment of a pull request.

    The name of a scenario selects its newest session. Of many sessions the newest are shown in
    detail, and all in an overview.
    """
    from accel_bench.cli.output import print_text
    from accel_bench.documents.escaping import plain
    from accel_bench.report.page_file import write_markdown, write_page

    html = options.html
    if html is None and (options.markdown is None or options.open_):
        html = DEFAULT_FILE
    page = _page(options, plots=html is not None)
    if options.markdown is not None:
        from accel_bench_report.page.render_markdown import render_page_markdown

        text = render_page_markdown(page)
        if str(options.markdown) == "-":
            print_text(text, end="")
        else:
            write_markdown(options.markdown, text)
            typer.echo(plain(f"{options.markdown}: {len(text):,} characters"))
    if html is not None:
        from accel_bench_report.page.render_html import render_html

        text = render_html(page)
        write_page(html, text)
        # Markdown that goes there stays alone.
        typer.echo(
            plain(f"{html}: {len(text.encode()) / 1e6:.2f} MB"), err=str(options.markdown) == "-"
        )
        for note in page.notes:
            print_aside(plain(note))
    if options.open_ and html is not None:
        import webbrowser

        webbrowser.open(html.resolve().as_uri())


def _page(options: ReportOptions, plots: bool) -> Page:
    """Read the selected runs and return their page."""
    import sys

    from accel_bench.documents.redaction import Redactor
    from accel_bench.runner.interrupted import open_results, sessions_in_progress
    from accel_bench_report.commands import select_commands
    from accel_bench_report.page.page import page
    from accel_bench_report.page.scenario import scenario_page
    from accel_bench_report.page.stored_plan import planned_runs, stored_plan
    from accel_bench_report.tables.overview import overview

    with open_results(options.results) as store:
        in_progress = sessions_in_progress(store.folder)
        commands, lines, left_out = select_commands(store, options.selection or (), options.where)
    only = [f"only runs where {options.where}"] if options.where is not None else []
    notes = [*only, *left_out]
    made_by = Redactor.of_this_process().redact_arguments(("accel-bench", *sys.argv[1:]))
    if not options.with_names:
        commands, texts = _anonymous(commands, (*notes, *made_by))
        notes, made_by = texts[: len(notes)], texts[len(notes) :]
    scenarios = []
    for command in commands:
        record = command.session
        document = record.document if record else {}
        plan = stored_plan(document, command.results, whole=options.where is None)
        going_on = record is not None and record.id in in_progress
        scenarios.append(
            replace(
                scenario_page(command.id, plan, command.results, command.repetitions),
                arguments=record.command if record else (),
                running=(len(command.results), planned_runs(document)) if going_on else None,
            )
        )
    return page(scenarios, overview(lines), notes, made_by, plots=plots)


def _anonymous(
    commands: Sequence[CommandRuns], texts: Sequence[str]
) -> tuple[list[CommandRuns], list[str]]:
    """Return commands and texts without names of people, hosts and folders, as in a bundle.

    Both are anonymized together, so that equal names get equal replacements. Raises BundleError if
    a run is invalid after the replacement, and PluginError if no anonymizer is installed.
    """
    from accel_bench.errors import PluginError
    from accel_bench.plugins.doors import find_entries

    entry = find_entries(ANONYMIZERS, "anonymizer").get("runs")
    if entry is None:
        raise PluginError(
            "nothing installed takes the names of users, hosts and folders out; --with-names keeps "
            "them"
        )
    anonymous = entry.load()
    with entry.blamed():
        sessions, results, told = anonymous(
            [command.session for command in commands if command.session],
            [result for command in commands for result in command.results],
            texts,
        )
    left_sessions, left_results = iter(sessions), iter(results)
    changed = [
        command._replace(
            session=next(left_sessions) if command.session else None,
            results=[next(left_results) for _ in command.results],
        )
        for command in commands
    ]
    return changed, told
