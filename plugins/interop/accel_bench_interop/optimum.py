"""Reader of optimum-benchmark's reports: `benchmark.json`, or `benchmark_report.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench.interchange import UNKNOWN, Format, ImportedRow, SourceFile
from accel_bench.result import Metric
from accel_bench_interop import parse

WHOLE, REPORT, CONFIG = "benchmark.json", "benchmark_report.json", "benchmark_config.json"

MEGABYTE = 1_000_000

MEMORY = {
    "max_ram": "peak_resident_memory_bytes",
    "max_global_vram": "peak_driver_memory_bytes",
    "max_process_vram": "peak_process_driver_memory_bytes",
    "max_reserved": "peak_reserved_memory_bytes",
    "max_allocated": "peak_memory_bytes",
}
"""Figures of memory by report key; a report's megabyte has 1,000,000 bytes."""

LATENCY = {
    key: (name, "seconds", "device", "lower")
    for key, name in {
        "mean": "mean_step_seconds",
        "p50": "median_step_seconds",
        "p90": "p90_step_seconds",
        "p95": "p95_step_seconds",
        "p99": "p99_step_seconds",
        "stdev": "step_seconds_standard_deviation",
    }.items()
}
"""Figures of step times, by report key."""

BACKEND: parse.Settings = {
    "model.id": ("model", parse.as_stated),
    "model.dtype": ("dtype", parse.one_of("float32", "bfloat16", "float16")),
    "resources.device": ("device", parse.one_of("cpu", "cuda")),
}
ARGUMENTS = "training_arguments"
TRAINING: parse.Settings = {
    "train.micro_batch_size": ("per_device_train_batch_size", parse.positive_integer),
    "train.gradient_accumulation": ("gradient_accumulation_steps", parse.positive_integer),
    "train.learning_rate": ("learning_rate", parse.number),
    "data.sequence_length": ("sequence_length", parse.positive_integer),
}
"""Key and parser of each setting of a training, by argument or data shape."""


def recognizes(source: SourceFile) -> bool:
    """Return whether a file is a report of optimum-benchmark, with or without configuration."""
    document = source.json or {}
    report = document.get("report", document)
    parts = report.values() if isinstance(report, dict) else ()
    return any(
        isinstance(part, dict) and {"latency", "throughput"} <= part.keys() for part in parts
    )


def is_repeated(source: SourceFile) -> str:
    """Return a sentence if another file in the folder has the same content; else an empty text."""
    if source.path.name == REPORT and source.path.with_name(WHOLE).is_file():
        return f"{WHOLE} beside it is imported, and holds it"
    return ""


def read(source: SourceFile) -> Iterator[ImportedRow]:
    """Yield the row of a report on training, or a row for each part of a report on inference."""
    document = source.json
    report = document.get("report", document)
    config = document.get("config")
    if not config and (beside := source.beside(CONFIG)):
        config = beside.json
    if isinstance(report.get("train"), dict):
        yield _row("train", report["train"], config or {})
        return
    for name, part in report.items():
        if isinstance(part, dict) and isinstance(part.get("latency"), dict):
            yield _row(name, part, config or {})


def _row(name: str, part: Mapping[str, Any], config: Mapping[str, Any]) -> ImportedRow:
    """Return the row of a report's part, such as `train`, `prefill` or `decode`."""
    environment = config.get("environment") or {}
    latency = part.get("latency") or {}
    gpus = environment.get("gpu") or environment.get("gpus") or ""
    device = ", ".join(map(parse.one_line, gpus if isinstance(gpus, list) else [gpus]))
    rates = _samples if name == "train" else _rate
    corrections: list[str] = []
    return ImportedRow(
        key=name,
        scenario=parse.one_line(config.get("name") or UNKNOWN),
        stack=name,
        settings=_settings(config, name == "train"),
        metrics=[
            *parse.figures(latency, LATENCY),
            *_memory(part, corrections),
            *rates(part, config, corrections),
        ],
        corrections=corrections,
        series={"step_seconds": parse.raw_numbers(latency.get("values"), "latency.values")},
        machine=device or parse.one_line(environment.get("cpu") or ""),
        seconds=parse.number(latency.get("total")),
    )


def _settings(config: Mapping[str, Any], trained: bool) -> dict[str, Any]:
    backend = config.get("backend") or {}
    dtype = backend.get("torch_dtype") or backend.get("dtype")
    stated = parse.settings({**backend, "dtype": dtype}, BACKEND)
    if (processes := _processes(config)) is not None:
        stated["resources.devices"] = processes
    if trained:
        scenario = config.get("scenario") or {}
        shapes, arguments = (scenario.get(key) or {} for key in ("dataset_shapes", ARGUMENTS))
        stated |= parse.settings({**shapes, **arguments}, TRAINING)
    return stated


def _samples(
    part: Mapping[str, Any], config: Mapping[str, Any], corrections: list[str]
) -> Iterator[Metric]:
    """Yield samples/s, corrected: the report divides all steps' samples by the mean step time.

    Nothing is yielded if the number of steps is unknown. Each correction is added to `corrections`.
    """
    stated = parse.number((part.get("throughput") or {}).get("value"))
    processes = _processes(config)
    steps = _steps(part, config.get("scenario") or {}, processes)
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
    yield parse.figure("samples_per_second_per_device", rate, "1/s", "device", "higher")
    if processes is not None:
        yield parse.figure("samples_per_second", rate * processes, "1/s", "global", "higher")


def _steps(
    part: Mapping[str, Any], scenario: Mapping[str, Any], processes: int | None
) -> int | None:
    """Return the number of measured steps, or None if it is unknown.

    `scenario` is the configuration's section that may state it. Else the latencies in `part` of
    the report are counted, but only for one process.
    """
    most = parse.positive_integer(scenario.get("max_steps"))
    warmup = parse.number(scenario.get("warmup_steps"))
    if most is not None and warmup is not None and most > warmup:
        return most - int(warmup)
    count = parse.positive_integer((part.get("latency") or {}).get("count"))
    return count if processes == 1 else None


def _processes(config: Mapping[str, Any]) -> int | None:
    """Return torchrun's number of processes, 1 for another launcher, or None if unknown."""
    launcher = config.get("launcher")
    if not isinstance(launcher, dict):
        return None
    each = parse.positive_integer(launcher.get("nproc_per_node"))
    nodes = str(launcher.get("nnodes", 1))
    return each * int(nodes) if each and nodes.isdigit() else 1 if each is None else None


def _memory(part: Mapping[str, Any], corrections: list[str]) -> Iterator[Metric]:
    memory = part.get("memory") or {}
    if memory:
        corrections.append("memory is in MB of 1,000,000 bytes: it was converted to bytes")
    for key, name in MEMORY.items():
        if (megabytes := parse.number(memory.get(key))) is not None:
            scope: parse.Scope = "rank" if key == "max_ram" else "device"
            yield parse.figure(name, megabytes * MEGABYTE, "bytes", scope, "lower")


def _rate(
    part: Mapping[str, Any], config: Mapping[str, Any], corrections: list[str]
) -> Iterator[Metric]:
    """Yield the throughput of a part of the report other than training, in the stated unit."""
    throughput = part.get("throughput") or {}
    if (rate := parse.number(throughput.get("value"))) is not None:
        unit = parse.one_line(throughput.get("unit", "1/s")).removesuffix("/s")
        yield parse.figure(f"{unit}_per_second", rate, "1/s", "global", "higher")


FORMAT = Format(
    description="benchmark.json of optimum-benchmark",
    recognizes=recognizes,
    read=read,
    repeats=is_repeated,
)
