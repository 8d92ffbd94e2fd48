"""CSV files of fms-acceleration's benchmark: `benchmarks.csv`, `raw_summary.csv`, references.

The module reads them, and writes runs with the same columns, units and scopes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from accel_bench.analysis.tables.listing import provenance_of
from accel_bench.catalog.hardware import find_hardware
from accel_bench.documents.escaping import csv_line
from accel_bench.errors import ImportFileError
from accel_bench.interchange import UNKNOWN, Format, ImportedRow, SourceFile
from accel_bench.result import Metric, Result, Status
from accel_bench_interop import parse, trainer
from accel_bench_interop.exported_runs import ExportedRun

Cells = Mapping[str, str]

Reader = Callable[[ExportedRun], Any]

KNOWN = {key: trainer.KNOWN[key] for key in ("train_samples_per_second", "train_steps_per_second",
         "train_tokens_per_second", "train_loss", "epoch")}  # fmt: skip
"""Figures of a run by CSV column."""

SETTINGS: parse.Settings = {
    "model.id": ("model_name_or_path", parse.as_stated),
    "model.dtype": ("torch_dtype", parse.one_of("float32", "bfloat16", "float16")),
    "train.precision": ("precision", parse.as_stated),
    "train.micro_batch_size": ("per_device_train_batch_size", parse.positive_integer),
    "train.gradient_accumulation": ("gradient_accumulation_steps", parse.positive_integer),
    "train.learning_rate": ("learning_rate", parse.number),
    "data.sequence_length": ("max_seq_len", parse.positive_integer),
    "resources.devices": ("num_gpus", parse.positive_integer),
    "adapter.use": ("peft_method", parse.as_stated),
    "adapter.r": ("r", parse.positive_integer),
    "adapter.alpha": ("lora_alpha", parse.number),
    "adapter.dropout": ("lora_dropout", parse.number),
    "adapter.target_modules": ("target_modules", lambda text: text and text.split()),
}
"""CSV column and parser of each scenario setting, for reading and writing."""

PEAK, LEVEL, DRIVER = (
    "peak_torch_mem_alloc_in_bytes",
    "torch_mem_alloc_in_bytes",
    "nvidia_mem_reserved",
)
"""Memory columns, prefixed by `mem_` in newer files. The last one is in MiB."""

MEMORY = {
    PEAK: ("peak_memory_bytes", "bytes", "device", "lower"),
    LEVEL: ("memory_bytes", "bytes", "device", "lower"),
}
"""Figures of the first two memory columns."""

MIB = 1024 * 1024

PER_DEVICE = (
    "train_tokens_per_second is that of one device, and counts padding: the global rate is that x "
    "num_gpus; train_samples_per_second and train_steps_per_second are global as they stand"
)
SAME_RATE = "num_gpus is not stated, so that only the rate of one device is known"
DRIVER_MEMORY = "nvidia_mem_reserved is in MiB, the mean over devices: it was converted to bytes"
TORCH_MEMORY = "memory by torch is rank 0's alone"

FULL = 0.95
"""Fraction of a device's memory from which a failed run is attributed to lack of memory."""

LONGEST_HEADER = 64 * 1024
"""Maximum characters of the header line."""


def recognizes(source: SourceFile) -> bool:
    """Return whether a file's first line has the columns of fms-acceleration's benchmark."""
    try:
        columns = set(next(csv.reader([source.text[:LONGEST_HEADER].partition("\n")[0]]), []))
    except csv.Error:  # a line that no spreadsheet writes
        return False
    ours = {"train_runtime", "train_tokens_per_second", "train_samples_per_second"}
    return bool(ours & columns) and "model_name_or_path" in columns


def read(source: SourceFile) -> Iterator[ImportedRow]:
    """Yield a row for each line. Raises ImportFileError for a line with too many cells."""
    source.check_values()
    for place, line in enumerate(csv.DictReader(io.StringIO(source.text)), 2):
        if None in line:
            raise ImportFileError(f"{source.path}: line {place} has more cells than columns")
        stated = {key: value.strip() for key, value in line.items() if value and value.strip()}
        yield _row({key.removeprefix("mem_"): value for key, value in stated.items()}, place)


def _row(cells: Cells, place: int) -> ImportedRow:
    status, reasons = _ending(cells)
    return ImportedRow(
        key=f"line {place}",
        scenario="fms-acceleration",
        stack=cells.get("framework_config") or "none",
        settings=_settings(cells),
        metrics=[*parse.figures(cells, KNOWN), *_global_rate(cells), *_memory_figures(cells)],
        status=status,
        reasons=reasons,
        corrections=_corrections(cells),
        machine=cells.get("gpu_device_name", ""),
        seconds=parse.number(cells.get("train_runtime")),
    )


def _settings(cells: Cells) -> dict[str, Any]:
    """Return the scenario settings that a line states, by dotted key, without unknown values."""
    length = cells.get("max_seq_len") or cells.get("max_seq_length")
    stated = {**cells, "max_seq_len": length, "precision": _precision(cells)}
    parsed = parse.settings(stated, SETTINGS)
    if "adapter.use" not in parsed:
        return {key: value for key, value in parsed.items() if not key.startswith("adapter.")}
    return parsed


