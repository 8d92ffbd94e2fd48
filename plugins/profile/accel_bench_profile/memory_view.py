"""What `profile --memory` prints: bytes at the peak by category, and what modules keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter

from accel_bench.analysis.wording import count, percent, size
from accel_bench.report.table import Column, Table
from accel_bench_profile.figures.modules import ROOT
from accel_bench_profile.figures.schema import RankProfile


def memory_tables(rank: RankProfile, where: str, top: int) -> Iterator[Table]:
    """Yield the table of the peak, and that of what is saved for the backward pass."""
    if rank.memory is not None:
        title = f"memory{where} at its peak of {size(rank.memory.peak_bytes)}"
        yield _table(rank.memory.peak, "category", title, len(rank.memory.peak))
    if rank.saved:
        total = sum(rank.saved.values())
        yield _table(rank.saved, "module", f"saved for the backward{where}: {size(total)}", top)


def memory_notes(rank: RankProfile, folder: str) -> Iterator[str]:
    """Yield where the timeline and the snapshot are."""
    if rank.memory is None:
        return
    yield f"memory over {count(rank.memory.steps, 'step')}: `memory` in the figures"
    if rank.memory.snapshot:
        path = f"{folder}/rank{rank.rank}/{rank.memory.snapshot}"
        yield f"snapshot: {path} (drop it on https://pytorch.org/memory_viz)"


def _table(found: Mapping[str, int], key: str, title: str, top: int) -> Table:
    """Return the largest parts, and one row of all others."""
    total = sum(found.values())
    listed = sorted(found.items(), key=lambda one: -one[1])
    rest = listed[top:]
    rows = [{key: name or ROOT, "bytes": part} for name, part in listed[:top]]
    if rest:
        others = sum(part for _, part in rest)
        rows.append({key: f"{len(rest)} others", "bytes": others})
    columns = [
        Column(key, itemgetter(key), kind="name"),
        Column("bytes", itemgetter("bytes"), "", "", size, "number"),
        Column("share", lambda row: row["bytes"] / total, "", "of all", percent, "number"),
    ]
    return Table(columns, rows, title=title)
