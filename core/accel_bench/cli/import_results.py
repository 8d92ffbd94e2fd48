"""`accel-bench import`: results of other programs, stored as imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli import options
from accel_bench.cli.output import print_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accel_bench.interchange.formats import ImportedFile
    from accel_bench.result import Result
    from accel_bench.store.database import Store

COLUMNS = ("file", "format", "session", "rows", "failed", "corrections")


def import_results(
    path: Annotated[Path, typer.Argument(metavar="FILE_OR_FOLDER", help="What to import.")],
    form: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Its format; else recognized.")
    ] = None,
    set_: Annotated[
        options.Names,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting that the files do not state."),
    ] = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Import results of another program; they are marked as imported wherever they are shown.

    Formats: fms-csv (fms-acceleration), ipfs-json, mllog (MLPerf), optimum-benchmark,
    pytest-benchmark, trainer-results and trainer-state (Hugging Face Trainer).

    Units and scopes are corrected; `results show` prints each correction in words. An imported row
    is in no verdict, no ranking and no cost. A file that was imported before is not stored twice.
    """
    from datetime import datetime, timezone

    from accel_bench.cli.request import parse_overrides
    from accel_bench.documents.shown import plain
    from accel_bench.interchange.formats import read_files
    from accel_bench.runner.unfinished import open_results

    files, left_out = read_files(path, form, dict(parse_overrides(set_ or (), {})))
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    # Everything is read before anything is stored.
    imports = [(file, _results(file, now)) for file in files]
    with open_results(results, write=True) as store:
        there = {session.id for session in store.sessions()}
        rows = [_store(store, there, file, found) for file, found in imports]
    for line in left_out:
        typer.echo(plain(f"left out: {line}"), err=True)
    print_rows(COLUMNS, rows, "table")


def _results(file: ImportedFile, now: str) -> list[Result]:
    """Return the rows of a file as results of a session that is named by its content."""
    from accel_bench.interchange.rows import to_results

    session = f"import-{file.format}-{file.source.sha256[:12]}"
    return to_results(file.rows, file.source, file.format, session, now)


def _store(
    store: Store, there: set[str], file: ImportedFile, found: Sequence[Result]
) -> dict[str, object]:
    """Store a file's rows as one session, unless it is there; return what to print."""
    from accel_bench.store.records import SessionRecord

    first, session = found[0], found[0].session
    known = session in there
    if not known:
        there.add(session)
        record = SessionRecord(
            id=session,
            started_at=first.provenance.imported_at,
            scenario=first.experiment.scenario.name,
            document={"imported": file.format, "file": first.provenance.file},
        )
        store.add_session(record)
        for result in found:
            store.add(result)
    corrections = {text for one in found for text in one.provenance.corrections}
    return {
        "file": str(file.source.path),
        "format": file.format,
        "session": f"{session} (was there)" if known else session,
        "rows": len(found),
        "failed": sum(not one.status.completed for one in found),
        "corrections": len(corrections),
    }
