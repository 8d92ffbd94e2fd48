"""`accel-bench plugins`: commands that list plugins, show one plugin, and check plugins."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from accel_bench.cli.output import OutputFormat, print_json, print_report, print_rows
from accel_bench.documents.escaping import plain

app = typer.Typer(help="Plugins: what they do and need, and which are installed.")


@app.command("list")
def list_plugins(output: OutputFormat = "table") -> None:
    """List what each plugin does and needs, and which are not installed."""
    from accel_bench.plugins.registry import overview
    from accel_bench_catalog.plugin_view import plugins_report

    print_report(plugins_report(overview()), output)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A name that `accel-bench plugins` prints.")],
    output: OutputFormat = "table",
) -> None:
    """Show hooks, options and constraints of a plugin. Imports the plugin, under a time limit."""
    from accel_bench_catalog.plugin_facts import describe
    from accel_bench_catalog.plugin_view import plugin_report

    print_report(plugin_report(describe(name)), output)


@app.command("check")
def check(
    name: Annotated[
        str | None, typer.Argument(help="A name that `accel-bench plugins` prints; else all.")
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="List what of this scenario would be skipped here."),
    ] = None,
    output: OutputFormat = "table",
) -> None:
    """Check which plugins can be used here.

    Imports them, and proves that they fit the hooks; --scenario lists what of one would be skipped.
    A plugin that is named and cannot be used ends with exit code 2; a scenario of which nothing can
    run, with 3.
    """
    from accel_bench_catalog.plugin_facts import check as check_plugin
    from accel_bench_catalog.plugin_facts import check_all

    if scenario is not None:
        from accel_bench.cli.dry_run import print_skipped

        print_skipped(scenario, name, output)
        return
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        checks = check_all() if name is None else [check_plugin(name)]
    if name is None:
        from accel_bench_catalog.plugin_view import CHECKED

        print_rows(CHECKED, checks, output)
        return
    (result,) = checks
    if output == "json":
        print_json(result)
    else:
        typer.echo(plain(f"{name}: {'ok' if result['usable'] else '; '.join(result['reasons'])}"))
    if not result["usable"]:
        raise typer.Exit(2)
