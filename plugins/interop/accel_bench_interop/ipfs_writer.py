"""Writer of runs as the JSON tree of the IPFS framework: family, model, hardware, run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
"""Model family of the guide by task; any other task is a family of its own."""

MIB = 2**20

Leaf = dict[str, Any]
"""JSON object of one run in the tree."""


@dataclass
class Branch:
    """Runs of one model on one kind of hardware."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    """Runs by tag."""

    settings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that the tag of each run names, by tag."""

    load_seconds: float | None = None
    """Seconds of loading the model, of the last run that knows them."""

    def add(self, run: ExportedRun) -> None:
        """Add a run under a tag made of its settings, and of its id if that tag is in use."""
        known = _settings(run)
        tag = "_".join(f"{name}_{value}" for name, value in known.items())
        tag = tag if tag not in self.leaves else f"{tag}_run_{run.result.run_id}"
        self.leaves[tag], self.settings[tag] = _leaf(run), known
        if (loaded := _load_seconds(run)) is not None:
            self.load_seconds = loaded

    def document(self) -> dict[str, Any]:
        """Return the branch as JSON of the IPFS framework, `completed` if one of its runs is."""
        ended = {leaf["status"] for leaf in self.leaves.values()}
        loaded = {} if self.load_seconds is None else {"model_load_time": self.load_seconds}
        return {
            "status": "completed" if "completed" in ended else "failed",
            "training_results": self.leaves,
            **loaded,
            "performance_summary": _summary(self),
        }


def write(results: Iterable[Result]) -> Iterator[str]:
    """Yield the whole tree as one text; a run that did not complete has an error message."""
    tree: dict[str, dict[str, dict[str, Branch]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(Branch))
    )
    newest, system = "", ""
    for run in map(ExportedRun, results):
        newest = max(newest, run.result.started_at)
        system = system or run.result.provenance.machine or run.device
        scenario = run.result.experiment.scenario
        family = FAMILIES.get(scenario.task.use, scenario.task.use)
        tree[family][str(run.setting("model.id"))][_hardware(run)].add(run)
    document = {"timestamp": newest, "system_info": {"processor": system}, "benchmarks": tree}
    yield json.dumps(document, indent=2, default=Branch.document) + "\n"


def _hardware(run: ExportedRun) -> str:
    """Return the device type on which a run took place, or else the requested device type."""
    first = run.result.ranks[0].device if run.result.ranks else None
    return first.type if first else str(run.setting("resources.device"))


def _settings(run: ExportedRun) -> dict[str, Any]:
    """Return the known values of which a run's tag is made, by the IPFS framework's short names."""
    known = {
        "batch": run.setting("train.micro_batch_size"),
        "seq": run.setting("data.sequence_length"),
        "lr": run.setting("train.learning_rate"),
        "opt": run.setting("optimizer.use"),
        "accum": run.setting("train.gradient_accumulation"),
        "stack": run.result.experiment.stack.name,
        "round": run.result.round,
    }
    return {name: value for name, value in known.items() if value is not None}


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
    started = start_up([run.result])
    return started.load_model_seconds if started else None


def _statistics(values: Sequence[float]) -> dict[str, float] | None:
    """Return minimum, maximum, mean and standard deviation of values; None without values."""
    if not values:
        return None
    deviation = stdev(values) if len(values) > 1 else 0.0
    return {"min": min(values), "max": max(values), "mean": fmean(values), "std": deviation}


def _summary(branch: Branch) -> dict[str, Any]:
    """Return the IPFS framework's summary of a branch's completed runs; empty if none completed.

    It has statistics of step seconds and throughput, and the mean step seconds of the runs with
    each value of a setting, such as each batch size.
    """
    timed = {tag: leaf for tag, leaf in branch.leaves.items() if leaf.get("training_time")}
    seconds = {tag: leaf["training_time"]["mean"] for tag, leaf in timed.items()}
    summary: dict[str, Any] = {"training_time": _statistics(list(seconds.values()))}
    if summary["training_time"] is None:
        return {}
    groups: Mapping[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for tag, leaf in timed.items():
        precision = "mixed_precision" if leaf["mixed_precision"] else "full_precision"
        for key, value in {**branch.settings[tag], "mixed_precision": precision}.items():
            groups[key][str(value)].append(seconds[tag])
    for name, key in (
        ("by_batch_size", "batch"),
        ("by_sequence_length", "seq"),
        ("by_learning_rate", "lr"),
        ("by_optimizer", "opt"),
        ("by_mixed_precision", "mixed_precision"),
    ):
        summary["training_time"][name] = {k: fmean(v) for k, v in groups[key].items()}
    rates = [leaf["throughput"] for leaf in timed.values() if leaf["throughput"] is not None]
    return {**summary, "throughput": _statistics(rates)}
