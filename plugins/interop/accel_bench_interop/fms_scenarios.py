"""Conversion of scenarios and sample configurations of fms-acceleration's benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.documents.load import Location, ParsedFile, load_file
from accel_bench.errors import ImportFileError, did_you_mean
from accel_bench.scenario.draft import set_path
from accel_bench_interop.mapping import (
    Findings,
    MappingTable,
    Placed,
    Stanza,
    apply_rules,
    read_mapping,
    respelled,
    spelled,
)
from accel_bench_interop.parse import positive_integer, short_name
from accel_bench_interop.scenario_writer import NativeScenario

TABLE = "fms-acceleration"

CONTENTS = "CONTENTS.yaml"

Uses = list[JsonValue]
"""Plugins of a stack with their options, as in a scenario file."""

PLAIN = "baseline"
"""Name of the stack without an acceleration."""

KEYS = frozenset({"name", "framework_config", "arguments", "slow"})
"""Known keys of a scenario in the benchmark's files."""

SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Arguments that determine the batch size, together with `SweepMatrix.batch_sizes`."""

MODELS = "model_name_or_path"


@dataclass(frozen=True)
class SweepMatrix:
    """Values that are combined with every scenario, by default those of the benchmark itself."""

    batch_sizes: Sequence[int] = (4, 8)
    """Samples per step over all devices, without accumulation."""

    devices: Sequence[int] = (1, 2)
    lengths: Sequence[int] = (4096,)

    parallel: str | None = None
    """Parallel strategy in accelerate's configuration file; None for the default strategy."""


def read_folder(
    folder: Path, matrix: SweepMatrix, findings: Findings
) -> tuple[list[NativeScenario], dict[str, Uses]]:
    """Return the scenarios in a folder of the benchmark, and the plugins of each stack by name.

    Each scenario is combined with the settings of `matrix`. Problems are added to `findings`.
    Raises ImportFileError if `scenarios.yaml` is missing, or if a file has another form.
    """
    table = read_mapping(TABLE)
    stacks = _read_stacks(folder, table, findings)
    files = sorted(folder.rglob("scenarios*.yaml"))
    if not files:
        raise ImportFileError(f"{folder}: there is no scenarios.yaml in it")
    matrix = replace(matrix, parallel=_parallel(folder, table, findings))
    scenarios: dict[str, NativeScenario] = {}
    for file in files:
        for scenario in _File(file, stacks, table, findings).scenarios(matrix):
            name = (
                scenario.name if scenario.name not in scenarios else f"{file.stem}-{scenario.name}"
            )
            scenarios[name] = replace(scenario, name=short_name(name))
    return [*scenarios.values()], stacks


