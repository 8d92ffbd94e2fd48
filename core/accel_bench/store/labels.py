"""Tags and notes that people give to runs; what was measured is left as it is."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from accel_bench.documents.redaction import Redactor
from accel_bench.errors import StoreError
from accel_bench.store.database import Store
from accel_bench.store.records import label_columns
from accel_bench.store.schema import LABELS

TAG_LETTERS, NOTE_LETTERS = 100, 10_000
"""Most letters of a tag and of a note."""


def add_labels(store: Store, identifier: str, kind: str, texts: Sequence[str]) -> list[str]:
    """Give tags or notes to all runs of an id; those that a run has already stay.

    `kind` is `tag` or `note`. Returns the ids of the runs. Raises StoreError.
    """
    kept = [_checked(kind, text) for text in texts]
    run_ids = store.run_ids(identifier)
    rows = [label_columns(run, kind, text) for run in run_ids for text in kept]
    database = sqlite if store.on_sqlite else postgresql
    with store.changing() as connection:
        connection.execute(database.insert(LABELS).on_conflict_do_nothing(), rows)
    return run_ids


def remove_labels(store: Store, identifier: str, kind: str, texts: Sequence[str]) -> list[str]:
    """Take tags or notes from all runs of an id, and return the ids. Raises StoreError."""
    run_ids = store.run_ids(identifier)
    mine = (LABELS.c.run_id.in_(run_ids), LABELS.c.kind == kind, LABELS.c.text.in_(list(texts)))
    with store.changing() as connection:
        connection.execute(delete(LABELS).where(*mine))
    return run_ids


def labels_of(
    store: Store, run_ids: Sequence[str] | None = None
) -> dict[str, dict[str, list[str]]]:
    """Return `{run id: {"tag": [...], "note": [...]}}` of the runs that have any."""
    query = select(LABELS.c.run_id, LABELS.c.kind, LABELS.c.text)
    if run_ids is not None:
        query = query.where(LABELS.c.run_id.in_(list(run_ids)))
    found: dict[str, dict[str, list[str]]] = {}
    for row in store.fetch(query.order_by(LABELS.c.added_at, LABELS.c.text)):
        found.setdefault(row["run_id"], {}).setdefault(row["kind"], []).append(row["text"])
    return found


def _checked(kind: str, text: str) -> str:
    """Return a label without secrets. Raises StoreError for one that is empty or too long."""
    limit = TAG_LETTERS if kind == "tag" else NOTE_LETTERS
    kept = Redactor.of_this_process().redact(text.replace("\0", "").strip())
    if not kept or len(kept) > limit:
        raise StoreError(
            f"a {kind} has from 1 to {limit} letters, and {text[:40]!r} has none or more"
        )
    return kept
