"""Selection of text files on this machine, and reading of their documents one at a time.

The selection depends on the files' names and sizes alone. It can therefore be hashed for the
identity of an experiment, and be read later by a worker.
"""

from __future__ import annotations

import ast
import codecs
import hashlib
import json
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accel_bench.errors import ScenarioError

SUFFIXES = (".jsonl", ".md", ".py", ".txt", ".parquet")
"""Endings of the names of files that can be read."""

WHOLE = (".arrow", ".parquet")
"""Endings of files that must be read whole, since their table of contents stands at the end."""

NOT_CODE = frozenset(
    "__pycache__ dist-packages encodings idlelib pydoc_data site-packages test tests".split()
)
"""Excluded folders of the standard library: installed packages, tests, and tables."""


@dataclass(frozen=True)
class TextFile:
    """Text file that is selected as a source of documents."""

    path: Path

    name: str
    """Path relative to the root of the source, with slashes: the same on every machine."""

    size: int
    """Number of bytes used, from the beginning; parquet files are used whole."""

    cut: bool
    """True if the file is longer than the bytes used."""


def home_path(path: str) -> Path:
    """Return a path with `~` expanded, or the same path for a user without a home folder.

    `Path.expanduser` would raise RuntimeError for such a user.
    """
    return Path(os.path.expanduser(path))


def stdlib_files(limit_bytes: int) -> list[TextFile]:
    """Return source files of the standard library, sorted by name, up to `limit_bytes` in all."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (*root.glob("*.py"), *root.glob("*/*.py"))
    return _limit(root, [path for path in paths if path.parent.name not in NOT_CODE], limit_bytes)


def path_files(root: Path, limit_bytes: int, suffixes: Sequence[str] = SUFFIXES) -> list[TextFile]:
    """Return the file `root`, or the files below the folder `root`, up to `limit_bytes` in all.

    They are sorted by name, without hidden files and folders. Returns [] if no file can be read.
    """
    if root.is_dir():
        return _limit(root, [path for path in _walk(root) if path.suffix in suffixes], limit_bytes)
    paths = [root] if root.is_file() and root.suffix in suffixes else []
    return _limit(root.parent, paths, limit_bytes)


def content_digest(files: list[TextFile]) -> str:
    """Return the SHA-256 of the names and the used content of files, in hexadecimal.

    Raises ScenarioError for a file that cannot be read.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{len(file.name)}:{file.name}:{file.size}:".encode())
        for block in _blocks(file):
            digest.update(block)
    return digest.hexdigest()


def unusable(
    path: Path,
    find: Callable[[Path], list[TextFile]] = lambda path: path_files(path, 1 << 62),
    known: str = ", ".join(SUFFIXES),
    tables: str = ".parquet",
) -> str | None:
    """Return a sentence on why nothing can be read from `path`, or None if files can be read.

    `find` returns the readable files of a path. For the sentence, `known` lists their suffixes, and
    `tables` the suffixes that need pyarrow.
    """
    if not path.exists():
        return f"data.path {str(path)!r} does not exist"
    files = find(path)
    if not files:
        return f"data.path {str(path)!r} holds nothing that can be read; known are {known}"
    if hidden := next((file for file in files if not os.access(file.path, os.R_OK)), None):
        return f"data.path: {str(hidden.path)!r} may not be read by this user"
    if any(file.path.suffix in WHOLE for file in files) and find_spec("pyarrow") is None:
        return f"reading {tables} needs pyarrow: pip install 'accel-bench[parquet]'"
    return None


def read_documents(
    files: list[TextFile],
    *,
    field: str,
    limit_bytes: int,
    functions: bool = False,
    skip_undecodable: bool = False,
) -> Iterator[str]:
    """Yield the non-blank documents of files in order, at most `limit_bytes` of UTF-8 in all.

    `field` is the JSON key or column of the text. With `functions`, the functions of a .py file are
    its documents. The document that reaches the limit is cut. Raises ScenarioError with file and
    line for bytes that are not UTF-8 (unless skipped), for invalid JSON, or for a missing field.
    """
    left = limit_bytes
    for file in files:
        texts = _documents(file, field, skip_undecodable)
        if functions and file.path.suffix == ".py":
            texts = (part for text in texts for part in _functions(text))
        for text in texts:
            raw = text.encode()
            if len(raw) >= left:
                # What is left may end within a character, whose first bytes are then dropped.
                if last := raw[:left].decode(errors="ignore"):
                    yield last
                return
            left -= len(raw)
            yield text


