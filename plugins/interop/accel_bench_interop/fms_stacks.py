"""Sample configurations of fms-acceleration, and their contents file, as named stacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.documents.load import Document, Location, load_file
from accel_bench.errors import ImportFileError
from accel_bench.scenario.layers import set_path
from accel_bench_interop.figures import short_name
from accel_bench_interop.mapping import Findings, Mapped, Stanza, apply_rules, spelled

CONTENTS = "CONTENTS.yaml"

Uses = list[JsonValue]
"""Uses of plugins, as a scenario file spells them."""


def read_stacks(folder: Path, table: Mapped, findings: Findings) -> dict[str, Uses]:
    """Return the uses of each sample configuration by short name. Raises ImportFileError."""
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


def _entries(contents: Document) -> Iterator[tuple[str, str, str]]:
    """Yield place, short name and file of each configuration. Raises ImportFileError."""
    entries = contents.data.get("framework_configs")
    if not isinstance(entries, list):
        raise ImportFileError(f"{contents.source}: expected a list below `framework_configs`")
    for place, entry in enumerate(entries):
        where = contents.where(("framework_configs", place))
        found = entry if isinstance(entry, dict) else {}
        name, filename = found.get("shortname"), found.get("filename")
        if not isinstance(name, str) or not isinstance(filename, str):
            raise ImportFileError(f"{where}: expected `shortname` and `filename`")
        if short_name(name) != name:
            raise ImportFileError(f"{where}: {name!r} can be no name of a stack")
        yield where, name, filename


def _read_uses(document: Document, table: Mapped, findings: Findings) -> Uses:
    """Return the uses of one sample configuration, in the order of the table."""
    plugins = document.data.get("plugins")
    if not isinstance(plugins, dict):
        raise ImportFileError(f"{document.source}: expected a mapping below `plugins`")
    known: dict[str, Any] = {}
    for path, stanza in table.stanzas.items():
        set_path(known, path.split("."), stanza)
    found = [*_stanzas(document, ("plugins",), plugins, known, findings)]
    order = [*table.stanzas.values()]
    uses: dict[str, dict[str, JsonValue]] = {}
    for stanza, options in sorted(found, key=lambda one: order.index(one[0])):
        uses.setdefault(stanza.use, {"use": stanza.use}).update(options)
    return [use["use"] if len(use) == 1 else dict(use) for use in uses.values()]


def _stanzas(
    document: Document,
    location: Location,
    given: Mapping[str, Any],
    known: Mapping[str, Any],
    findings: Findings,
) -> Iterator[tuple[Stanza, dict[str, JsonValue]]]:
    """Yield the stanzas of the table below a location, with the options that become of each."""
    for written, value in given.items():
        here = (*location, written)
        name = spelled(written, known, document.where(here), findings)
        inner = value if isinstance(value, dict) else {}
        if name is not None and isinstance(stanza := known[name], Stanza):
            placed = {key: (one, document.where((*here, key))) for key, one in inner.items()}
            yield stanza, {**stanza.options, **apply_rules(placed, stanza.keys, findings)}
        elif name is not None:
            yield from _stanzas(document, here, inner, known[name], findings)