class _File:
    """A file of the benchmark's scenarios, with the default arguments of `defaults.yaml`."""

    def __init__(
        self, path: Path, stacks: Mapping[str, Uses], table: MappingTable, findings: Findings
    ) -> None:
        self.document = load_file(path)
        self.stacks, self.table, self.findings = stacks, table, findings
        self.known = {*table.arguments, *SIZES, MODELS}
        defaults = path.with_name("defaults.yaml")
        if not defaults.is_file():
            findings.wrong.append(f"{path}: there is no defaults.yaml beside it")
        parsed = load_file(defaults) if defaults.is_file() else ParsedFile("", {})
        self.defaults = respelled(parsed, (), parsed.data, self.known, findings)

    def scenarios(self, matrix: SweepMatrix) -> list[NativeScenario]:
        """Return the file's scenarios, each converted and combined with the values of `matrix`."""
        entries = self.document.data.get("scenarios")
        if not isinstance(entries, list):
            raise ImportFileError(f"{self.document.source}: expected a list below `scenarios`")
        for key in self.document.data.keys() - {"scenarios"}:
            self.findings.drop(key, "the data of a scenario are tokens")
        return [self._scenario(place, entry, matrix) for place, entry in enumerate(entries)]

    def _scenario(self, place: int, entry: Any, matrix: SweepMatrix) -> NativeScenario:
        here = ("scenarios", place)
        where = self.document.where(here)
        given = entry if isinstance(entry, dict) else {}
        placed = respelled(self.document, here, given, KEYS, self.findings)
        values = {key: value for key, (value, _) in placed.items()}
        own = values.get("arguments")
        if not isinstance(own, dict):
            raise ImportFileError(f"{where}: expected a scenario with `name` and `arguments`")
        own = respelled(self.document, (*here, "arguments"), own, self.known, self.findings)
        arguments: Placed = {**self.defaults, **own}
        models, *sizes = (arguments.pop(key, (None, ""))[0] for key in (MODELS, *SIZES))
        if models is None:
            raise ImportFileError(f"{where}: no argument {MODELS} names a model")
        settings = apply_rules(arguments, self.table.arguments, self.findings)
        return NativeScenario(
            name=short_name(str(values.get("name") or f"scenario-{place}")),
            source=f"{where} ({TABLE})",
            slow=bool(values.get("slow")),
            settings={**self.table.settings, **settings},
            stacks=self._stacks(place, values.get("framework_config")),
            sweep={
                "model.id": models if isinstance(models, list) else [models],
                "data.sequence_length": list(matrix.lengths),
            },
            zip=self._sizes(sizes, matrix),
        )

    def _stacks(self, place: int, names: Any) -> dict[str, Any]:
        """Return a scenario's stacks as in a scenario file: a stack's name, or [], by short name.

        `place` is the index of the scenario in the file. `names` is its configuration name or a
        list of names; null means the baseline. Unknown names are added to the findings.
        """
        if names is None:
            return {PLAIN: []}
        stacks: dict[str, Any] = {}
        for number, name in enumerate(names if isinstance(names, list) else [names]):
            where = self.document.where(("scenarios", place, "framework_config", number))
            if name is None:
                stacks[PLAIN] = []
            elif name in self.stacks:
                stacks[name] = name
            else:
                self.findings.wrong.append(
                    f"{where}: {name!r} is the shortname of no configuration that is there, so "
                    f"nothing is run with it{did_you_mean(str(name), self.stacks)}"
                )
        if not stacks:
            self.findings.wrong.append(
                f"{self.document.where(('scenarios', place))}: no configuration of this scenario "
                "is known, so it has no experiment"
            )
        return stacks

    def _sizes(self, given: Sequence[Any], matrix: SweepMatrix) -> dict[str, list[Any]]:
        """Return lists of equal length with batch sizes, numbers of devices and parallel plugins.

        The keys are dotted settings; sizes are computed as in the benchmark. `given` has the values
        of the arguments in `SIZES`, None for one that is not stated.
        """
        micro, accumulation = map(positive_integer, given)
        rows = []
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
                rows.append(
                    {
                        "train.micro_batch_size": of_device,
                        "train.gradient_accumulation": steps,
                        "resources.devices": devices,
                        "parallel.use": matrix.parallel if devices > 1 else "none",
                    }
                )
        keys = [key for row in rows[:1] for key in row if key != "parallel.use" or matrix.parallel]
        return {key: [row[key] for row in rows] for key in keys}


def _parallel(folder: Path, table: MappingTable, findings: Findings) -> str | None:
    """Return the plugin for the strategy in `accelerate.yaml`; None without a file or a plugin."""
    file = next(iter(sorted(folder.rglob("accelerate.yaml"))), None)
    if file is None:
        return None
    document = load_file(file)
    kind = document.data.get("distributed_type")
    strategy = table.parallel.get(str(kind))
    if strategy is None:
        findings.changed.append(
            f"{document.where(('distributed_type',))}: {kind!r} has no counterpart here; several "
            "devices use the default"
        )
    return strategy


