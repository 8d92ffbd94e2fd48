"""`accel-bench plugins new`: write a plugin to go on from."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(help="What users will write after `use:`.")] = "",
    hooks: Annotated[
        list[str] | None,
        typer.Option(
            "--hook",
            metavar="HOOK",
            help="A hook to implement; again for more. `list` lists them.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where to make accel-bench-NAME."),
    ] = Path(),
) -> None:
    """Write a plugin's distribution that works as it stands, with tests that pass.

    Without --hook it accelerates nothing yet: it counts modules in accelerate_model.
    """
    from accel_bench.errors import PluginError
    from accel_bench_new_plugin.write import writable_hooks, write_plugin

    if "list" in (hooks or ()):
        for hook, summary in writable_hooks().items():
            typer.echo(fill(f"{hook}: {summary}", width=79, subsequent_indent="    "))
        return
    if not name:
        raise PluginError("name the plugin: accel-bench plugins new NAME")
    written, chosen = write_plugin(name, hooks or (), output)
    typer.echo(f"written: {written} with the hooks {', '.join(chosen)}")
    typer.echo(f"next: pip install -e '{written}[test]' and pytest {written}; README.md goes on")
