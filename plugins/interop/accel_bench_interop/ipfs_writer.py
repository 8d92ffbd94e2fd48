"""Runs as the JSON tree of the IPFS framework's training guide: family, model, hardware, run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from accel_bench.analysis.metrics.breakdown import start_up
from accel_bench.analysis.tables.listing import provenance_of
from accel_bench.result import Result
from accel_bench_interop.exported_runs import ExportedRun

FAMILIES = {
    "causal-lm": "text_generation",
    "embedding": "embedding",
    "image-classification": "vision",
    "image-text": "multimodal",
    "image-text-to-text": "multimodal",
    "ctc": "audio",
    "speech-pretraining": "audio",
    "speech-seq2seq": "audio",
}
"""The guide's family of models by task; another task is its own family."""

MIB = 2**20

Leaf = dict[str, Any]
"""One run of the tree."""

Leaves = dict[str, Leaf]
"""Runs of one model on one kind of hardware, by tag."""


def write(results: Iterable[Result]) -> Iterator[str]:
    """Yield the whole tree at once; a run that did not complete has its error."""
    tree: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    newest, system = "", ""
    for run in map(ExportedRun, results):
        newest = max(newest, run.result.started_at)
        system = system or run.result.provenance.machine or run.device
        scenario = run.result.experiment.scenario
        family = FAMILIES.get(scenario.task.use, scenario.task.use)
        place = tree[family][str(run.setting("model.id"))]
        branch = place.setdefault(_hardware(run), {"status": "completed", "training_results": {}})
        leaves = branch["training_results"]
        tag = _tag(run)
        # Another session, dtype or number of devices has the same tag.
        leaves[tag if tag not in leaves else f"{tag}_run_{run.result.run_id}"] = _leaf(run)
        if (loaded := _load_seconds(run)) is not None:
            branch["model_load_time"] = loaded
    for models in tree.values():
        for places in models.values():
            for branch in places.values():
                leaves = branch["training_results"]
                ended = {leaf["status"] for leaf in leaves.values()}
                branch["status"] = "completed" if "completed" in ended else "failed"
                branch["performance_summary"] = _summary(leaves)
    document = {"timestamp": newest, "system_info": {"processor": system}, "benchmarks": tree}
    yield json.dumps(document, indent=2) + "\n"


def _hardware(run: ExportedRun) -> str:
    """Return the kind of hardware that ran, else the one that was asked for."""
    first = run.result.ranks[0].device if run.result.ranks else None
    return first.type if first else str(run.setting("resources.device"))


def _tag(run: ExportedRun) -> str:
    """Return the guide's name of a configuration, with the stack and the round behind it."""
    known = {
        "batch": run.setting("train.micro_batch_size"),
        "seq": run.setting("data.sequence_length"),
        "lr": run.setting("train.learning_rate"),
        "opt": run.setting("optimizer.use"),
        "accum": run.setting("train.gradient_accumulation"),
        "stack": run.result.experiment.stack.name,
        "round": run.result.round,
    }
    return "_".join(f"{name}_{value}" for name, value in known.items() if value is not None)


def _leaf(run: ExportedRun) -> Leaf:
    result = run.result
    leaf: Leaf = {
        "status": "completed" if result.status.completed else "failed",
        "provenance": provenance_of(result),
        "batch_size": run.setting("train.micro_batch_size"),
        "gradient_accumulation_steps": run.setting("train.gradient_accumulation"),
        "effective_batch_size": run.setting("train.global_batch_size"),
        "mixed_precision": run.setting("train.precision") not in (None, "as-is"),
        "distributed": (run.devices or 1) > 1,
    }
    if not result.status.completed:
        return {**leaf, "error": "; ".join(result.reasons) or result.status.value}
    leaf["throughput"] = run.figures.get("samples_per_second")
    if (peak := run.largest_peak) is not None:
        leaf["memory_usage"] = {"max": peak / MIB, "unit": "MiB"}
    if run.speed is None:
        return leaf
    losses = [loss for loss in run.speed.losses if loss is not None]
    leaf["training_time"] = _statistics(run.speed.step_seconds)
    leaf["loss"] = _statistics(losses)
    if len(losses) > 1:
        leaf["loss_convergence_rate"] = (losses[-1] - losses[0]) / (len(losses) - 1)
    return leaf


def _load_seconds(run: ExportedRun) -> float | None:
    found = start_up([run.result])
    return found.load_model_seconds if found else None


def _statistics(values: Sequence[float]) -> dict[str, float] | None:
    """Return the smallest, largest and mean value and the deviation; None without any."""
    if not values:
        return None
    deviation = stdev(values) if len(values) > 1 else 0.0
    return {"min": min(values), "max": max(values), "mean": fmean(values), "std": deviation}


def _summary(leaves: Leaves) -> dict[str, Any]:
    """Return the guide's summary of completed runs, with the mean step by each setting."""
    seconds = {tag: leaf["training_time"]["mean"] for tag, leaf in leaves.items() if _timed(leaf)}
    rates = [leaves[tag]["throughput"] for tag in seconds]
    found: dict[str, Any] = {"training_time": _statistics(list(seconds.values()))}
    if found["training_time"] is None:
        return {}
    groups: Mapping[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for tag, mean in seconds.items():
        parts = tag.split("_")
        named = dict(zip(parts[::2], parts[1::2], strict=False))
        precision = "mixed_precision" if leaves[tag]["mixed_precision"] else "full_precision"
        for key, value in {**named, "mixed_precision": precision}.items():
            groups[key][value].append(mean)
    for name, key in (
        ("by_batch_size", "batch"),
        ("by_sequence_length", "seq"),
        ("by_learning_rate", "lr"),
        ("by_optimizer", "opt"),
        ("by_mixed_precision", "mixed_precision"),
    ):
        found["training_time"][name] = {k: fmean(v) for k, v in groups[key].items()}
    return {**found, "throughput": _statistics([rate for rate in rates if rate is not None])}


def _timed(leaf: Leaf) -> bool:
    return bool(leaf.get("training_time"))
