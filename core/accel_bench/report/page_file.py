"""HTML pages: templates that escape all text, inline style and script, and writing of the files.

A page may replace an older page of accel-bench, and no other file.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from accel_bench.documents.files import naming_the_file, write_atomically
from accel_bench.errors import AccelBenchError
from accel_bench.store.sqlite import FILE_NAME

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HTML_MARK = b'<meta name="generator" content="accel-bench '
MARKDOWN_MARK = b"<!-- generator: accel-bench -->\n"

BEGINNING_BYTES = 4096
"""Number of bytes at a file's start that are searched for the mark of accel-bench's pages."""


def html_environment(folder: Path, shown: Callable[[str], str]) -> Environment:
    """Return the Jinja environment of a folder's templates, which escapes all inserted text.
    Before that, `shown` replaces a text by one without the control or invisible characters that
    foreign names may have."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Markup is a text too, and stays as it is.
        finalize=lambda value: shown(value) if type(value) is str else value,
    )


def inline_files(style: Path, script: Path) -> dict[str, Markup | str]:
    """Return the files' texts (`style`, `script`) and hashes (`style_hash`, `script_hash`)."""
    from markupsafe import Markup

    files = {"style": style.read_text("utf8"), "script": script.read_text("utf8")}
    texts = {name: Markup(text) for name, text in files.items()}
    return {**texts, **{f"{name}_hash": _policy_source(text) for name, text in files.items()}}


def _policy_source(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_page(path: Path, text: str) -> None:
    """Write an HTML page with accel-bench's mark, as a new file or over a page with that mark.

    Raises AccelBenchError if another file has this path.
    """
    _check(path, HTML_MARK)
    write_atomically(path, text)


def write_markdown(path: Path, text: str) -> None:
    """Write Markdown with accel-bench's mark, as a new file or over a file with that mark."""
    _check(path, MARKDOWN_MARK)
    write_atomically(path, MARKDOWN_MARK.decode() + text)


def _check(path: Path, mark: bytes) -> None:
    """Raise AccelBenchError if `path` names a database, or an existing file without `mark`."""
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
