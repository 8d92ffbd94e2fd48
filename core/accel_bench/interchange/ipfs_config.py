"""The JSON configuration of the IPFS framework's training benchmarks as native scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_bench.documents.load import Document, load_file
from accel_bench.errors import ImportFileError
from accel_bench.interchange.mapping import Findings, spelled
from accel_bench.interchange.native import NativeScenario, put
from accel_bench.interchange.rows import positive_integer, short_name

SWEEPS = {
    "batch_sizes": "train.micro_batch_size",
    "sequence_lengths": "data.sequence_length",
    "learning_rates": "train.learning_rate",
    "optimizers": "optimizer.use",
    "gradient_accumulation_steps": "train.gradient_accumulation",
}
"""Lists of values, and the swept keys that they become."""

SETTINGS = {"warmup_iterations": "measure.warmup", "training_iterations": "measure.steps"}

OTHERS = ("model_families", "hardware_types", "mixed_precision", "distributed_configs")

TRAINED = "text_generation"
"""The family whose models are causal language models."""

MIXED = "bf16-autocast"


def is_config(path: Path) -> bool:
    """Return whether a file is such a configuration."""
    return path.suffix == ".json" and "model_families" in load_file(path).data


def read_config(path: Path, findings: Findings) -> list[NativeScenario]:
    """Return a scenario for each kind of hardware that there is one for."""
    document = load_file(path)
    config = _respelled(document, findings)
    models = _models(document, config, findings)
    found = []
    for place, hardware in enumerate(config.get("hardware_types") or ["auto"]):
        device = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "auto": "auto"}.get(hardware)
        where = document.where(("hardware_types", place))
        if device is None:
            findings.changed.append(f"{where}: {hardware!r} has no counterpart here: left out")
        else:
            found.append(_scenario(path, config, (hardware, device), models))
    if not found:
        raise ImportFileError(f"{path}: names no hardware that there is a counterpart of")
    return found


def _respelled(document: Document, findings: Findings) -> dict[str, Any]:
    known = {*SWEEPS, *SETTINGS, *OTHERS}
    found = {}
    for written, value in document.data.items():
        if name := spelled(written, known, document.where((written,)), findings):
            found[name] = value
    return found


def _models(document: Document, config: Mapping[str, Any], findings: Findings) -> list[str]:
    """Return the models that can be trained here; families of another task are reported."""
    families = config.get("model_families") or {}
    for family, models in families.items():
        if family != TRAINED:
            where = document.where(("model_families", family))
            findings.changed.append(
                f"{where}: {family!r} was left out with {', '.join(map(str, models))}: only causal "
                "language models are trained here"
            )
    models = [str(model) for model in families.get(TRAINED) or ()]
    if not models:
        raise ImportFileError(f"{document.source}: names no model of the family {TRAINED!r}")
    return models


def _scenario(
    path: Path, config: Mapping[str, Any], hardware: tuple[str, str], models: list[str]
) -> NativeScenario:
    """Return all combinations on one kind of hardware."""
    name, device = hardware
    sweep: dict[str, list[Any]] = {"model.id": models}
    sweep |= {key: list(config[their]) for their, key in SWEEPS.items() if config.get(their)}
    sweep["resources.devices"] = _devices(config)
    data: dict[str, Any] = {}
    put(data, "resources.device", device)
    for their, key in SETTINGS.items():
        if config.get(their) is not None:
            put(data, key, config[their])
    if config.get("mixed_precision") is True:
        put(data, "train.precision", MIXED)
    return NativeScenario(
        name=short_name(f"{path.stem}-{name}"),
        source=f"{path} (IPFS framework, hardware {name})",
        data=data,
        sweep=sweep,
    )


def _devices(config: Mapping[str, Any]) -> list[Any]:
    sizes = (one.get("world_size") for one in config.get("distributed_configs") or ())
    return list(dict.fromkeys(size for size in map(positive_integer, sizes) if size)) or [1]
