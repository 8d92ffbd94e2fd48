"""Reader of rows with several fields: JSON lines, Parquet, and folders saved by `datasets`.

Files are selected by names and sizes alone, as those of plain text are, so that they can be hashed
for the identity of an experiment. Only the standard library is imported before a table is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.modeling.data.text_sources import (
    TextFile,
    checked_text,
    json_rows,
    path_files,
    unusable,
)

SUFFIXES = (".jsonl", ".parquet")
"""Suffixes of files with rows."""

SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Marker files of folders saved by `Dataset.save_to_disk` and by `DatasetDict.save_to_disk`."""

ROWS_AT_ONCE = 1000
"""Maximum number of a table's rows in memory at a time."""

Row: TypeAlias = tuple[str, Mapping[str, Any]]
"""Row of a data file: its place (file and line), and its fields by name."""

Message: TypeAlias = dict[str, Any]
"""Message for chat templates, with `role`, `content`, and further fields."""

SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
"""Roles in chat templates by ShareGPT's speakers, the values of `from`."""


def row_files(root: Path, split: str, limit_bytes: int) -> list[TextFile]:
    """Return the files with rows below the folder `root`, or the file `root`, up to `limit_bytes`.

    They are sorted by name. In a folder saved by `datasets`, they are all files of `split`. Raises
    ScenarioError for an unknown split.
    """
    saved = _saved_folder(root, split)
    if saved is None:
        return path_files(root, limit_bytes, SUFFIXES)
    return [
        TextFile(saved / name, name, (saved / name).stat().st_size, cut=False)
        for name in _saved_files(saved)
    ]


def unusable_rows(root: Path, split: str) -> str | None:
    """Return the reason in a sentence why `root` has no readable rows, or None if it has some."""
    known = f"{', '.join(SUFFIXES)} and what `save_to_disk` of datasets has written"
    return unusable(root, lambda path: row_files(path, split, 1 << 62), known, "tables")


def read_rows(files: Sequence[TextFile], fields: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of files in order; fields other than `fields` may be left out of a row.

    Raises ScenarioError with file and line for an unreadable row.
    """
    for file in files:
        yield from json_rows(file) if file.path.suffix == ".jsonl" else _table_rows(file, fields)


def with_all_parts(rows: Iterator[Row], parts: Sequence[str]) -> Iterator[Row]:
    """Yield rows with null for a missing field of `parts`, if the row has another one of them.

    A field that none of the first rows has stays missing, since its name may be misspelt.
    """
    first = list(islice(rows, ROWS_AT_ONCE)) if len(parts) > 1 else []
    known = {part for _, fields in first for part in parts if part in fields}
    for where, fields in chain(first, rows):
        missing = known - fields.keys()
        is_whole = not missing or missing == known
        yield where, fields if is_whole else {**dict.fromkeys(missing), **fields}


def value_of(row: Row, field: str, option: str) -> Any:
    """Return the value of a row's field; a dictionary of lists becomes a list of messages.

    Such a dictionary has, for example, a list of all roles and a list of all contents. Raises
    ScenarioError for a missing field; the error names `option`, the key of the field's name.
    """
    where, fields = row
    if field not in fields:
        hint = did_you_mean(field, fields) or "; it has none"
        raise ScenarioError(f"{where}: no field {field!r}{hint}; set {option}")
    value = fields[field]
    in_columns = isinstance(value, dict) and ("role" in value or "from" in value)
    return _messages(value) if in_columns else value


def text_of(row: Row, field: str, option: str) -> str:
    """Return a field's text, empty for null. Raises ScenarioError for other types, and for a
    missing field; the error names `option`, the key that sets the field's name."""
    return checked_text(value_of(row, field, option), field, row[0])


def messages_of(row: Row, field: str, option: str) -> list[Message]:
    """Return a field's messages, with ShareGPT's keys renamed for chat templates.

    Raises ScenarioError unless the field is a list of messages; if the field is missing, the error
    names `option`, the key that sets the field's name.
    """
    value = value_of(row, field, option)
    if not isinstance(value, list):
        raise ScenarioError(
            f"{row[0]}: {field!r} is {type(value).__name__}, expected a list of messages"
        )
    return [
        _message(message, f"{row[0]}: {field!r}: message {number}")
        for number, message in enumerate(value, start=1)
    ]


def _message(given: Any, where: str) -> Message:
    # Tables have every key in every message, null where it was not given.
    pairs = given.items() if isinstance(given, dict) else ()
    said = {key: value for key, value in pairs if value is not None}
    if "role" not in said and isinstance(said.get("from"), str):
        said = _from_sharegpt(said, where)
    if not isinstance(said.get("role"), str):
        raise ScenarioError(
            f'{where} has no `role`; one looks like {{"role": "user", "content": "..."}} or '
            '{"from": "human", "value": "..."}'
        )
    return said


def _from_sharegpt(said: Message, where: str) -> Message:
    speaker, text = said["from"], said.get("value")
    if speaker not in SHAREGPT_ROLES:
        raise ScenarioError(f"{where} is from {speaker!r}{did_you_mean(speaker, SHAREGPT_ROLES)}")
    if not isinstance(text, str):
        raise ScenarioError(f"{where} is from {speaker!r} and has no text in `value`")
    rest = {key: said[key] for key in said if key not in ("from", "value")}
    return {"role": SHAREGPT_ROLES[speaker], "content": text, **rest}


def _messages(columns: dict[str, Any]) -> Any:
    """Return a mapping of equally long lists as a list of mappings, any other mapping unchanged."""
    lengths = {len(column) if isinstance(column, list) else None for column in columns.values()}
    if None in lengths or len(lengths) != 1:
        return columns
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _saved_folder(root: Path, split: str) -> Path | None:
    """Return the folder of a dataset saved by `datasets`, or None if `root` is no such folder.

    Raises ScenarioError if it has no such split.
    """
    if (root / SAVED).is_file():
        return root
    listed = root / SAVED_SPLITS
    if not listed.is_file():
        return None
    known = [str(name) for name in _read_json(listed).get("splits", [])]
    if split not in known:
        raise ScenarioError(
            f"data.split {split!r}: {root} has no such split{did_you_mean(split, known)}; "
            f"it has {', '.join(known)}"
        )
    return root / split


def _saved_files(folder: Path) -> list[str]:
    """Return the names of a saved dataset's files, in the order of its rows. Raises ScenarioError
    if one is missing."""
    state = _read_json(folder / SAVED)
    names = [str(entry.get("filename")) for entry in state.get("_data_files", [])]
    if gone := next((name for name in names if not (folder / name).is_file()), None):
        raise ScenarioError(f"{folder}: {gone} is missing; save the dataset again")
    return names


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ScenarioError(f"{path}: not a JSON object")
    return content


def _table_rows(file: TextFile, fields: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet file, or of an Arrow stream written by `datasets`.

    Only `fields` are read from a Parquet file that has all of them. Raises ScenarioError for an
    unreadable file.
    """
    import pyarrow
    from pyarrow import ipc, parquet

    number = 0
    try:
        with pyarrow.OSFile(str(file.path)) as source:
            if file.path.suffix == ".parquet":
                table = parquet.ParquetFile(source)
                known = set(fields) <= set(table.schema_arrow.names)
                batches = table.iter_batches(ROWS_AT_ONCE, columns=list(fields) if known else None)
            else:
                batches = iter(ipc.open_stream(source))
            for batch in batches:
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file.path}: row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise ScenarioError(f"{file.path}: not a readable table: {error}") from error
