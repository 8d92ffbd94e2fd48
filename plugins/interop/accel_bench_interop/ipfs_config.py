"""Conversion of the JSON configuration of the IPFS framework's training benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_bench.documents.load import ParsedFile, load_file
from accel_bench.errors import ImportFileError
from accel_bench_interop.mapping import Findings, MappingTable, read_mapping, respelled
from accel_bench_interop.parse import positive_integer, short_name
from accel_bench_interop.scenario_writer import NativeScenario

SWEEPS = {
    "batch_sizes": "train.micro_batch_size",
    "sequence_lengths": "data.sequence_length",
    "learning_rates": "train.learning_rate",
    "optimizers": "optimizer.use",
    "gradient_accumulation_steps": "train.gradient_accumulation",
}
"""Swept scenario settings, by the configuration's key of a list of values."""

SETTINGS = {"warmup_iterations": "measure.warmup", "training_iterations": "measure.steps"}

OTHERS = ("model_families", "hardware_types", "mixed_precision", "distributed_configs")

TABLE = "ipfs"

WITHOUT_LENGTH = ("vision",)
"""Model families whose samples have no length."""

DEVICE, DEVICES = "resources.device", ("auto", "cpu", "cuda", "rocm", "mps")

MIXED = "bf16-autocast"

ON_GPUS = ("cuda", "rocm")

BACKENDS = {
    "gloo": ("cpu", *ON_GPUS),
    "mpi": ("cpu", *ON_GPUS),
    "nccl": ON_GPUS,
    "ucc": ("cpu", *ON_GPUS),
}
"""Devices that each backend of process groups serves; other devices use their default."""


def read_config(path: Path, findings: Findings) -> list[NativeScenario]:
    """Return a scenario for each supported model family on each supported kind of hardware.

    Ignored and unsupported settings are added to `findings`. Raises ImportFileError if no family or
    no hardware is supported.
    """
    document = load_file(path)
    known = {*SWEEPS, *SETTINGS, *OTHERS}
    placed = respelled(document, (), document.data, known, findings)
    config = {key: value for key, (value, _) in placed.items()}
    table = read_mapping(TABLE)
    families = _families(document, config, (table, findings))
    devices = []
    for place, hardware in enumerate(config.get("hardware_types") or ["auto"]):
        if hardware in DEVICES:
            devices.append(hardware)
        else:
            where = document.where(("hardware_types", place))
            findings.changed.append(f"{where}: {hardware!r} has no counterpart here: left out")
    if not devices:
        raise ImportFileError(f"{path}: names no hardware that there is a counterpart of")
    return [
        _scenario(
            path, config, (family, models), table.families[family] | {DEVICE: device}, findings
        )
        for family, models in families.items()
        for device in devices
    ]


def _families(
    document: ParsedFile, config: Mapping[str, Any], into: tuple[MappingTable, Findings]
) -> dict[str, list[str]]:
    """Return the names of the models that can be trained, by family.

    `into` has the table of supported families, and the findings, to which other families are added.
    Raises ImportFileError if no model can be trained.
    """
    (table, findings), trained = into, {}
    for family, models in (config.get("model_families") or {}).items():
        names = [str(model) for model in models or ()]
        where = document.where(("model_families", family))
        if family not in table.families:
            findings.changed.append(
                f"{where}: {family!r} was left out with {', '.join(names)}: the file does not say "
                "which task these models are trained for"
            )
        elif names:
            trained[family] = names
            if family in WITHOUT_LENGTH and config.get("sequence_lengths"):
                findings.drop("sequence_lengths", f"samples of {family} have no length")
    if not trained:
        raise ImportFileError(
            f"{document.source}: no key of a known training program is in it (axolotl: base_model; "
            "LLaMA-Factory: stage; TRL: model_name_or_path; TrainingArguments: "
            "per_device_train_batch_size), and it names no model of a family that is trained here "
            f"({', '.join(table.families)})"
        )
    return trained


def _scenario(
    path: Path,
    config: Mapping[str, Any],
    family: tuple[str, list[str]],
    settings: Mapping[str, Any],
    findings: Findings,
) -> NativeScenario:
    """Return a scenario of one model family on one kind of hardware, with all swept values.

    `config` has the values of the file `path` by known key. `family` has the name and models of the
    family. `settings` are the family's settings by dotted key, with the device.
    """
    (name, models), device = family, settings[DEVICE]
    left_out = {"sequence_lengths"} if name in WITHOUT_LENGTH else set()
    processes, backends = _processes(config, device, findings)
    sweep: dict[str, list[Any]] = {"model.id": models}
    sweep |= {
        key: list(config[their])
        for their, key in SWEEPS.items()
        if config.get(their) and their not in left_out
    }
    moving: dict[str, list[Any]] = {
        "resources.devices": [*processes],
        "resources.backend": [*backends],
    }
    together = len({*backends}) > 1
    if not together:
        sweep["resources.devices"] = processes
    own = {key: config[their] for their, key in SETTINGS.items() if config.get(their) is not None}
    if config.get("mixed_precision") is True:
        own["train.precision"] = MIXED
    if not together and backends[0]:
        own["resources.backend"] = backends[0]
    return NativeScenario(
        name=short_name(f"{path.stem}-{name}-{device}"),
        source=f"{path} (IPFS framework, {name} on {device})",
        settings={**settings, **own},
        sweep=sweep,
        zip=moving if together else {},
    )


def _processes(
    config: Mapping[str, Any], device: str, findings: Findings
) -> tuple[list[int], list[str | None]]:
    """Return the numbers of processes and their backends; None is the device's default backend.

    Unsupported backends are added to `findings`. Without a stated number, there is one process.
    """
    distinct: dict[tuple[int, str | None], None] = {}
    for entry in config.get("distributed_configs") or ():
        if size := positive_integer(entry.get("world_size")):
            distinct[size, _backend(entry.get("backend"), device, findings)] = None
    pairs = [*distinct] or [(1, None)]
    return [size for size, _ in pairs], [backend for _, backend in pairs]


def _backend(written: Any, device: str, findings: Findings) -> str | None:
    """Return the backend `written` in a file, or None for the device's default backend.

    A backend that `device` does not support is added to `findings`, and gives None.
    """
    if written is None:
        return None
    name = str(written)
    if device in BACKENDS.get(name, ()):
        return name
    why = (
        f"resources.backend has no {name!r} on {device}, which takes its own"
        if name in BACKENDS
        else f"{name!r} is no backend of torch's process groups: the device takes its own"
    )
    findings.drop("distributed_configs.backend", why)
    return None
