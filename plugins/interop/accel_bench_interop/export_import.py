"""Import of an export's runs into another results folder; all runs are added, or none."""

from __future__ import annotations

import codecs
import collections
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from accel_bench.documents.files import naming_the_file, open_regular, refuse_growth
from accel_bench.errors import StoreError
from accel_bench.result import Provenance, Result
from accel_bench.store.database import SessionRecord, Store
from accel_bench.store.records import parse_result
from accel_bench.store.schema import EXPORTED, MAXIMUM_PAYLOAD_BYTES
from accel_bench_interop.parquet import parquet_texts

PIECE = 1024 * 1024
"""Number of bytes of a file that are read at once."""

MAXIMUM_TEXT = 3 * MAXIMUM_PAYLOAD_BYTES
"""Maximum bytes of one run; exports are indented, unlike the store."""

MAXIMUM_VALUES = 2_000_000
"""Maximum number of values in one run, twice as many as in the largest stored run."""

FROM_EXPORT = "from-export"
"""Tag of runs imported from an export."""

_EXPORT = re.compile(rb'(\xef\xbb\xbf)?\s*(PAR1|\[\s*[{\]]|\{\s*"schema_version")')
_BETWEEN = re.compile(r"[\s,]*", re.ASCII)


def is_export(path: Path) -> bool:
    """Return whether a file begins like an export of accel-bench.

    Raises StoreError if the file cannot be read.
    """
    with open_regular(path, StoreError) as handle, naming_the_file(path):
        return bool(_EXPORT.match(handle.read(1024)))


def add_export(store: Store, path: Path, run_ids: Sequence[str]) -> tuple[int, int]:
    """Add the runs of an export that the store lacks: all of them, or none after an error.

    Returns how many runs were added, and how many were stored already. `run_ids` are the ids of all
    runs in the file. Added runs get the tag `from-export` and the origin `exported`; their sessions
    have no plan. Raises StoreError if a run cannot be read.
    """
    there = set(store.present(run_ids))
    store.add_together(_records(path, there, _provenance(path)), FROM_EXPORT)
    return len(run_ids) - len(there), len(there)


def _provenance(path: Path) -> Provenance:
    digest = hashlib.sha256()
    with open_regular(path, StoreError) as handle, naming_the_file(path):
        for piece in _pieces(handle, path):
            digest.update(piece)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = str(path).encode("utf8", "replace").decode()
    return Provenance(origin="exported", file=name, sha256=digest.hexdigest(), imported_at=now)


def _records(
    path: Path, there: Collection[str], mark: Provenance
) -> Iterator[SessionRecord | Result]:
    """Yield the runs of a file that are not stored yet, each after the record of its session.

    `there` are the ids of stored runs. `mark` is the provenance that measured runs get in place of
    their own.
    """
    known, sessions = {*there}, set[str]()
    for result in read_export(path):
        if result.run_id in known:
            continue
        known.add(result.run_id)
        if result.session not in sessions:
            sessions.add(result.session)
            yield SessionRecord(
                id=result.session,
                started_at=result.started_at,
                scenario=result.experiment.scenario.name,
                document={"imported": EXPORTED, "file": mark.file},
            )
        measured = result.provenance.origin == "measured"
        yield result.model_copy(update={"provenance": mark}) if measured else result


def read_export(path: Path) -> Iterator[Result]:
    """Yield the results in an export one by one. Raises StoreError at the first invalid result."""
    for number, text in enumerate(_texts(path), 1):
        try:
            yield parse_result(text)
        except (ValueError, RecursionError) as error:
            problem = str(error).splitlines()
            raise StoreError(
                f"{path}: run {number} is no result that this version can read: "
                f"{'; '.join(problem[:3])}; nothing was imported"
            ) from error


def _texts(path: Path) -> Iterator[str]:
    """Yield the JSON text of each run in an exported file."""
    with open_regular(path, StoreError) as handle, naming_the_file(path):
        start = handle.read(4)
        handle.seek(0)
        if start == b"PAR1":
            yield from parquet_texts(handle, path)
            return
        try:
            yield from _json_texts(_pieces(handle, path), path)
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{path}: neither JSON nor Parquet ({error}); `accel-bench results export --format "
                "json --output FILE` writes what can be imported, and CSV cannot"
            ) from error


def _pieces(handle: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield a file piece by piece, up to its initial size. Raises StoreError if it grows."""
    left = size = os.fstat(handle.fileno()).st_size
    while left and (piece := handle.read(min(PIECE, left))):
        left -= len(piece)
        yield piece
    refuse_growth(handle, path, StoreError, size)


def _json_texts(pieces: Iterator[bytes], path: Path) -> Iterator[str]:
    """Yield the text of each element of a JSON list one by one, or of a single document.

    The function finds only the ends of elements, without parsing values. JSON's syntax is ASCII, so
    that text is read with one byte per character. Raises StoreError for an element larger than any
    run.
    """
    ends = json.JSONDecoder(
        object_pairs_hook=bool, parse_float=bool, parse_int=bool, parse_constant=bool
    )
    text, place, in_list, number = _latin(next(pieces, b"")), 0, False, 1
    text = text.removeprefix(_latin(codecs.BOM_UTF8)).lstrip()
    if text.startswith("["):
        text, in_list = text[1:], True
    while True:
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]
        if in_list and text.startswith("]", place):
            break
        try:
            end = ends.raw_decode(text, place)[1]
        except ValueError:
            text, place = text[place:], 0
            _refuse_beyond_a_run(text, number, path)
            wanted = min(len(text), MAXIMUM_TEXT - len(text))
            more = _latin(b"".join(islice(pieces, 1 + wanted // PIECE)))
            if not more:
                raise
            text += more
            continue
        element = text[place:end]
        _refuse_beyond_a_run(element, number, path)
        yield element.encode("latin-1").decode()
        place, number = end, number + 1
        if not in_list:
            break
    collections.deque(pieces, maxlen=0)


def _latin(piece: bytes) -> str:
    return piece.decode("latin-1")


def _refuse_beyond_a_run(text: str, number: int, path: Path) -> None:
    """Raise StoreError for a text with more bytes or values than any stored run.

    `number` and `path` name the run and its file in the error.
    """
    if len(text) > MAXIMUM_TEXT or sum(map(text.count, ",[{")) > MAXIMUM_VALUES:
        raise StoreError(
            f"{path}: run {number} is larger than any run that is stored: more than "
            f"{MAXIMUM_TEXT:,} bytes or {MAXIMUM_VALUES:,} values"
        )
