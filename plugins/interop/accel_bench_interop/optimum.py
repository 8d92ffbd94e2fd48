"""Reports of optimum-benchmark: `benchmark.json`, or `benchmark_report.json` and its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from accel_bench.interchange import UNKNOWN, Format, ImportedRow, SourceFile
from accel_bench.result import Metric
from accel_bench_interop.figures import (
    Scope,
    figure,
    number,
    one_line,
    positive_integer,
    raw_numbers,
    without_none,
)

WHOLE, REPORT, CONFIG = "benchmark.json", "benchmark_report.json", "benchmark_config.json"

MEGABYTE = 1_000_000

MEMORY = {
    "max_ram": "peak_resident_memory_bytes",
    "max_global_vram": "peak_driver_memory_bytes",
    "max_process_vram": "peak_process_driver_memory_bytes",
    "max_reserved": "peak_reserved_memory_bytes",
    "max_allocated": "peak_memory_bytes",
}
"""Figures of memory by the report's key; the report has megabytes of 1,000,000 bytes."""

LATENCY = {
    "mean": "mean_step_seconds",
    "p50": "median_step_seconds",
    "p90": "p90_step_seconds",
    "p95": "p95_step_seconds",
    "p99": "p99_step_seconds",
    "stdev": "step_seconds_standard_deviation",
}
"""Figures of the times of steps."""


def recognizes(source: SourceFile) -> bool:
    """Return whether the file holds a report, alone or beside its configuration."""
    found = source.json or {}
    report = found.get("report", found)
    parts = report.values() if isinstance(report, dict) else ()
    return any(
        isinstance(part, dict) and {"latency", "throughput"} <= part.keys() for part in parts
    )


def is_repeated(source: SourceFile) -> str:
    """Return why a file says nothing that another one of its folder does not."""
    if source.path.name == REPORT and source.path.with_name(WHOLE).is_file():
        return f"{WHOLE} beside it is imported, and holds it"
    return ""


def read(source: SourceFile) -> Iterator[ImportedRow]:
    """Return the training of a report; other scenarios have a row for each of their parts."""
    found = source.json
    report = found.get("report", found)
    config = found.get("config") or _config_beside(source)
    if isinstance(report.get("train"), dict):
        yield _training(report["train"], config)
        return
    for name, part in report.items():
        if isinstance(part, dict) and isinstance(part.get("latency"), dict):
            yield _other(name, part, config)


def _config_beside(source: SourceFile) -> Mapping[str, Any]:
    beside = source.beside(CONFIG)
    return (beside.json or {}) if beside else {}


def _training(part: Mapping[str, Any], config: Mapping[str, Any]) -> ImportedRow:
    scenario = config.get("scenario") or {}
    arguments = scenario.get("training_arguments") or {}
    corrections: list[str] = []
    metrics = [*_latency(part), *_memory(part, corrections)]
    metrics += _samples(part, scenario, config, corrections)
    shapes = scenario.get("dataset_shapes") or {}
    settings = {
        **_settings(config),
        **without_none(
            {
                "train.micro_batch_size": positive_integer(
                    arguments.get("per_device_train_batch_size")
                ),
                "train.gradient_accumulation": positive_integer(
                    arguments.get("gradient_accumulation_steps")
                ),
                "train.learning_rate": number(arguments.get("learning_rate")),
                "data.sequence_length": positive_integer(shapes.get("sequence_length")),
            }
        ),
    }
    row = _row("train", part, config)
    return replace(row, settings=settings, metrics=metrics, corrections=corrections)


def _samples(
    part: Mapping[str, Any],
    scenario: Mapping[str, Any],
    config: Mapping[str, Any],
    corrections: list[str],
) -> Iterator[Metric]:
    """Yield samples/s: the report's own is the samples of all steps over the mean of one step."""
    stated = number((part.get("throughput") or {}).get("value"))
    processes = _processes(config)
    steps = _steps(part, scenario, processes)
    if stated is None:
        return
    if steps is None:
        corrections.append(
            f"train.throughput of {stated:,.6g} samples/s was left out: it is inflated by the "
            "number of steps, which the report does not state"
        )
        return
    rate = stated / steps
    corrections.append(
        f"train.throughput of {stated:,.6g} samples/s is inflated by the number of steps, since "
        f"the samples of all steps are divided by the mean of one: it was divided by {steps}"
    )
    corrections.append("it is that of one process: the report takes the mean over processes")
    yield figure("samples_per_second_per_device", rate, "1/s", "device", "higher")
    if processes is not None:
        yield figure("samples_per_second", rate * processes, "1/s", "global", "higher")


