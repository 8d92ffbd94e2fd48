"""Writing of pages, which may replace older pages of accel-bench and no other file."""

from __future__ import annotations

from pathlib import Path

from accel_bench.documents.files import naming_the_file, write_atomically
from accel_bench.errors import AccelBenchError
from accel_bench.store.sqlite import FILE_NAME

HTML_MARK = b'<meta name="generator" content="accel-bench '
MARKDOWN_MARK = b"<!-- generator: accel-bench -->\n"

BEGINNING_BYTES = 4096
"""Number of bytes at a file's start that are searched for the mark of our pages."""


def write_page(path: Path, text: str) -> None:
    """Write an HTML page with our mark over nothing, or over an older page with that mark.

    Raises AccelBenchError for any other file.
    """
    _check(path, HTML_MARK)
    write_atomically(path, text)


def write_markdown(path: Path, text: str) -> None:
    """Write Markdown after the mark, a comment, with the checks of `write_page`."""
    _check(path, MARKDOWN_MARK)
    write_atomically(path, MARKDOWN_MARK.decode() + text)


def _check(path: Path, mark: bytes) -> None:
    """Raise AccelBenchError for a file that may not be replaced: a foreign one, or a database."""
    if path.name.startswith(FILE_NAME):  # SQLite has files beside it, such as its journal
        raise AccelBenchError(f"{path} is the name of a database of results; name another file")
    with naming_the_file(path):
        if not (path.exists() or path.is_symlink()):
            return
        if path.is_file():
            with path.open("rb") as file:
                if mark in file.read(BEGINNING_BYTES):
                    return
    raise AccelBenchError(
        f"{path} is there already, and is no page of accel-bench; it is left as it is. Name "
        "another file, or remove it"
    )