def _read_stacks(folder: Path, table: MappingTable, findings: Findings) -> dict[str, Uses]:
    """Return each sample configuration as a list of plugins, by the configuration's short name.

    Missing files and repeated names are added to `findings`. Raises ImportFileError if a file has
    another form.
    """
    files = sorted(folder.rglob(CONTENTS))
    if not files:
        findings.wrong.append(f"{folder}: there is no {CONTENTS}, so no configuration has a name")
    stacks: dict[str, Uses] = {}
    for file in files:
        listed = set()
        for where, name, filename in _entries(load_file(file)):
            listed.add(filename)
            path = file.parent / filename
            if name in stacks:
                findings.wrong.append(f"{where}: the shortname {name!r} stands here a second time")
            elif not path.is_file():
                findings.wrong.append(
                    f"{where}: {name!r} leads nowhere: there is no file {filename}"
                )
            else:
                stacks[name] = _read_uses(load_file(path), table, findings)
        for path in sorted(file.parent.glob("*-sample-configuration.yaml")):
            if path.name not in listed:
                findings.wrong.append(f"{path}: {CONTENTS} does not list it, so nothing can use it")
    return stacks


def _entries(contents: ParsedFile) -> Iterator[tuple[str, str, str]]:
    """Yield location, short name and file name of each configuration listed in `CONTENTS.yaml`.

    Raises ImportFileError if an entry lacks a valid name.
    """
    entries = contents.data.get("framework_configs")
    if not isinstance(entries, list):
        raise ImportFileError(f"{contents.source}: expected a list below `framework_configs`")
    for place, entry in enumerate(entries):
        where = contents.where(("framework_configs", place))
        fields = entry if isinstance(entry, dict) else {}
        name, filename = fields.get("shortname"), fields.get("filename")
        if not isinstance(name, str) or not isinstance(filename, str):
            raise ImportFileError(f"{where}: expected `shortname` and `filename`")
        if short_name(name) != name:
            raise ImportFileError(f"{where}: {name!r} can be no name of a stack")
        yield where, name, filename


def _read_uses(document: ParsedFile, table: MappingTable, findings: Findings) -> Uses:
    """Return the plugins, with options, of a sample configuration, in the order of `table`."""
    plugins = document.data.get("plugins")
    if not isinstance(plugins, dict):
        raise ImportFileError(f"{document.source}: expected a mapping below `plugins`")
    known: dict[str, Any] = {}
    for path, stanza in table.stanzas.items():
        set_path(known, path.split("."), stanza)
    stanzas = [*_stanzas(document, ("plugins",), plugins, known, findings)]
    order = [*table.stanzas.values()]
    uses: dict[str, dict[str, JsonValue]] = {}
    for stanza, options in sorted(stanzas, key=lambda pair: order.index(pair[0])):
        uses.setdefault(stanza.use, {"use": stanza.use}).update(options)
    return [use["use"] if len(use) == 1 else dict(use) for use in uses.values()]


def _stanzas(
    document: ParsedFile,
    location: Location,
    given: Mapping[str, Any],
    known: Mapping[str, Any],
    findings: Findings,
) -> Iterator[tuple[Stanza, dict[str, JsonValue]]]:
    """Yield stanza and plugin options for each part of a configuration that has a stanza.

    A stanza in the mapping table assigns a plugin to a part of a configuration.

    `given` is the part of the document at `location`. `known` has the table's stanzas below it, in
    dictionaries nested by key. Unknown keys are added to `findings`.
    """
    for written, value in given.items():
        here = (*location, written)
        name = spelled(written, known, document.where(here), findings)
        inner = value if isinstance(value, dict) else {}
        if name is not None and isinstance(stanza := known[name], Stanza):
            placed = {key: (option, document.where((*here, key))) for key, option in inner.items()}
            yield stanza, {**stanza.options, **apply_rules(placed, stanza.keys, findings)}
        elif name is not None:
            yield from _stanzas(document, here, inner, known[name], findings)
