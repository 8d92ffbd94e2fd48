"""The self-audit of a whole results folder: every broken invariant, and every corrupt row."""

from __future__ import annotations

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
    """What does not hold: a name of `analysis.audit`, or `checksum`."""

    figures: str
    """The figures that disagree."""


class AuditReport(Frozen):
    """What the audit of a results folder has found."""

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
    broken: list[BrokenInvariant] = []
    for row in rows:
        if row.corrupt:
            broken.append(_corrupt(row))
        elif row.run_id in results:
            broken += _broken(results[row.run_id])
    audited = sum(result.status.completed for result in results.values())
    return AuditReport(rows=len(rows), audited=audited, broken=tuple(broken))


def _corrupt(row: Row) -> BrokenInvariant:
    """A row that was damaged on the disk; its own columns are all that is known, unproved."""
    return BrokenInvariant(
        run_id=row.run_id,
        experiment_id=row.experiment_id,
        session=row.session,
        stack=row.stack,
        invariant=CHECKSUM,
        figures="the row is corrupt: its content does not fit its checksum",
    )


def _broken(result: Result) -> list[BrokenInvariant]:
    """Broken invariants of a sound row."""
    return [
        BrokenInvariant(
            run_id=result.run_id,
            experiment_id=result.experiment.id,
            session=result.session,
            stack=result.experiment.stack.name,
            invariant=one.invariant,
            figures=one.figures,
        )
        for one in audit(result)
    ]
