"""`accel-bench plugins`: what is installed, and what one plugin offers and needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from accel_bench.cli.output import Format

app = typer.Typer(help="Plugins that are installed here.", invoke_without_command=True)

COLUMNS = ("name", "distribution", "version", "unmet", "duplicates")

Name = Annotated[str, typer.Argument(help="A name that `accel-bench plugins` prints.")]


@app.callback()
def list_plugins(context: typer.Context, output: Format = "table") -> None:
    """List the installed plugins from metadata alone; nothing of theirs is imported."""
    if context.invoked_subcommand is None:
        print_installed(output)


def print_installed(output: str) -> None:
    """Print what metadata say of the installed plugins."""
    from accel_bench.cli.output import print_rows
    from accel_bench.installed import duplicates, installed

    doubled = duplicates()
    rows = [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
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
    from accel_bench.plugin_description import describe

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
def check(name: Name, output: Format = "table") -> None:
    """Import a plugin and prove that it fits the hooks; exit 2 with the reason when it does not."""
    from accel_bench.cli.output import print_json
    from accel_bench.plugin_description import check as check_plugin

    found = check_plugin(name)
    if output == "json":
        print_json(found)
    else:
        typer.echo(f"{name}: ok" if found["usable"] else f"{name}: {'; '.join(found['reasons'])}")
    if not found["usable"]:
        raise typer.Exit(2)


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
