"""`accel-bench bundle`: write, list, show and verify bundles of stored sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accel_bench.analysis.wording import count
from accel_bench.cli import options
from accel_bench.cli.output import OutputFormat, print_aside, print_fields, print_rows, print_text
from accel_bench.documents.escaping import plain
from accel_bench.errors import BundleError
from accel_bench.report.table import paths
from accel_bench.runner.interrupted import open_results
from accel_bench_share.bundle_reader import read_bundle
from accel_bench_share.bundle_writer import bundle_sessions
from accel_bench_share.site import bundle_files, write_site

app = typer.Typer(help="Sessions in one verified file to share.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `bundle new` wrote.")]


@app.command("list")
def list_bundles(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Else this folder.")] = Path(),
    output: OutputFormat = "table",
) -> None:
    """List the bundles in a folder and below it.

    Each bundle is verified whole. A changed bundle is refused, and the reason is printed.
    """
    rows = []
    for path in bundle_files(folder):
        try:
            bundle = read_bundle(path)
        except BundleError as error:
            print_aside(plain(str(error)))
            continue
        rows.append({"file": str(path), **bundle.manifest.model_dump(mode="json")})
    print_rows(paths("", "file scenario baseline started_at sessions"), rows, output)


@app.command("show")
def show_bundle(file: File, output: OutputFormat = "table") -> None:
    """Verify a bundle, and show its contents and conclusion."""
    bundle = read_bundle(file)
    document = {**bundle.manifest.model_dump(mode="json"), "conclusion": bundle.conclusion}
    short = {key: value for key, value in document.items() if key not in ("members", "conclusion")}
    print_fields(document, [(key, _text(value)) for key, value in short.items()], output)
    if output == "table":
        print_text(f"\n{plain(bundle.conclusion)}")


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@app.command("check")
def check_bundles(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Bundles.")],
) -> None:
    """Verify the checksums of bundles, and run nothing.

    Exits with 1 if a bundle was changed.
    """
    refused = 0
    for file in files:
        try:
            typer.echo(plain(f"{file}: ok, sha256 {read_bundle(file).manifest.sha256}"))
        except BundleError as error:
            refused += 1
            print_aside(plain(str(error)))
    raise typer.Exit(1 if refused else 0)


@app.command("new")
def new_bundle(
    identifiers: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Sessions, or runs or experiments of them.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, such as a.zip.")
    ],
    results: options.ResultsOption = options.DEFAULT_RESULTS,
) -> None:
    """Write all sessions to which ids lead into one file.

    The file holds the scenario as it was resolved, versions, machines, every run with its samples,
    and the conclusion, with checksums of all of it. It holds no secrets, and no names of people,
    hosts and folders. `accel-bench reproduce` runs it again; `bundle site` shows a folder of them.
    """
    with open_results(results) as store:
        made = bundle_sessions(store, identifiers, output)
    size = output.stat().st_size
    what = f"{count(len(made.sessions), 'session')} of {made.scenario}"
    typer.echo(plain(f"{output}: {what}, {size:,} bytes, sha256 {made.sha256}"))


@app.command("site")
def write_site_of_bundles(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with bundles.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page; else FOLDER/index.html."),
    ] = None,
) -> None:
    """Write one page of all bundles in a folder.

    The page shows the results of their runs, computed anew, to filter and print, and how often each
    result was repeated by another bundle. Changed bundles are refused, and listed with the reason.

    The page needs no server and no network. Exits with 1 if a file was refused.
    """
    page = output or folder / "index.html"
    bundles, refused = write_site(folder, page)
    for name, reason in refused:
        print_aside(plain(f"{name}: {reason}"))
    typer.echo(plain(f"{page}: {count(bundles, 'bundle')}, {len(refused)} refused"))
    raise typer.Exit(1 if refused else 0)
