"""Tables of the store, in SQL common to all databases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    Table,
    Text,
    case,
    func,
    literal_column,
    null,
    select,
)

METADATA = MetaData()

STORE_VERSION = 5
"""Version of the tables; a database of another version is refused."""

MAXIMUM_PAYLOAD_BYTES = 24 * 1024 * 1024
"""Size of the largest result in bytes: a run of more than 100,000 samples."""

MAXIMUM_COLUMN_BYTES = 256 * 1024
"""Size of the largest text of a column other than documents, in bytes."""

SHOWN_LETTERS = 200
"""Number of characters read from the text of a row that is too large."""

# Ids are compared by their bytes, whatever the language of the database.
KEY = Text().with_variant(Text(collation="C"), "postgresql")
NUMBER = BigInteger().with_variant(Integer(), "sqlite")


@dataclass(frozen=True)
class DerivedColumn:
    """Column whose value is derived from a result."""

    name: str
    """Dotted name of the column for users."""

    kind: type
    """Type of the column: `str`, `int`, `float` or `bool`."""

    path: str
    """Dotted path of the column's value within a result, as `fields` reads it."""

    @property
    def column(self) -> str:
        """Name of the column in the database."""
        return self.name.replace(".", "_")


def _derived(kind: type, source: str, names: str, prefix: str = "") -> list[DerivedColumn]:
    """Return derived columns of one type. Each word of `names` is NAME or NAME=PATH; the column is
    called `prefix` + NAME, and its value is at `source`.PATH, by default `source`.NAME."""
    pairs = (word.partition("=") for word in names.split())
    return [
        DerivedColumn(prefix + name, kind, f"{source}.{path or name}") for name, _, path in pairs
    ]


SETTINGS = (
    *_derived(str, "scenario", "model.id model.weights model.dtype model.attention adapter.use"),
    *_derived(str, "scenario", "data.use optimizer.use engine.use parallel.use launcher.use"),
    *_derived(int, "scenario", "data.sequence_length train.micro_batch_size"),
    *_derived(int, "scenario", "train.gradient_accumulation train.global_batch_size train.seed"),
    *_derived(str, "scenario", "train.precision train.matmul_precision measure.sync"),
    *_derived(bool, "scenario", "train.gradient_checkpointing"),
    *_derived(float, "scenario", "train.learning_rate train.max_grad_norm"),
    *_derived(str, "scenario", "resources.device resources.environment measure.warmup"),
    *_derived(int, "scenario", "resources.devices resources.nodes resources.threads measure.steps"),
    *_derived(int, "scenario", "resources.data_parallel measure.seed"),
    *_derived(str, "derived", "compute_dtype"),
    *_derived(int, "derived", "world_size"),
)
"""Columns of requested settings."""

_EFFECTIVE_NAMES = {
    str: "python torch model_class attention strategy backend optimizer device matmul_dtype "
    "weight_dtype=weight_dtypes[0] trained_dtype=trained_dtypes[0]",
    bool: "gradient_checkpointing padding_free use_cache",
    int: "threads world_size graph_breaks=compilation.graph_breaks "
    "recompiles=compilation.recompiles optimizer_steps=optimizer_progress.steps",
    float: "compile_seconds=compilation.compile_seconds "
    "learning_rate=optimizer_progress.learning_rates[0]",
}

EFFECTIVE = tuple(
    column
    for kind, names in _EFFECTIVE_NAMES.items()
    for column in _derived(kind, "effective", names, "effective.")
)
"""Columns of the effective configuration on rank 0; of several values the commonest."""

FIGURES = (
    *_derived(str, "audited", "audited_status=status"),
    *_derived(str, "derived", "reasons tag device device_type"),
    *_derived(str, "result", "phase replaces"),
    *_derived(str, "machine", "host processor driver cuda"),
    *_derived(int, "machine", "cores"),
    *_derived(float, "result", "seconds"),
    *_derived(float, "derived", "tokens_per_second tokens_per_second_per_device"),
    *_derived(float, "derived", "seconds_per_token median_step_seconds first_loss last_loss mfu"),
    *_derived(int, "derived", "steps real_tokens peak_memory_bytes"),
)
"""Columns of a run's status, machine and figures."""

DERIVED: tuple[DerivedColumn, ...] = (*SETTINGS, *EFFECTIVE, *FIGURES)
"""All derived columns."""

IMPORTED = "imported"
"""Value of the audited status of every imported run."""

EXPORTED = "exported"
"""Origin of a run from an export of another store."""

ORIGIN = "provenance.origin"
"""Key in `options` for a run's origin, if the run was not measured here."""

FORMAT = "provenance.format"
"""Key in `options` for an imported run's format."""

COUNTS = "task.counts"
"""Key in `options` for the name of the counted elements, if they are not tokens."""

COLUMN_OF = {column.name: column.column for column in DERIVED}
"""Column names in the database by dotted name."""

SECTIONS = tuple(
    "task model adapter data optimizer engine parallel launcher train inference resources measure "
    "evaluate".split()
)
"""Sections of a scenario whose settings without a column are stored in `options`."""

_TYPES: dict[type, Any] = {str: Text(), int: NUMBER, float: Float(53), bool: Boolean()}


