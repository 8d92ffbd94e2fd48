"""The self-audit of a whole results folder: every broken invariant, and every corrupt row."""

from __future__ import annotations

from collections.abc import Iterator

from accel_bench.analysis.checks.audit import audit
from accel_bench.documents.base import Frozen
from accel_bench.result import Result
from accel_bench.scenario.experiment import SCHEMA_VERSION
from accel_bench.store.database import Row, Store

CHECKSUM = "checksum"
"""Name of the invariant that a corrupt row breaks."""


class BrokenInvariant(Frozen):
    """A row that breaks an invariant."""

    run_id: str
    """Unique name of the attempt."""

    experiment_id: str
    """What was run."""

    session: str
    """When it was run."""

    stack: str
    """Name of the stack."""

    invariant: str
    """What does not hold: a name of `analysis.checks.audit`, or `checksum`."""

    figures: str
    """The figures that disagree."""


class AuditReport(Frozen):
    """The document of `accel-bench audit`."""

    schema_version: int = SCHEMA_VERSION
    """Version of this document's form."""

    rows: int
    """Stored rows, whatever became of them."""

    audited: int
    """Completed runs among them: those whose numbers are used."""

    broken: tuple[BrokenInvariant, ...] = ()
    """Every broken invariant of every row, in the order in which rows were stored."""


def audit_store(store: Store) -> AuditReport:
    """Audit every row of an open store. Raises StoreError."""
    rows = store.rows()
    results = {result.run_id: result for result in store.results()}
    broken = [one for row in rows for one in _broken(row, results.get(row.run_id))]
    audited = sum(result.status.completed for result in results.values())
    return AuditReport(rows=len(rows), audited=audited, broken=tuple(broken))


def _broken(row: Row, result: Result | None) -> Iterator[BrokenInvariant]:
    """Return broken invariants of a row; of a corrupt one only its own columns are known."""
    if row.corrupt:
        found = [(CHECKSUM, "the row is corrupt: its content does not fit its checksum")]
    else:
        found = [(one.invariant, one.figures) for one in audit(result)] if result else []
    for invariant, figures in found:
        yield BrokenInvariant(
            run_id=row.run_id,
            experiment_id=row.experiment_id,
            session=row.session,
            stack=row.stack,
            invariant=invariant,
            figures=figures,
        )
