"""Reader of the IPFS framework's training benchmarks: JSON by family, model and hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accel_bench.interchange import Format, ImportedRow, SourceFile
from accel_bench.result import Metric, Status
from accel_bench_interop import parse
from accel_bench_interop.ipfs_writer import write

WORDS = {"min": "smallest", "max": "largest", "mean": "mean", "std": "standard_deviation"}
"""Words in names of figures, by the file's key of a statistic."""

SETTINGS: parse.Settings = {
    "train.micro_batch_size": ("batch_size", parse.positive_integer),
    "train.gradient_accumulation": ("gradient_accumulation_steps", parse.positive_integer),
}
"""Key and parser of each scenario setting that a run of the tree states."""

TAGGED: parse.Settings = {
    "resources.device": ("hardware", parse.one_of("cpu", "cuda", "rocm", "mps")),
    "train.micro_batch_size": ("batch", parse.positive_integer),
    "train.gradient_accumulation": ("accum", parse.positive_integer),
    "data.sequence_length": ("seq", parse.positive_integer),
    "train.learning_rate": ("lr", parse.number),
    "optimizer.use": ("opt", parse.as_stated),
}
"""Key and parser of each default setting, from the path and the tag of a run in the tree."""

FIGURES = {
    "throughput": ("samples_per_second", "1/s", "global", "higher"),
    "loss_convergence_rate": ("loss_change_per_step", "1", "global", "lower"),
}
"""Name, unit, scope and better direction of figures, by key of a run in the tree."""

OF_MODEL = {"model_load_time": ("model_load_seconds", "seconds", "global", "lower")}

THROUGHPUT = "throughput is in samples/s, of all devices: batch_size / training_time.mean"
MEMORY = "the file does not state the unit of memory_usage: the numbers are as they stand"
SUMMARY = "performance_summary was left out: it is computed from these rows"


def recognizes(source: SourceFile) -> bool:
    """Return whether a file has the tree of the IPFS framework's training benchmarks."""
    document = source.json or {}
    return isinstance(document.get("benchmarks"), dict) and "system_info" in document


def read(source: SourceFile) -> Iterator[ImportedRow]:
    """Yield a row for each run in the tree, and for each model that has no run on some hardware."""
    document = source.json
    for family, models in document["benchmarks"].items():
        for model, devices in models.items():
            for hardware, tree in devices.items():
                runs = tree.get("training_results") or {"no configuration": tree}
                for tag, run in runs.items():
                    where = [parse.one_line(part) for part in (family, model, hardware, tag)]
                    yield _row(where, run, tree, document)


def _row(
    where: Sequence[str], run: Mapping[str, Any], tree: Mapping[str, Any], found: Mapping[str, Any]
) -> ImportedRow:
    family, model, hardware, tag = where
    system = found["system_info"] or {}
    status, reasons = _ending(run)
    corrections = [SUMMARY] if "performance_summary" in tree else []
    facts = (hardware, system.get("processor"), system.get("platform"))
    return ImportedRow(
        key="/".join(where),
        scenario=family,
        stack=tag,
        settings={"model.id": model, **_settings(hardware, tag, run)},
        metrics=list(_figures(run, tree, corrections)),
        status=status,
        reasons=reasons,
        corrections=corrections,
        machine=", ".join(parse.one_line(fact) for fact in facts if fact),
        started_at=parse.utc_time(parse.one_line(found.get("timestamp") or ""), corrections),
    )


def _settings(hardware: str, tag: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return scenario settings by dotted key, read from a run's hardware, key (`tag`) and JSON."""
    parts = tag.split("_")
    tagged = dict(zip(parts[::2], parts[1::2], strict=False))
    alone = {} if run.get("distributed", True) else {"resources.devices": 1}
    from_tag = parse.settings({**tagged, "hardware": hardware}, TAGGED)
    return from_tag | parse.settings(run, SETTINGS) | alone


def _figures(
    run: Mapping[str, Any], tree: Mapping[str, Any], corrections: list[str]
) -> Iterator[Metric]:
    yield from _statistics(run.get("training_time"), "{}_step_seconds", "seconds", corrections)
    yield from _statistics(run.get("loss"), "{}_loss", "1", corrections)
    memory = run.get("memory_usage")
    if memory:
        corrections.append(MEMORY)
    yield from _statistics(memory, "{}_memory_of_unstated_unit", "unstated", corrections)
    if run.get("throughput") is not None:
        corrections.append(THROUGHPUT)
    yield from parse.figures(run, FIGURES)
    yield from parse.figures(tree, OF_MODEL)
    if run.get("mixed_precision") is not None:
        yield parse.figure("mixed_precision", int(bool(run["mixed_precision"])), "1")


def _statistics(found: object, name: str, unit: str, corrections: list[str]) -> Iterator[Metric]:
    """Yield a metric for each statistic of a quantity, such as its mean.

    `found` has the statistics by the file's key. `name` is the metrics' name, in which `{}` stands
    for the word of the statistic. A minimum above the maximum is added to `corrections`.
    """
    if not isinstance(found, Mapping):
        return
    low, high = parse.number(found.get("min")), parse.number(found.get("max"))
    if low is not None and high is not None and low > high:
        shown = name.format("").strip("_").replace("_", " ")
        corrections.append(
            f"{shown}: the file's min {low:g} is above its max {high:g}; both are as they stand"
        )
    for key, word in WORDS.items():
        if found.get(key) is not None:
            yield parse.figure(name.format(word), found[key], unit)


def _ending(run: Mapping[str, Any]) -> tuple[Status, tuple[str, ...]]:
    status = parse.one_line(run.get("status", "completed"))
    error = parse.one_line(run.get("error") or run.get("error_message") or "")[:500]
    if status == "completed" and not error:
        if not run.get("training_time") and "throughput" not in run:
            return Status.FAILED, ("inferred, the file states no reason: it left no figure",)
        return Status.OK, ()
    if "out of memory" in error.lower():
        return Status.OOM, (error,)
    reason = error or f"the file states the status {status!r} and no reason"
    return Status.FAILED, (reason,)


FORMAT = Format(
    description="JSON tree of the IPFS framework's training benchmarks",
    recognizes=recognizes,
    read=read,
    write=write,
)
