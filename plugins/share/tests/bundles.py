"""Bundles of synthetic sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_bench_share.bundle_reader import Bundle, read_bundle
from accel_bench_share.bundle_writer import bundle_sessions
from repeated_sessions import make_record

from accel_bench.result import Result
from accel_bench.store.database import open_store


def write(
    folder: Path,
    runs: Sequence[Result],
    name: str = "bundle.zip",
    document: Mapping[str, Any] | None = None,
) -> Path:
    """Store runs of one session, and write a bundle of it."""
    session = runs[0].session
    with open_store(folder / f"{name}.results", write=True) as store:
        store.add_session(make_record(session, **(document or {})))
        for run in runs:
            store.add(run)
        bundle_sessions(store, [session], folder / name)
    return folder / name


def read(folder: Path, runs: Sequence[Result], **changes: Any) -> Bundle:
    """The bundle of runs, as it is read."""
    return read_bundle(write(folder, runs, **changes))