def _precision(cells: Cells) -> str | None:
    for column, precision in (("fp16", "fp16-autocast"), ("bf16", "bf16-autocast")):
        if cells.get(column, "").lower() == "true":
            return precision
    return None


def _global_rate(cells: Cells) -> Iterator[Metric]:
    rate = parse.number(cells.get("train_tokens_per_second"))
    devices = parse.positive_integer(cells.get("num_gpus"))
    if rate is not None and devices is not None:
        yield parse.figure("tokens_per_second", rate * devices, "1/s", "global", "higher")


def _memory_figures(cells: Cells) -> Iterator[Metric]:
    stages = trainer.peak_allocated(cells)
    if parse.number(cells.get(PEAK)) is None and stages is not None:
        yield stages
    yield from parse.figures(cells, MEMORY)
    if (driver := parse.number(cells.get(DRIVER))) is not None:
        yield parse.figure("peak_driver_memory_bytes", driver * MIB, "bytes", "device", "lower")


def _corrections(cells: Cells) -> list[str]:
    notes = []
    if parse.number(cells.get("train_tokens_per_second")) is not None:
        known = parse.positive_integer(cells.get("num_gpus"))
        notes += [PER_DEVICE] if known else [PER_DEVICE, SAME_RATE]
    if DRIVER in cells:
        notes.append(DRIVER_MEMORY)
    if PEAK in cells or LEVEL in cells:
        notes.append(TORCH_MEMORY)
    if "provenance" in cells:
        notes.append(f"the file marks the row as {parse.one_line(cells['provenance'])!r}")
    return notes


def _ending(cells: Cells) -> tuple[Status, Sequence[str]]:
    """Return a run's status and reasons; a line without figures is a failed run."""
    stated = cells.get("error_messages", "")
    if not stated and parse.number(cells.get("train_runtime")) is not None:
        return Status.OK, ()
    if "OutOfMemoryError" in stated or "CUDA out of memory" in stated:
        return Status.OOM, (parse.one_line(stated)[-500:],)
    if stated:
        return Status.FAILED, (parse.one_line(stated)[-500:],)
    return Status.FAILED, (f"inferred, the file states no reason: {_inferred(cells)}",)


def _inferred(cells: Cells) -> str:
    """Return the likely reason why a line has no figures, judged by the driver's peak memory."""
    device, used = cells.get("gpu_device_name", UNKNOWN), parse.number(cells.get(DRIVER))
    row = find_hardware(device)
    total = row.hardware.memory_bytes / MIB if row and row.hardware.memory_bytes else None
    if used is None or total is None or used < FULL * total:
        return "it left no figure"
    share = f"{used / total:.0%} of the memory of {device}"
    return f"out of memory, since it used {used:,.0f} MiB, {share}"


def _setting(key: str) -> Reader:
    return lambda run: run.setting(key)


def _figure(name: str) -> Reader:
    return lambda run: run.figures.get(name)


def _driver(run: ExportedRun) -> float | None:
    reserved = run.figures.get("peak_driver_memory_bytes")
    return None if reserved is None else reserved / MIB


def _true_for(name: str) -> Reader:
    return lambda run: True if run.setting("train.precision") == name else None


def _error(run: ExportedRun) -> str | None:
    if run.result.status.completed:
        return None
    return "; ".join(run.result.reasons) or run.result.status.value


def _modules(run: ExportedRun) -> str | None:
    modules = run.setting("adapter.target_modules")
    return " ".join(map(str, modules)) if isinstance(modules, list) else modules


COLUMNS: Mapping[str, Reader] = {
    **{column: _setting(key) for key, (column, _) in SETTINGS.items() if column != "precision"},
    "bf16": _true_for("bf16-autocast"),
    "error_messages": _error,
    "fp16": _true_for("fp16-autocast"),
    "framework_config": lambda run: run.result.experiment.stack.name,
    "gpu_device_name": lambda run: run.device or None,
    "mem_nvidia_mem_reserved": _driver,
    "mem_peak_torch_mem_alloc_in_bytes": _figure("peak_memory_bytes"),
    "num_gpus": lambda run: run.devices,
    "provenance": lambda run: provenance_of(run.result),
    "target_modules": _modules,
    "train_loss": _figure("mean_loss"),
    "train_runtime": lambda run: run.seconds,
    "train_samples_per_second": _figure("samples_per_second"),
    "train_steps_per_second": _figure("steps_per_second"),
    "train_tokens_per_second": _figure("tokens_per_second_per_device"),
}
"""Function that returns a run's cell, by column. `provenance` is not in the original files. Token
counts are of one device, with padding."""

IN_ORDER = sorted(COLUMNS)
"""Columns in alphabetical order, as in the original."""


def write(results: Iterable[Result]) -> Iterator[str]:
    """Yield the header, and a line for each run; failed runs have a reason instead of figures."""
    yield csv_line(IN_ORDER)
    for run in map(ExportedRun, results):
        yield csv_line(COLUMNS[column](run) for column in IN_ORDER)


FORMAT = Format(
    description="CSV of fms-acceleration's benchmark",
    recognizes=recognizes,
    read=read,
    write=write,
)
