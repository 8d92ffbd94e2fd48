"""`accel-bench results import`: import other programs' results, and exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli import options
from accel_bench.cli.output import print_aside, print_report
from accel_bench.interchange import format_names
from accel_bench.report.table import Report, Section, keyed

if TYPE_CHECKING:
    from accel_bench.store.database import Store
    from accel_bench_interop.reading import ImportedFile

EXPORT = "accel-bench"
"""Name of the format of accel-bench's exports."""

COLUMNS = ("file", "format", "session", "rows", "failed", "corrections")


def import_results(
    path: Annotated[Path, typer.Argument(metavar="FILE_OR_FOLDER", help="What to import.")],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"Its format; else recognized: {', '.join([EXPORT, *format_names()])}.",
            autocompletion=lambda: [EXPORT, *format_names()],
        ),
    ] = None,
    set_: Annotated[
        options.Names,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting that the files do not state."),
    ] = None,
    results: options.ResultsOption = options.DEFAULT_RESULTS,
) -> None:
    """Import results of another program, or an export of `accel-bench results export`.

    All outputs mark these results as imported or exported.

    Formats: accel-bench (an export as JSON or Parquet) and installed formats, which --format lists.

    Units and scopes are corrected; `results show` prints each correction in words. An imported row
    is in no verdict, no ranking and no cost. A file that was imported before is not stored twice,
    unless with other settings. Runs of an export get the tag `from-export`.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.cli.request import parse_overrides
    from accel_bench.documents.escaping import plain
    from accel_bench.errors import ImportFileError
    from accel_bench.runner.interrupted import open_results
    from accel_bench_interop.export_import import add_export, is_export, read_export
    from accel_bench_interop.reading import read_files

    # Everything is read before anything is stored.
    if form == EXPORT or (form is None and path.is_file() and is_export(path)):
        if set_:
            raise ImportFileError(f"--set {set_[0]}: {path} is an export, and states all settings")
        run_ids = list(dict.fromkeys(result.run_id for result in read_export(path)))
        with open_results(results, write=True) as store:
            added, there = add_export(store, path, run_ids)
        typer.echo(f"{count(added, 'run')} added, {there} there already")
        return
    files, left_out = read_files(path, form, dict(parse_overrides(set_ or (), {})))
    with open_results(results, write=True) as store:
        rows = [_store(store, file) for file in files]
    for line in left_out:
        print_aside(plain(f"left out: {line}"))
    print_report(Report([Section(tables=[keyed(COLUMNS, rows)])]), "table")


def _store(store: Store, file: ImportedFile) -> dict[str, object]:
    """Store the new runs of a file as one session; return the file's row to print, by column."""
    from accel_bench.store.sessions import SessionRecord

    runs, first, session = file.results, file.results[0], file.results[0].session
    there = set(store.present([result.run_id for result in runs]))
    record = SessionRecord(
        id=session,
        started_at=first.provenance.imported_at,
        scenario=first.experiment.scenario.name,
        document={"imported": file.format, "file": first.provenance.file},
    )
    store.add_together([record, *(run for run in runs if run.run_id not in there)])
    corrections = {text for run in runs for text in run.provenance.corrections}
    return {
        "file": str(file.path),
        "format": file.format,
        "session": f"{session} (was there)" if len(there) == len(runs) else session,
        "rows": len(runs),
        "failed": sum(not run.status.completed for run in runs),
        "corrections": len(corrections),
    }
