"""`accel-bench bundle`: stored sessions in one file that others can verify and repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli import options


def bundle(
    identifiers: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Sessions, or runs or experiments of them.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, such as a.zip.")
    ],
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Write all sessions to which the ids lead into one file, with checksums of all of it.

    It holds the scenario as it was resolved, versions, machines, every run with its samples, and
    the conclusion; no secrets, and no names of people, hosts and folders. `accel-bench reproduce`
    runs it again; `accel-bench site` shows a folder of them.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.documents.shown import plain
    from accel_bench.runner.bundling import bundle_sessions
    from accel_bench.runner.unfinished import open_results

    with open_results(results) as store:
        made = bundle_sessions(store, identifiers, output)
    size = output.stat().st_size
    what = f"{count(len(made.sessions), 'session')} of {made.scenario}"
    typer.echo(plain(f"{output}: {what}, {size:,} bytes, sha256 {made.sha256}"))
