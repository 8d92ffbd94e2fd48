"""Tables of `op list` and `op run`."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.statistics.verdict import MINIMUM_ROUNDS
from accel_bench.analysis.wording import (
    JUDGED,
    count,
    flops,
    grouped_by_reason,
    milliseconds,
    percent,
    rate_interval,
    ratio_interval,
    significant,
    size,
)
from accel_bench.report.table import Column, Line, Report, Section, Table, columns_of, reader
from accel_bench.report.views.run_table import WIDTH
from accel_bench.result import Status
from accel_bench_op.document import (
    ExecutorSupport,
    GradientCheck,
    OperationCell,
    OperationEntry,
    OperationReport,
)


def list_report(entries: Sequence[OperationEntry]) -> Report:
    """Return the table of `op list`: a row for each benchmark, and reasons why it cannot run."""
    reasons = [
        (entry.benchmark, support.reason)
        for entry in entries
        for support in entry.executors
        if support.has_kernel and not support.runs
    ]
    reasons = list(dict.fromkeys(reasons))
    reasons += [(entry.benchmark, entry.problem) for entry in entries if entry.problem]
    table = Table(LISTED, entries)
    flat = [
        Line(entry=entry, support=support)
        for entry in entries
        for support in entry.executors or [None]
    ]
    section = Section(tables=[table], notes=grouped_by_reason(reasons))
    return Report([section], list(entries), Table(FLAT_LIST, flat), LIST_WIDTH)


def operations_report(report: OperationReport) -> Report:
    """Return the report of `op run`: a table row for each cell, reasons, and notices."""
    title = "Operations, each under its executors, against " + report.baseline
    notes = [*_reasons(report.cells), *report.notices]
    section = Section(title=title, tables=[Table(CELLS, report.cells)], notes=notes)
    return Report([section], report, Table(FLAT_CELLS, report.cells), WIDTH)


def _reasons(cells: Sequence[OperationCell]) -> list[str]:
    reasons = []
    for cell in cells:
        reasons += [(_label(cell), reason) for reason in cell.reasons]
        if cell.verdict == "not tested" and cell.verdict_reason:
            reasons.append((_label(cell), f"no verdict: {cell.verdict_reason}"))
    return grouped_by_reason(reasons)


def _label(cell: OperationCell) -> str:
    return " ".join(filter(None, (cell.benchmark, cell.compute_type, cell.size, cell.executor)))


def _names(entry: OperationEntry) -> list[str]:
    return [support.executor for support in entry.executors if support.runs]


def _few(sizes: Sequence[str]) -> str:
    """Return a shortened list of sizes, such as `tiny ... llama-3-8b (5)`."""
    if len(sizes) < 3:
        return ", ".join(sizes)
    return f"{sizes[0]} ... {sizes[-1]} ({len(sizes)})"


def _verdict(cell: OperationCell) -> str:
    """Return a cell's verdict; without one its status, or how many rounds it still needs."""
    if not cell.status.completed:
        return "OOM" if cell.status is Status.OOM else cell.status.value
    if cell.is_baseline:
        return "baseline"
    missing = MINIMUM_ROUNDS - cell.runs
    if cell.verdict == "not tested" and missing > 0:
        return f"needs {count(missing, 'round')}"
    return cell.verdict_word


def _check(check: GradientCheck) -> tuple[str, str]:
    return significant(check.largest, 2), f"of {check.tolerance:g}"


LIST_WIDTH = 100
"""Width of the list in characters if the output is no terminal."""

LISTED = (
    Column("benchmark", reader("benchmark"), kind="word"),
    Column("sizes", reader("sizes"), form=_few, kind="text"),
    Column("compute types", reader("compute_types"), form=", ".join, kind="text"),
    Column("executors", _names, form=", ".join, kind="text"),
    Column("from", lambda entry: entry.distribution.partition(" ")[0], kind="word", rank=1),
)
"""Columns of `op list`; CSV and JSON also have all sizes and the descriptions."""

FLAT_LIST = (
    *columns_of(OperationEntry, "entry"),
    *columns_of(ExecutorSupport, "support", without="distribution"),
    *columns_of(ExecutorSupport, "support", "executor_{}", "distribution"),
)
"""CSV columns of `op list`: a row for each benchmark and executor."""

CELLS = (
    Column("operation", reader("benchmark"), kind="name"),
    Column("size", lambda cell: cell.size or None, kind="name"),
    Column("compute type", reader("compute_type"), kind="word"),
    Column("executor", reader("executor"), kind="name"),
    Column("speed", reader("calls_per_second"), unit="calls/s", kind="number",
           form=rate_interval),
    Column("call", reader("seconds_per_call.median"), unit="mean ms", form=milliseconds,
           kind="number", rank=5),
    Column("times as fast", reader("ratio"), unit=JUDGED, kind="number",
           form=ratio_interval),
    Column("FLOP/s", reader("flops_per_second"), form=lambda value: f"{flops(value)}/s",
           kind="number", rank=3),
    Column("bytes/s", reader("bytes_per_second"), form=lambda value: f"{size(value)}/s",
           kind="number", rank=4),
    Column("roofline", reader("fraction_of_roofline"), form=percent, kind="number", rank=1),
    Column("memory", reader("peak_bytes"), unit="peak", form=size, kind="number", rank=2),
    Column("error", reader("check"), unit="allowed", form=_check, kind="number"),
    Column("verdict", _verdict, kind="word"),
)  # fmt: skip
"""Columns of `op run`."""

FLAT_CELLS = columns_of(OperationCell)
"""CSV columns of `op run`."""
