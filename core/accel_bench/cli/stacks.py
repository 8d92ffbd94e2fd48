"""`accel-bench stacks`: named stacks, shipped and brought by plugins."""

from __future__ import annotations

from typing import Annotated

import typer

from accel_bench.cli.output import Format

app = typer.Typer(no_args_is_help=True, help="Named stacks that a scenario can refer to.")

COLUMNS = ("name", "plugins", "set", "description")


@app.command("list")
def list_stacks(output: Format = "table") -> None:
    """List the named stacks, with the plugins that each needs and the settings that it changes."""
    from accel_bench.cli.output import print_rows
    from accel_bench.documents.presets import find_presets
    from accel_bench.scenario.draft import read_stack

    rows = []
    for name, path in sorted(find_presets("stacks").items()):
        stack = read_stack(path)
        rows.append(
            {
                "name": name,
                "plugins": [use.use for use in stack.use],
                "set": [f"{key}={value}" for key, value in stack.set.items()],
                "description": stack.description,
            }
        )
    print_rows(COLUMNS, rows, output)


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="A name that `stacks list` prints.")]) -> None:
    """Print the file of a named stack."""
    from accel_bench.documents.presets import sample_path

    typer.echo(sample_path("stacks", name).read_text(encoding="utf8").rstrip())
