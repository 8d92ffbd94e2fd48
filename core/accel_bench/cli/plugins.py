"""`accel-bench plugins`: what is installed, and what one plugin offers and needs."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from accel_bench.cli.output import Format

app = typer.Typer(help="Plugins that are installed here.", invoke_without_command=True)

COLUMNS = ("name", "distribution", "version", "usable", "unmet", "duplicates")

CHECK_COLUMNS = ("name", "distribution", "version", "usable", "reasons")

Name = Annotated[str, typer.Argument(help="A name that `accel-bench plugins` prints.")]


@app.callback()
def list_plugins(context: typer.Context, output: Format = "table") -> None:
    """List the installed plugins from metadata alone; nothing of theirs is imported."""
    if context.invoked_subcommand is None:
        print_installed(output)


def print_installed(output: str) -> None:
    """Print what metadata say of the installed plugins."""
    from accel_bench.cli.output import print_rows
    from accel_bench.plugins.registry import duplicates, installed

    doubled = duplicates()
    rows = [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "usable": not plugin.unmet and plugin.name not in doubled,
            "unmet": list(plugin.unmet),
            "duplicates": [d for d in doubled.get(plugin.name, ()) if d != plugin.distribution],
        }
        for plugin in installed()
    ]
    print_rows(COLUMNS, rows, output)


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
        from accel_bench.cli.skipped import print_skipped

        print_skipped(scenario, name, output)
    elif name is None:
        _check_all(output)
    else:
        _check_one(name, output)


def _check_one(name: str, output: str) -> None:
    """Check the plugin that was asked for; exit 2 with the reason when it cannot be used."""
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
    """Check every installed plugin; nobody has asked for one that cannot be used."""
    from accel_bench.cli.output import print_rows
    from accel_bench.plugins.describe import check_all

    with redirect_stdout(sys.stderr):
        rows = check_all()
    print_rows(CHECK_COLUMNS, rows, output)


def _text(value: Any) -> str:
    """A value as a person writes it."""
    if value is None:
        return "any"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _default(value: Any) -> str:
    """A cell of the options: a default is written as in a scenario file."""
    return "null" if value is None else _text(value)