def _columns(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


META = Table("meta", METADATA, *_columns(Integer, "schema_version"), *_columns(Text, "written_by"))
"""Table of one row: the version of the tables, and of the accel-bench that created them."""

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", KEY, primary_key=True),
    *_columns(Text, "started_at", "scenario", "command", "document", "checksum"),
)
"""Table of sessions, a row for each `accel-bench run`; `command` and `document` are JSON."""

RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", KEY, primary_key=True),
    Column("session", KEY, ForeignKey("sessions.id"), nullable=False),
    *_columns(KEY, "experiment_id", "scenario", "stack"),
    *_columns(Text, "sweep"),
    *_columns(NUMBER, "round", "position", "attempt"),
    *_columns(Text, "status"),
    *_columns(KEY, "started_at"),
    *_columns(Integer, "schema_version"),
    *(Column(column.column, _TYPES[column.kind]) for column in DERIVED),
    *(Column(name, Text) for name in ("broken", "throughput", "options", "metrics")),
    *_columns(Integer, "figures_version"),
    *_columns(Text, "content_checksum", "checksum"),
)
"""Table of attempts: identity, settings, effective configuration and figures.

`broken` is the self-audit's result, `throughput` is computed from the samples, `options` are
settings without a column, `metrics` the figures of plugins, each as JSON. `content_checksum` covers
the document and the samples.
"""


def _content_table(name: str) -> Table:
    key = Column("run_id", KEY, ForeignKey("runs.run_id"), primary_key=True)
    return Table(name, METADATA, key, *_columns(LargeBinary, "content"))


DOCUMENTS = _content_table("documents")
"""Table of each run's `Result` without samples, as compressed JSON."""

SAMPLES = _content_table("samples")
"""Table of each run's samples, as compressed JSON: the windows of its ranks in order."""

LABELS = Table(
    "labels",
    METADATA,
    Column("run_id", KEY, ForeignKey("runs.run_id"), primary_key=True),
    Column("kind", KEY, primary_key=True),
    Column("text", KEY, primary_key=True),
    *_columns(Text, "added_at"),
)
"""Table of tags and notes that people give to runs: the only rows that are ever deleted."""

INDEXES = (
    Index("runs_session", RUNS.c.session),
    Index("runs_experiment", RUNS.c.experiment_id),
    Index("runs_started", RUNS.c.started_at),
    Index("runs_stack", RUNS.c.stack, RUNS.c.started_at),
    Index(
        "runs_figures",
        RUNS.c.scenario,
        RUNS.c.stack,
        RUNS.c.audited_status,
        RUNS.c.train_micro_batch_size,
        RUNS.c.data_sequence_length,
        RUNS.c.tokens_per_second,
    ),
)
"""Indexes for look-ups, filters and the order of listings, which SQLite reads along `runs_started`:
sorting rows without it takes half as long again as reading them."""

CHRONOLOGICAL = (RUNS.c.started_at, RUNS.c.round, RUNS.c.position, RUNS.c.attempt, RUNS.c.run_id)
"""Columns that define the order of runs."""

EXPERIMENTS = (RUNS.c.experiment_id, RUNS.c.stack)
"""Columns that identify an experiment and stack: stacks that do the same work share an id."""

IDS = (RUNS.c.run_id, RUNS.c.experiment_id, RUNS.c.session)
"""Columns of ids that name runs."""


RUN_NUMBER: ColumnElement[int] = literal_column("runs.rowid")
"""Short id of a run in a results folder: SQLite's row number, in the order of storing."""


def within_limits(table: Table, untyped: bool, document: str = "") -> list[ColumnElement[Any]]:
    """Return the columns of a table; too long texts are truncated, and thus fail the checksum.

    The column `document` may be longer than others. `untyped` is true for SQLite, where any column
    may hold a text. Columns are sorted by name, as checksums need them, and the checksum is last.
    """

    def limited(column: Column[Any]) -> ColumnElement[Any]:
        if not untyped and not isinstance(column.type, Text):
            return column
        # Written out: hundreds of parameters take a tenth of a second to compile.
        most = MAXIMUM_PAYLOAD_BYTES if column.name == document else MAXIMUM_COLUMN_BYTES
        # In SQLite numbers are less than any text, and their length would have to be written first.
        fits = (
            func.length(column) <= literal_column(str(most))
            if isinstance(column.type, Text)
            else column < literal_column("''")
        )
        cut = func.substr(column, literal_column("1"), literal_column(str(SHOWN_LETTERS)))
        return case((fits, column), else_=cut).label(column.name)

    ordered = sorted(table.columns, key=lambda column: (column.name == "checksum", column.name))
    return [limited(column) for column in ordered]


def _content(table: Table, name: str) -> ColumnElement[Any]:
    fits = func.length(table.c.content) <= MAXIMUM_PAYLOAD_BYTES
    return case((fits, table.c.content), else_=null()).label(name)


@cache
def reading(untyped: bool) -> Select[Any]:
    """Return the query for all runs with documents and samples; `untyped` is true for SQLite."""
    contents = _content(DOCUMENTS, "result"), _content(SAMPLES, "samples")
    return (
        select(*within_limits(RUNS, untyped), *contents)
        .outerjoin_from(RUNS, DOCUMENTS, DOCUMENTS.c.run_id == RUNS.c.run_id)
        .outerjoin(SAMPLES, SAMPLES.c.run_id == RUNS.c.run_id)
    )
