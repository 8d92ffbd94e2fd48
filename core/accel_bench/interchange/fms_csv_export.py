"""Write runs with the columns, units and scopes of fms-acceleration's benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from accel_bench.documents.shown import csv_line
from accel_bench.interchange.export import ExportedRun
from accel_bench.interchange.fms_csv import MIB

Cell = Callable[[ExportedRun], Any]


def _setting(key: str) -> Cell:
    return lambda run: run.setting(key)


def _tokens(run: ExportedRun) -> float | None:
    """Return tokens/s of one device, padding included: that is what the column holds there."""
    if run.result.imported:
        return run.figure("tokens_per_second_per_device")
    rate = run.rate("tokens_per_second", lambda sample: sample.processed_tokens)
    return rate / run.devices if rate is not None and run.devices else None


def _driver(run: ExportedRun) -> float | None:
    found = run.memory("peak_driver_memory_bytes", ("run_peak_driver", "peak_driver"), "")
    return None if found is None else found / MIB


def _precision(name: str) -> Cell:
    return lambda run: True if run.setting("train.precision") == name else None


def _error(run: ExportedRun) -> str | None:
    if run.result.status.completed:
        return None
    return "; ".join(run.result.reasons) or run.result.status.value


def _modules(run: ExportedRun) -> str | None:
    found = run.setting("adapter.target_modules")
    return " ".join(map(str, found)) if isinstance(found, list) else found


COLUMNS: Mapping[str, Cell] = {
    "bf16": _precision("bf16-autocast"),
    "error_messages": _error,
    "fp16": _precision("fp16-autocast"),
    "framework_config": lambda run: run.result.experiment.stack.name,
    "gpu_device_name": lambda run: run.device or None,
    "gradient_accumulation_steps": _setting("train.gradient_accumulation"),
    "learning_rate": _setting("train.learning_rate"),
    "lora_alpha": _setting("adapter.alpha"),
    "lora_dropout": _setting("adapter.dropout"),
    "max_seq_len": _setting("data.sequence_length"),
    "mem_nvidia_mem_reserved": _driver,
    "mem_peak_torch_mem_alloc_in_bytes": lambda run: run.memory(
        "peak_memory_bytes", ("run_peak_memory", "peak_memory"), "allocated"
    ),
    "model_name_or_path": _setting("model.id"),
    "num_gpus": lambda run: run.devices,
    "peft_method": _setting("adapter.use"),
    "per_device_train_batch_size": _setting("train.micro_batch_size"),
    "provenance": lambda run: run.provenance,
    "r": _setting("adapter.r"),
    "target_modules": _modules,
    "torch_dtype": _setting("model.dtype"),
    "train_loss": lambda run: run.mean_loss,
    "train_runtime": lambda run: run.seconds,
    "train_samples_per_second": lambda run: run.rate(
        "samples_per_second", lambda sample: sample.sequences
    ),
    "train_steps_per_second": lambda run: run.steps_per_second,
    "train_tokens_per_second": _tokens,
}
"""Columns in the order of the alphabet, as there; `provenance` is ours."""


def write(runs: Iterable[ExportedRun]) -> Iterator[str]:
    """Yield a line for each run; what did not complete has no figure, and its reason."""
    yield csv_line(COLUMNS)
    for run in runs:
        yield csv_line(read(run) for read in COLUMNS.values())
