"""`accel-bench catalog stacks`: list and show the named stacks of accel-bench and of plugins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_bench.cli.output import OutputFormat, print_report
from accel_bench.documents.escaping import printable
from accel_bench.errors import install_package

app = typer.Typer(help="Named stacks that a scenario can refer to.")


@app.command("list")
def list_stacks(output: OutputFormat = "table") -> None:
    """List named stacks: what each uses, sets and needs.

    Also what is not installed.
    """
    from accel_bench.documents.presets import find_presets
    from accel_bench.report.table import Report, Section, Table, listed
    from accel_bench_catalog.plugin_view import NOT_INSTALLED
    from accel_bench_catalog.view import STACKS

    here = [_row(name, path) for name, path in sorted(find_presets("stacks").items())]
    names = {row["name"] for row in here}
    absent = [row for row in _rows_of_extras() if row["name"] not in names]
    sections = [Section(tables=[Table(STACKS, here)])]
    if absent:
        extras: dict[tuple[str, ...], list[str]] = {}
        for row in absent:
            *needs, _ = row["needs"]
            extras.setdefault((row["extra"], *needs), []).append(row["name"])
        rows = [
            (install_package(extra), ", ".join(names), needs)
            for (extra, *needs), names in extras.items()
        ]
        table = listed(("package", "stacks", "needs"), rows)
        sections.append(Section(title=NOT_INSTALLED, tables=[table]))
    print_report(Report(sections, [*here, *absent]), output)


def _row(name: str, path: Path) -> dict[str, Any]:
    """Return the JSON row of a named stack, read from its file at `path`."""
    from accel_bench.analysis.wording import settings
    from accel_bench.plugins.registry import installed
    from accel_bench.plugins.shipped import extras
    from accel_bench.scenario.draft import read_stack

    stack = read_stack(path)
    plugins = [use.use for use in stack.use]
    options = [f"({settings(use.options)})" if use.options else "" for use in stack.use]
    return {
        "name": name,
        "plugins": plugins,
        "uses": [f"{plugin}{says}" for plugin, says in zip(plugins, options, strict=True)],
        "set": [f"{key}={value}" for key, value in stack.set.items()],
        "needs": _needs(plugins),
        "description": stack.description,
        "extra": next((extras()[plugin].extra for plugin in plugins if plugin in extras()), ""),
        "installed": set(plugins) <= {plugin.name for plugin in installed()},
    }


def _needs(plugins: Iterable[str], import_others: bool = False) -> list[str]:
    """Return a phrase for each thing that plugins need: an adapter, a dtype, a device, an extra.

    A plugin that accel-bench does not ship is imported if `import_others`, and else skipped.
    """
    from accel_bench.plugins.manager import load_class
    from accel_bench.plugins.shipped import ShippedPlugin, shipped

    needs: list[str] = []
    for plugin in plugins:
        if known := shipped().get(plugin):
            needs += [*known.needs, *([f"extra {known.extra}"] if known.extra else [])]
        elif import_others:
            kind = load_class(plugin)
            dtypes, devices = (tuple(sorted(names or ())) for names in (kind.dtypes, kind.devices))
            needs += ShippedPlugin(
                does=plugin, adapter=kind.needs_adapter, dtypes=dtypes, devices=devices
            ).needs
    return list(dict.fromkeys(needs))


def _rows_of_extras() -> Iterator[dict[str, Any]]:
    """Yield a JSON row for each named stack of an extra of accel-bench, as if not installed."""
    from accel_bench.plugins.shipped import extras

    for plugin, facts in extras().items():
        for name in facts.stacks:
            row = {"name": name, "plugins": [plugin], "uses": [plugin], "set": []}
            says = {"needs": _needs([plugin]), "description": facts.does, "extra": facts.extra}
            yield {**row, **says, "installed": False}


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="A name that `catalog stacks` prints.")]) -> None:
    """Print the file of a named stack, and a comment on what it needs."""
    from accel_bench.documents.presets import preset_path
    from accel_bench.errors import PluginError
    from accel_bench.scenario.draft import read_stack

    path = preset_path("stacks", name)
    typer.echo(printable(path.read_text(encoding="utf8").rstrip()))
    plugins = [use.use for use in read_stack(path).use]
    try:
        needs = _needs(plugins, import_others=True)
    except PluginError as error:
        needs = [*_needs(plugins), f"another plugin ({error})"]
    if needs:
        typer.echo(printable(f"# needs: {'; '.join(needs)}"))
