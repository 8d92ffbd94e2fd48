"""`accel-bench plugins`: what each plugin does and needs, and what one offers in detail."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from accel_bench.cli.output import Format

app = typer.Typer(
    help="Plugins: what they do and need, and which are installed.", invoke_without_command=True
)

CHECK_COLUMNS = ("name", "distribution", "version", "usable", "reasons")

Name = Annotated[str, typer.Argument(help="A name that `accel-bench plugins` prints.")]


@app.callback()
def list_plugins(context: typer.Context, output: Format = "table") -> None:
    """List what each plugin does and needs, and which shipped ones are not installed."""
    if context.invoked_subcommand is None:
        print_installed(output)


def print_installed(output: str) -> None:
    """Print what data files and metadata say of the plugins that are installed or shipped."""
    from accel_bench.cli.output import print_json, print_table
    from accel_bench.plugins.registry import overview

    rows = overview()
    if output == "json":
        print_json(rows)
        return
    here = [row for row in rows if row["installed"]]
    print_table(
        ("name", "does", "needs"), [[row["name"], _does(row), row["needs"]] for row in here]
    )
    for row in here:
        if not row["usable"]:
            reasons = [*row["unmet"], *(f"{one} brings one too" for one in row["duplicates"])]
            label = f"{row['name']} ({row['distribution']} {row['version']})"
            typer.echo(f"cannot be used: {label}: {'; '.join(reasons)}")
    absent = [row for row in rows if not row["installed"]]
    if absent:
        typer.echo("\nNot installed; pip install 'accel-bench[EXTRA]' brings:")
        columns = ("name", "extra", "does", "needs")
        print_table(columns, [[row[column] for column in columns] for row in absent])


def _does(row: dict[str, Any]) -> str:
    """Name the distribution of a plugin that is not ours."""
    from accel_bench.plugins.compatibility import OWN_DISTRIBUTION

    ours = row["extra"] or row["distribution"] == OWN_DISTRIBUTION
    return f"{'' if ours else row['distribution'] + ': '}{row['does']}"


@app.command("list", hidden=True)
def list_again(output: Format = "table") -> None:
    """The same as `accel-bench plugins`."""
    print_installed(output)


@app.command("show")
def show(name: Name, output: Format = "table") -> None:
    """Show a plugin's hooks, options and constraints. Imports it, under an alarm."""
    from accel_bench.cli.output import print_json, print_table
    from accel_bench.plugins.describe import describe

    described = describe(name)
    if output == "json":
        print_json(described)
        return
    options = described.pop("options")
    print_table(("key", "value"), [(key, _text(value)) for key, value in described.items()])
    typer.echo("\nOptions:" if options else "\nNo options.")
    if options:
        columns = ("name", "type", "default", "description")
        print_table(
            columns, [[_default(option[column]) for column in columns] for option in options]
        )


@app.command("check")
def check(
    name: Annotated[
        str | None, typer.Argument(help="A name that `accel-bench plugins` prints; else all.")
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Say what of this scenario would be skipped here."),
    ] = None,
    output: Format = "table",
) -> None:
    """Say whether plugins can be used here, and what of a scenario would be skipped.

    Imports them, and proves that they fit the hooks. A plugin that is named and cannot be used ends
    with exit code 2; a scenario of which nothing can run, with 3.
    """
    if scenario is not None:
        from accel_bench.cli.dry_run import print_skipped

        print_skipped(scenario, name, output)
    elif name is None:
        _check_all(output)
    else:
        _check_one(name, output)


def _check_one(name: str, output: str) -> None:
    """Check one plugin; exit 2 with the reason when it cannot be used."""
    from accel_bench.cli.output import print_json
    from accel_bench.plugins.describe import check as check_plugin

    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the document
        found = check_plugin(name)
    if output == "json":
        print_json(found)
    else:
        typer.echo(f"{name}: ok" if found["usable"] else f"{name}: {'; '.join(found['reasons'])}")
    if not found["usable"]:
        raise typer.Exit(2)


def _check_all(output: str) -> None:
    """Check every installed plugin; exit 0 whatever is found, since none was named."""
    from accel_bench.cli.output import print_rows
    from accel_bench.plugins.describe import check_all

    with redirect_stdout(sys.stderr):
        rows = check_all()
    print_rows(CHECK_COLUMNS, rows, output)


def _text(value: Any) -> str:
    """Format a value for people."""
    if value is None:
        return "any"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _default(value: Any) -> str:
    """Format a default as it is written in a scenario file."""
    return "null" if value is None else _text(value)
