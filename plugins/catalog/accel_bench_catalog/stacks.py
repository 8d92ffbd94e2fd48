"""`accel-bench catalog stacks`: named stacks of accel-bench and of plugins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_bench.cli.output import OutputFormat, print_report
from accel_bench.documents.escaping import printable
from accel_bench.errors import install_package

app = typer.Typer(help="Named stacks that a scenario can refer to.")


@app.command("list")
def list_stacks(output: OutputFormat = "table") -> None:
    """List named stacks: what each uses and sets.

    Also what is not installed.
    """
    from accel_bench.documents.presets import find_presets
    from accel_bench.report.table import Report, Section, Table, listed
    from accel_bench.report.views.plugins import NOT_INSTALLED
    from accel_bench_catalog.view import STACKS

    here = [_row(name, path) for name, path in sorted(find_presets("stacks").items())]
    names = {row["name"] for row in here}
    absent = [row for row in _rows_of_extras() if row["name"] not in names]
    sections = [Section(tables=[Table(STACKS, here)])]
    if absent:
        extras: dict[str, list[str]] = {}
        for row in absent:
            extras.setdefault(row["extra"], []).append(row["name"])
        found = [(install_package(extra), ", ".join(names)) for extra, names in extras.items()]
        table = listed(("package", "stacks"), found)
        sections.append(Section(title=NOT_INSTALLED, tables=[table]))
    print_report(Report(sections, [*here, *absent]), output)


def _row(name: str, path: Path) -> dict[str, Any]:
    """Return the table row of a named stack, read from its file."""
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
    """Return rows of the named stacks of all extras, installed or not."""
    from accel_bench.plugins.shipped import extras

    for plugin, facts in extras().items():
        for name in facts.stacks:
            row = {"name": name, "plugins": [plugin], "set": [], "description": facts.does}
            yield {**row, "extra": facts.extra, "installed": False}


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="A name that `catalog stacks` prints.")]) -> None:
    """Print the file of a named stack."""
    from accel_bench.documents.presets import preset_path

    typer.echo(printable(preset_path("stacks", name).read_text(encoding="utf8").rstrip()))