def _walk(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and (path := Path(folder, name)).is_file():
                yield path


def _limit(root: Path, paths: list[Path], limit_bytes: int) -> list[TextFile]:
    """Return paths as `TextFile`s, sorted by relative name, up to `limit_bytes` in all."""
    named = sorted((path.relative_to(root).as_posix(), path) for path in paths)
    files, left = [], limit_bytes
    for name, path in named:
        if left <= 0:
            break
        size = path.stat().st_size
        used = size if path.suffix in WHOLE else min(size, left)
        files.append(TextFile(path, name, used, cut=used < size))
        left -= used
    return files


def _blocks(file: TextFile) -> Iterator[bytes]:
    """Yield the used bytes of a file in blocks of at most a MiB."""
    left = file.size
    try:
        with file.path.open("rb") as handle:
            while block := handle.read(min(left, 1 << 20)):
                left -= len(block)
                yield block
    except OSError as error:
        raise ScenarioError(f"{file.path}: cannot be read: {error.strerror}") from error


def _documents(file: TextFile, field: str, skip_undecodable: bool) -> Iterator[str]:
    if file.path.suffix == ".parquet":
        texts = _parquet_documents(file, field)
    elif file.path.suffix == ".jsonl":
        texts = _json_documents(file, field)
    else:
        texts = _plain_document(file, skip_undecodable)
    return (text for text in texts if text.strip())


def _plain_document(file: TextFile, skip_undecodable: bool) -> Iterator[str]:
    try:
        yield decode(file)
    except ScenarioError:
        if not skip_undecodable:
            raise


def source_lines(source: str) -> list[str]:
    """Return the lines of a Python source, split where Python's parser splits lines."""
    # The parser ends a line at nothing else; str.splitlines does, at a form feed for one.
    return source.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _functions(source: str) -> Iterator[str]:
    """Yield the text of each function of a Python source, or all of it if it cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        yield source
    else:
        lines = source_lines(source)
        for node in functions_of(tree):
            yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


def functions_of(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the nodes of functions and methods in a syntax tree, but not of nested functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from functions_of(child)


def decode(file: TextFile) -> str:
    """Return a file's text, decoded from UTF-8; a last character cut by the limit is left out."""
    raw = b"".join(_blocks(file))
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(raw, final=not file.cut)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ScenarioError(
            f"{file.path}:{line}: not UTF-8 text (byte {error.start}); save it as UTF-8, or "
            "take it out of the folder"
        ) from error


def json_rows(file: TextFile, example: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location (`path:line`) and the object of each JSON line.

    A last line cut by the byte limit is left out. Raises ScenarioError, whose text ends with
    `example`, for a line that is no object.
    """
    lines = decode(file).split("\n")
    if file.cut:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file.path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ScenarioError(f"{where}: not a JSON object: {error}") from error
        if not isinstance(row, dict):
            raise ScenarioError(f"{where}: not a JSON object{example}")
        yield where, row


def _json_documents(file: TextFile, field: str) -> Iterator[str]:
    for where, row in json_rows(file, f'; a line looks like {{"{field}": "..."}}'):
        if field not in row:
            known = ", ".join(sorted(row)[:20]) or "none"
            raise ScenarioError(f"{where}: no key {field!r}; keys: {known}; set data.field")
        yield checked_text(row[field], field, where)


def checked_text(value: Any, field: str, where: str) -> str:
    """Return the string `value`, or an empty string for None. Raises ScenarioError for other
    values, naming `field`, the value's key, and `where`, its file and line."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ScenarioError(f"{where}: {field!r} is {type(value).__name__}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ScenarioError(f"{where}: {field!r} holds half of a surrogate pair") from error
    return value


def _parquet_documents(file: TextFile, field: str) -> Iterator[str]:
    """Yield the text in each row of the column `field`, with a thousand rows read at a time."""
    import pyarrow
    from pyarrow import parquet

    rows = 0
    try:
        with parquet.ParquetFile(file.path) as table:
            if field not in (columns := table.schema_arrow.names):
                known = ", ".join(columns[:20])
                raise ScenarioError(
                    f"{file.path}: no column {field!r}; columns: {known}; set data.field"
                )
            for batch in table.iter_batches(batch_size=1000, columns=[field]):
                for value in batch.column(0).to_pylist():
                    rows += 1
                    yield checked_text(value, field, f"{file.path}: row {rows}")
    except (pyarrow.ArrowException, OSError) as error:
        raise ScenarioError(f"{file.path}: not a readable parquet file: {error}") from error
