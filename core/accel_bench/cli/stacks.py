"""`accel-bench stacks`: named stacks, shipped and brought by plugins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_bench.cli.output import Format

app = typer.Typer(no_args_is_help=True, help="Named stacks that a scenario can refer to.")


@app.command("list")
def list_stacks(output: Format = "table") -> None:
    """List the named stacks: what each is, what it uses and sets, and what is not installed."""
    from accel_bench.cli.output import print_json, print_table
    from accel_bench.documents.presets import find_presets

    found = [_row(name, path) for name, path in sorted(find_presets("stacks").items())]
    absent = [row for row in _rows_of_extras() if row["name"] not in {one["name"] for one in found}]
    if output == "json":
        print_json([*found, *absent])
        return
    rows = [(row["name"], row["description"], _uses(row)) for row in found]
    print_table(("name", "description", "uses"), rows)
    if absent:
        by_extra: dict[str, list[str]] = {}
        for row in absent:
            by_extra.setdefault(row["extra"], []).append(row["name"])
        typer.echo("\nNot installed; pip install 'accel-bench[EXTRA]' brings:")
        print_table(("extra", "stacks"), [(key, ", ".join(by_extra[key])) for key in by_extra])


def _row(name: str, path: Path) -> dict[str, Any]:
    """Describe a named stack by its file."""
    from accel_bench.plugins.registry import installed
    from accel_bench.plugins.shipped import extras
    from accel_bench.scenario.draft import read_stack

    stack = read_stack(path)
    plugins = [use.use for use in stack.use]
    return {
        "name": name,
        "plugins": plugins,
        "set": [f"{key}={value}" for key, value in stack.set.items()],
        "description": stack.description,
        "extra": next((extras()[plugin].extra for plugin in plugins if plugin in extras()), ""),
        "installed": set(plugins) <= {plugin.name for plugin in installed()},
    }


def _rows_of_extras() -> Iterator[dict[str, Any]]:
    """Describe the named stacks of all extras; those that are not installed have no file."""
    from accel_bench.plugins.shipped import extras

    for plugin, facts in extras().items():
        for name in facts.stacks:
            row = {"name": name, "plugins": [plugin], "set": [], "description": facts.does}
            yield {**row, "extra": facts.extra, "installed": False}


def _uses(row: dict[str, Any]) -> list[str]:
    """Format what a stack uses and sets, and how to install what is missing."""
    missing = f"pip install 'accel-bench[{row['extra']}]'" if row["extra"] else "not installed"
    return [*row["plugins"], *row["set"], *([] if row["installed"] else [missing])]


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="A name that `stacks list` prints.")]) -> None:
    """Print the file of a named stack."""
    from accel_bench.documents.presets import preset_path

    typer.echo(preset_path("stacks", name).read_text(encoding="utf8").rstrip())
