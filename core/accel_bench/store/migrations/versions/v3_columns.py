"""Settings, effective configuration and figures become columns; samples and documents stand apart.

Until then a run was one JSON text, `payload`, with a checksum over it and a dozen columns.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import op

from accel_bench.documents.canonical import digest
from accel_bench.errors import AccelBenchError
from accel_bench.store.checksums import content_checksum, with_checksum
from accel_bench.store.records import RunRecord, insert_run, parse_result, run_record

revision = "3"
down_revision = "2"

MAXIMUM_PAYLOAD_BYTES = 24 * 1024 * 1024
IDENTITY = (
    "run_id session experiment_id scenario stack sweep round position attempt status started_at "
    "schema_version"
).split()
NUMBERS = ("round", "position", "attempt", "schema_version")
TEXTS = """
model_id model_weights model_dtype model_attention adapter_use data_use optimizer_use engine_use
parallel_use launcher_use train_precision train_matmul_precision measure_sync resources_device
resources_environment measure_warmup compute_dtype effective_python effective_torch
effective_model_class effective_attention effective_strategy effective_backend effective_optimizer
effective_device effective_matmul_dtype effective_weight_dtype effective_trained_dtype
audited_status reasons tag device device_type phase replaces host processor driver cuda
"""
INTEGERS = """
data_sequence_length train_micro_batch_size train_gradient_accumulation train_global_batch_size
train_seed resources_devices resources_nodes resources_threads measure_steps
resources_data_parallel measure_seed world_size effective_threads effective_world_size
effective_graph_breaks effective_recompiles effective_optimizer_steps cores steps real_tokens
peak_memory_bytes
"""
FLOATS = """
train_learning_rate train_max_grad_norm effective_compile_seconds effective_learning_rate seconds
tokens_per_second tokens_per_second_per_device seconds_per_token median_step_seconds first_loss
last_loss mfu
"""
BOOLEANS = """
train_gradient_checkpointing effective_gradient_checkpointing effective_padding_free
effective_use_cache
"""

INDEXES = {
    "session": "session",
    "experiment": "experiment_id",
    "started": "started_at",
    "stack": "stack started_at",
    "figures": "scenario stack audited_status train_micro_batch_size data_sequence_length "
    "tokens_per_second",
}

Row = Mapping[str, Any]

REFUSED = (sa.exc.IntegrityError, sa.exc.DataError, sa.exc.InterfaceError, ValueError)
"""What is raised for a row that the new tables do not take."""


def upgrade() -> None:
    """Move each run to the new tables; of one that cannot be read the old one, `runs_2`, stays."""
    connection = op.get_bind()
    op.rename_table("runs", "runs_2")
    _create_tables()
    with _reading(connection) as (reader, old):
        ids = [row.run_id for row in reader.execute(sa.select(old.c.run_id))]
        rows = ((run_id, _read(reader, old, run_id)) for run_id in ids)
        moved = [_move(connection, *row, number) for number, row in enumerate(rows, 1)]
    if all(moved):
        op.drop_table("runs_2")
        return
    print(
        f"{moved.count(False)} of {len(moved)} runs cannot be read, since they are damaged: they "
        "are listed as corrupt, and what is left of them stays in the table runs_2",
        file=sys.stderr,
    )


@contextmanager
def _reading(connection: sa.Connection) -> Iterator[tuple[sa.Connection, sa.TableClause]]:
    """Open a connection that reads the old table, and yield both.

    A connection of SQLite that has met a damaged page writes nothing any more, so another one
    reads. It sees the database as it was before the migration, and the table by its old name.
    """
    columns: list[Any] = [sa.column(name) for name in (*IDENTITY, "payload", "checksum")]
    if connection.dialect.name != "sqlite":  # there another one would wait for the renamed table
        yield connection, sa.table("runs_2", *columns)
        return
    with connection.engine.execution_options(immediate=False).connect() as reader:
        yield reader, sa.table("runs", *columns)


def _read(reader: sa.Connection, old: sa.TableClause, run_id: Any) -> Row | None:
    """Return a row without a payload that is too large; None where it cannot be read."""
    fits = sa.func.length(old.c.payload) <= MAXIMUM_PAYLOAD_BYTES
    payload = sa.case((fits, old.c.payload), else_=sa.null()).label("payload")
    columns = [one for one in old.c if one.name != "payload"]
    query = sa.select(*columns, payload).where(old.c.run_id == _bound(run_id))
    try:
        with reader.begin_nested():
            row = reader.execute(query).mappings().first()
    except sa.exc.DatabaseError:  # on a damaged page
        return None
    return None if row is None else dict(row)


def _bound(run_id: Any) -> Any:
    """Return an id as a query takes it, also one whose bytes are no UTF-8."""
    raw = run_id.encode("utf8", "surrogateescape") if isinstance(run_id, str) else b""
    if not isinstance(run_id, str) or raw.decode("utf8", "replace") == run_id:
        return run_id
    return sa.cast(sa.literal(raw, sa.LargeBinary()), sa.Text())


def _move(connection: sa.Connection, run_id: Any, row: Row | None, number: int) -> bool:
    """Insert a run; in the place of one that is lost, a row that is listed as corrupt.

    Returns whether all of it could be read.
    """
    try:
        _insert(connection, _lost(run_id) if row is None else _record(row))
    except REFUSED:
        _insert(connection, _lost(f"{_text(run_id)}-{number}"))
        return False
    return row is not None and row["payload"] is not None


def _insert(connection: sa.Connection, record: RunRecord) -> None:
    with connection.begin_nested():
        _add_missing_session(connection, record.columns["session"])
        insert_run(connection, record)


def _lost(run_id: Any) -> RunRecord:
    """Return a row of which only the id is known; it fits no checksum."""
    columns = _identity({**dict.fromkeys(IDENTITY), "run_id": run_id})
    return RunRecord({**columns, "content_checksum": "", "checksum": ""}, b"", b"")


def _record(row: Row) -> RunRecord:
    """Return what is stored of a row; one that fails its checksum keeps the checksum it fails."""
    if not _intact(row):
        payload = row["payload"]
        raw = payload.encode("utf8", "surrogateescape") if isinstance(payload, str) else payload
        columns = {**_identity(row), "content_checksum": "", "checksum": _text(row["checksum"])}
        return RunRecord(columns, zlib.compress(raw if isinstance(raw, bytes) else b""), b"")
    try:
        return run_record(parse_result(row["payload"]))
    except (ValueError, RecursionError, AccelBenchError):  # intact, of another version
        document, samples = zlib.compress(row["payload"].encode()), zlib.compress(b"[]")
        checksum = content_checksum(document, samples)
        columns = with_checksum({**_identity(row), "content_checksum": checksum})
        return RunRecord(columns, document, samples)


def _identity(row: Row) -> dict[str, Any]:
    """Return the columns that say which run it is; damaged ones as the new table can hold them."""
    texts = {name: _text(row[name]) for name in IDENTITY if name not in NUMBERS}
    numbers = {name: _number(row[name]) for name in NUMBERS}
    return {**texts, **numbers, "figures_version": 0}


def _text(value: Any) -> str:
    return "" if value is None else str(value).encode("utf8", "backslashreplace").decode()


def _number(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 2**31 else 0


def _intact(row: Row) -> bool:
    try:
        content = {name: value for name, value in row.items() if name != "checksum"}
        return bool(digest(content, 64) == row["checksum"])
    except (TypeError, ValueError):
        return False


def _add_missing_session(connection: sa.Connection, session: Any) -> None:
    """Add an unreadable session for a damaged run, which names one that is not there."""
    names = ("started_at", "scenario", "command", "document", "checksum")
    sessions = sa.table("sessions", *map(sa.column, ("id", *names)))
    if connection.scalar(sa.select(sessions.c.id).where(sessions.c.id == session)) is None:
        connection.execute(sa.insert(sessions).values(id=session, **dict.fromkeys(names, "")))


def _create_tables() -> None:
    number: Any = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    kinds: list[tuple[str, Any]] = [
        (TEXTS, sa.Text()),
        (INTEGERS, number),
        (FLOATS, sa.Float(53)),
        (BOOLEANS, sa.Boolean()),
        ("broken options metrics", sa.Text()),
    ]
    of_identity = {
        "schema_version": sa.Integer(),
        **dict.fromkeys(("round", "position", "attempt"), number),
    }
    required: list[sa.Column[Any]] = [
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("session", sa.Text, sa.ForeignKey("sessions.id"), nullable=False),
    ]
    required += [
        sa.Column(name, of_identity.get(name, sa.Text()), nullable=False) for name in IDENTITY[2:]
    ]
    derived: list[sa.Column[Any]] = [
        sa.Column(name, kind) for names, kind in kinds for name in names.split()
    ]
    checks: list[sa.Column[Any]] = [
        sa.Column("figures_version", sa.Integer, nullable=False),
        sa.Column("content_checksum", sa.Text, nullable=False),
        sa.Column("checksum", sa.Text, nullable=False),
    ]
    op.create_table("runs", *required, *derived, *checks)
    for name in ("documents", "samples"):
        op.create_table(name, _run(), sa.Column("content", sa.LargeBinary, nullable=False))
    op.create_table(
        "labels",
        _run(),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("text", sa.Text, primary_key=True),
        sa.Column("added_at", sa.Text, nullable=False),
    )
    for name, columns in INDEXES.items():
        op.create_index(f"runs_{name}", "runs", columns.split())


def _run() -> sa.Column[Any]:
    return sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True)
