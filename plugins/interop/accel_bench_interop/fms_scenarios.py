"""Scenario files of fms-acceleration's benchmark as native scenarios, with the same experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_bench.documents.load import Document, load_file
from accel_bench.errors import ImportFileError, did_you_mean
from accel_bench.scenario.layers import set_path
from accel_bench_interop.figures import positive_integer, short_name
from accel_bench_interop.fms_stacks import Uses, read_stacks
from accel_bench_interop.mapping import (
    Findings,
    Mapped,
    apply_rules,
    read_mapping,
    spelled,
)
from accel_bench_interop.native import NativeScenario

TABLE = "fms-acceleration"

PLAIN = "baseline"
"""Stack of an experiment without an acceleration."""

KEYS = frozenset({"name", "framework_config", "arguments", "slow"})
"""Keys of a scenario."""

SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Arguments that make the batch size together with the matrix's."""

MODELS = "model_name_or_path"


@dataclass(frozen=True)
class Matrix:
    """What the benchmark program multiplies every scenario with; the values are its defaults."""

    batch_sizes: Sequence[int] = (4, 8)
    """Samples in a step over all devices, without accumulation."""

    devices: Sequence[int] = (1, 2)
    lengths: Sequence[int] = (4096,)


def read_folder(
    folder: Path, matrix: Matrix, findings: Findings
) -> tuple[list[NativeScenario], dict[str, Uses]]:
    """Return the scenarios of a folder, and their named stacks. Raises ImportFileError."""
    table = read_mapping(TABLE)
    stacks = read_stacks(folder, table, findings)
    files = sorted(folder.rglob("scenarios*.yaml"))
    if not files:
        raise ImportFileError(f"{folder}: there is no scenarios.yaml in it")
    scenarios: dict[str, NativeScenario] = {}
    for file in files:
        for one in _File(file, folder, stacks, table, findings).scenarios(matrix):
            name = one.name if one.name not in scenarios else f"{file.stem}-{one.name}"
            scenarios[name] = one.renamed(short_name(name))
    return [*scenarios.values()], stacks


class _File:
    """One file of scenarios, with the defaults beside it."""

    def __init__(
        self,
        path: Path,
        folder: Path,
        stacks: Mapping[str, Uses],
        table: Mapped,
        findings: Findings,
    ) -> None:
        self.document = load_file(path)
        self.stacks, self.table, self.findings = stacks, table, findings
        defaults = path.with_name("defaults.yaml")
        self.defaults = load_file(defaults) if defaults.is_file() else Document("", {})
        if not defaults.is_file():
            findings.wrong.append(f"{path}: there is no defaults.yaml beside it")
        self.parallel = _parallel(folder, table, findings)

    def scenarios(self, matrix: Matrix) -> list[NativeScenario]:
        """Return every scenario of the file."""
        entries = self.document.data.get("scenarios")
        if not isinstance(entries, list):
            raise ImportFileError(f"{self.document.source}: expected a list below `scenarios`")
        for key in self.document.data.keys() - {"scenarios"}:
            self.findings.drop(key, "the data of a scenario are tokens")
        return [self._scenario(place, entry, matrix) for place, entry in enumerate(entries)]

    def _scenario(self, place: int, entry: Any, matrix: Matrix) -> NativeScenario:
        where = self.document.where(("scenarios", place))
        entry = self._respelled(place, entry) if isinstance(entry, dict) else {}
        if not isinstance(entry.get("arguments"), dict):
            raise ImportFileError(f"{where}: expected a scenario with `name` and `arguments`")
        arguments, places = self._arguments(place, entry)
        models = arguments.pop(MODELS, None)
        if models is None:
            raise ImportFileError(f"{where}: no argument {MODELS} names a model")
        sizes = {key: arguments.pop(key, None) for key in SIZES}
        rules = self.table.arguments
        settings = apply_rules(arguments, rules, places.__getitem__, self.findings)
        data: dict[str, Any] = {}
        for key, value in {**self.table.settings, **settings}.items():
            set_path(data, key.split("."), value)
        return NativeScenario(
            name=short_name(str(entry.get("name") or f"scenario-{place}")),
            source=f"{where} ({TABLE})",
            slow=bool(entry.get("slow")),
            data=data,
            stacks=self._stacks(place, entry),
            sweep={
                "model.id": models if isinstance(models, list) else [models],
                "data.sequence_length": list(matrix.lengths),
            },
            zip=self._sizes(sizes, matrix),
        )

    def _respelled(self, place: int, entry: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for written, value in entry.items():
            where = self.document.where(("scenarios", place, written))
            if name := spelled(written, KEYS, where, self.findings):
                found[name] = value
        return found

    def _arguments(
        self, place: int, entry: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a scenario's arguments over the defaults, by name, and the place of each."""
        known = {*self.table.arguments, *SIZES, MODELS}
        found: dict[str, Any] = {}
        places: dict[str, str] = {}
        own = ("scenarios", place, "arguments")
        for document, above, given in (
            (self.defaults, (), self.defaults.data),
            (self.document, own, entry["arguments"]),
        ):
            for written, value in given.items():
                where = document.where((*above, written))
                if name := spelled(written, known, where, self.findings):
                    found[name], places[name] = value, where
        return found, places

    def _stacks(self, place: int, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stacks of a scenario; a short name that leads nowhere is reported."""
        names = entry.get("framework_config")
        if names is None:
            return {PLAIN: []}
        found: dict[str, Any] = {}
        for number, name in enumerate(names if isinstance(names, list) else [names]):
            where = self.document.where(("scenarios", place, "framework_config", number))
            if name is None:
                found[PLAIN] = []
            elif name in self.stacks:
                found[name] = name
            else:
                self.findings.wrong.append(
                    f"{where}: {name!r} is the shortname of no configuration that is there, so "
                    f"nothing is run with it{did_you_mean(str(name), self.stacks)}"
                )
        if not found:
            self.findings.wrong.append(
                f"{self.document.where(('scenarios', place))}: no configuration of this scenario "
                "is known, so it has no experiment"
            )
        return found

    def _sizes(self, arguments: Mapping[str, Any], matrix: Matrix) -> dict[str, list[Any]]:
        """Return batch sizes by number of devices, worked out as the benchmark program does."""
        micro, accumulation = (positive_integer(arguments.get(key)) for key in SIZES)
        columns: dict[str, list[Any]] = {
            "train.micro_batch_size": [],
            "train.gradient_accumulation": [],
            "resources.devices": [],
        }
        if self.parallel:
            columns["parallel.use"] = []
        for size in matrix.batch_sizes:
            for devices in matrix.devices:
                of_device = micro or size // devices
                if of_device == 0:
                    self.findings.changed.append(
                        f"a batch of {size} on {devices} devices leaves nothing for each of them, "
                        "and was left out"
                    )
                    continue
                steps = accumulation or (max(1, size // devices // micro) if micro else 1)
                parallel = self.parallel if devices > 1 else "none"
                for column, value in zip(
                    columns.values(), (of_device, steps, devices, parallel), strict=False
                ):
                    column.append(value)
        return columns


def _parallel(folder: Path, table: Mapped, findings: Findings) -> str | None:
    """Return what shares the work of several devices, by accelerate's file."""
    file = next(iter(sorted(folder.rglob("accelerate.yaml"))), None)
    if file is None:
        return None
    document = load_file(file)
    kind = document.data.get("distributed_type")
    found = table.parallel.get(str(kind))
    if found is None:
        findings.changed.append(
            f"{document.where(('distributed_type',))}: {kind!r} has no counterpart here; several "
            "devices use the default"
        )
    return found
