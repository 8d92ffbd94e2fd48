"""`accel-bench site`: a static page of a folder of bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.output import print_aside


def site(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with bundles.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page; else FOLDER/index.html."),
    ] = None,
) -> None:
    """Write one page of all bundles in a folder, such as a git repository, to filter and print.

    It shows what their runs say, computed anew, and how often each result was repeated by another
    bundle. Bundles that were changed are refused, and listed with the reason.

    The page needs no server and no network. Exits with 1 where a file was refused.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.documents.shown import plain
    from accel_bench.runner.site import write_site

    page = output or folder / "index.html"
    made = write_site(folder, page)
    for name, reason in made.refused:
        print_aside(plain(f"{name}: {reason}"))
    typer.echo(plain(f"{page}: {count(made.bundles, 'bundle')}, {len(made.refused)} refused"))
    raise typer.Exit(1 if made.refused else 0)
