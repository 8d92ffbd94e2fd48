"""The self-audit of a whole results folder: every broken invariant, and every corrupt row."""

from __future__ import annotations

from collections.abc import Iterator

from accel_bench.analysis.checks.audit import Broken, audit
from accel_bench.analysis.schema import Document
from accel_bench.store.database import Row, Store
from accel_bench.store.fields import FIGURES_VERSION
from accel_bench.store.queries import COMPLETED
from accel_bench.store.schema import RUNS

CHECKSUM = "checksum"
"""Name of the invariant that a corrupt row breaks."""


class BrokenInvariant(Broken):
    """A row that breaks an invariant: a name of `analysis.checks.audit`, or `checksum`."""

    run_id: str
    """Unique name of the attempt."""

    experiment_id: str
    """Identity of the experiment."""

    session: str
    """Session in which it ran."""

    stack: str
    """Name of the stack."""


class AuditReport(Document):
    """The document of `accel-bench results check`."""

    rows: int
    """Stored rows, whatever became of them."""

    audited: int
    """Completed runs among them whose numbers are used: imported ones are not, nor those that this
    version cannot read."""

    broken: tuple[BrokenInvariant, ...] = ()
    """Every broken invariant of every row, in the order in which rows were stored."""


def audit_store(store: Store) -> AuditReport:
    """Audit every row of an open store. Raises StoreError.

    What a row's own figures break was found when it was stored, and its checksum covers that; rows
    that another version audited are audited anew.
    """
    rows = store.rows()
    stale = store.results(RUNS.c.figures_version != FIGURES_VERSION)
    again = {result.run_id: audit(result) for result in stale}
    broken = [one for row in rows for one in _broken(row, again.get(row.run_id))]
    audited = sum(
        row.status in COMPLETED
        and not row.imported
        and (row.broken is not None or row.run_id in again)  # others cannot be read
        for row in rows
    )
    return AuditReport(rows=len(rows), audited=audited, broken=tuple(broken))


def _broken(row: Row, again: list[Broken] | None) -> Iterator[BrokenInvariant]:
    """Return broken invariants of a row; of a corrupt one only its own columns are known."""
    if row.corrupt:
        again = [Broken(invariant=CHECKSUM, figures=row.problem)]
    elif again is None:
        again = [Broken(invariant=name, figures=figures) for name, figures in row.broken or ()]
    columns = ("run_id", "experiment_id", "session", "stack")
    of_row = {name: getattr(row, name) for name in columns}
    yield from (BrokenInvariant(**dict(one), **of_row) for one in again)