def _steps(
    part: Mapping[str, Any], scenario: Mapping[str, Any], processes: int | None
) -> int | None:
    """Return the measured steps, which the configuration states, or else the number of times."""
    most, warmup = positive_integer(scenario.get("max_steps")), number(scenario.get("warmup_steps"))
    if most is not None and warmup is not None and most > warmup:
        return most - int(warmup)
    count = positive_integer((part.get("latency") or {}).get("count"))
    return count if processes == 1 else None


def _processes(config: Mapping[str, Any]) -> int | None:
    """Return the number of processes: torchrun's, or the one that any other launcher starts."""
    launcher = config.get("launcher")
    if not isinstance(launcher, dict):
        return None
    each = positive_integer(launcher.get("nproc_per_node"))
    nodes = str(launcher.get("nnodes", 1))
    return each * int(nodes) if each and nodes.isdigit() else 1 if each is None else None


def _latency(part: Mapping[str, Any]) -> Iterator[Metric]:
    latency = part.get("latency") or {}
    for key, name in LATENCY.items():
        if latency.get(key) is not None:
            yield figure(name, latency[key], "seconds", "device", "lower")


def _memory(part: Mapping[str, Any], corrections: list[str]) -> Iterator[Metric]:
    memory = part.get("memory") or {}
    if memory:
        corrections.append("memory is in MB of 1,000,000 bytes: it was converted to bytes")
    for key, name in MEMORY.items():
        if (megabytes := number(memory.get(key))) is not None:
            scope: Scope = "rank" if key == "max_ram" else "device"
            yield figure(name, megabytes * MEGABYTE, "bytes", scope, "lower")


def _other(name: str, part: Mapping[str, Any], config: Mapping[str, Any]) -> ImportedRow:
    """Return a part of a report that is no training, such as `prefill` or `decode`."""
    corrections: list[str] = []
    metrics = [*_latency(part), *_memory(part, corrections)]
    throughput = part.get("throughput") or {}
    if (rate := number(throughput.get("value"))) is not None:
        unit = one_line(throughput.get("unit", "1/s")).removesuffix("/s")
        metrics.append(figure(f"{unit}_per_second", rate, "1/s", "global", "higher"))
    row = _row(name, part, config)
    return replace(row, settings=_settings(config), metrics=metrics, corrections=corrections)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    backend = config.get("backend") or {}
    dtype = backend.get("torch_dtype") or backend.get("dtype")
    device = backend.get("device")
    return without_none(
        {
            "model.id": backend.get("model"),
            "model.dtype": dtype if dtype in ("float32", "bfloat16", "float16") else None,
            "resources.device": device if device in ("cpu", "cuda") else None,
            "resources.devices": _processes(config),
        }
    )


def _row(name: str, part: Mapping[str, Any], config: Mapping[str, Any]) -> ImportedRow:
    """Return a row without its settings and figures."""
    environment = config.get("environment") or {}
    latency = part.get("latency") or {}
    gpus = environment.get("gpu") or environment.get("gpus") or ""
    device = ", ".join(map(one_line, gpus)) if isinstance(gpus, list) else one_line(gpus)
    return ImportedRow(
        key=name,
        scenario=one_line(config.get("name") or UNKNOWN),
        stack=name,
        series={"step_seconds": raw_numbers(latency.get("values"), "latency.values")},
        machine=device or one_line(environment.get("cpu") or ""),
        seconds=number(latency.get("total")),
    )


FORMAT = Format(
    description="benchmark.json of optimum-benchmark",
    recognizes=recognizes,
    read=read,
    repeats=is_repeated,
)
