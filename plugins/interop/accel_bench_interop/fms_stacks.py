"""Sample configurations of fms-acceleration, and their contents file, as named stacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_bench.documents.base import JsonValue
from accel_bench.documents.load import Document, load_file
from accel_bench.errors import ImportFileError
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
        contents = load_file(file)
        entries = contents.data.get("framework_configs")
        if not isinstance(entries, list):
            raise ImportFileError(f"{file}: expected a list below `framework_configs`")
        for place, entry in enumerate(entries):
            _read_entry(contents, place, entry, (stacks, table, findings))
        _report_unlisted(file, entries, findings)
    return stacks


def _read_entry(
    contents: Document,
    place: int,
    entry: Any,
    into: tuple[dict[str, Uses], Mapped, Findings],
) -> None:
    stacks, table, findings = into
    where = contents.where(("framework_configs", place))
    name = entry.get("shortname") if isinstance(entry, dict) else None
    filename = entry.get("filename") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not isinstance(filename, str):
        raise ImportFileError(f"{where}: expected `shortname` and `filename`")
    if name in stacks:
        findings.wrong.append(f"{where}: the shortname {name!r} stands here a second time")
        return
    if short_name(name) != name:
        raise ImportFileError(f"{where}: {name!r} can be no name of a stack")
    path = Path(contents.source).parent / filename
    if not path.is_file():
        findings.wrong.append(f"{where}: {name!r} leads nowhere: there is no file {filename}")
        return
    stacks[name] = read_uses(load_file(path), table, findings)


def _report_unlisted(file: Path, entries: list[Any], findings: Findings) -> None:
    """Report configurations beside the contents file that it does not name."""
    listed = {entry.get("filename") for entry in entries if isinstance(entry, dict)}
    for path in sorted(file.parent.glob("*-sample-configuration.yaml")):
        if path.name not in listed:
            findings.wrong.append(f"{path}: {file.name} does not list it, so nothing can use it")


def read_uses(document: Document, table: Mapped, findings: Findings) -> Uses:
    """Return the uses of one sample configuration, in the order of the table."""
    plugins = document.data.get("plugins")
    if not isinstance(plugins, dict):
        raise ImportFileError(f"{document.source}: expected a mapping below `plugins`")
    stanzas: dict[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {}
    _find_stanzas(document, plugins, (), (stanzas, table, findings))
    uses: dict[str, dict[str, JsonValue]] = {}
    for path, stanza in table.stanzas.items():
        if path in stanzas:
            location, given = stanzas[path]
            options = _options(document, location, given, (stanza, findings))
            uses.setdefault(stanza.use, {"use": stanza.use}).update(options)
    return [use["use"] if len(use) == 1 else dict(use) for use in uses.values()]


def _options(
    document: Document,
    location: tuple[str, ...],
    given: Mapping[str, Any],
    rule: tuple[Stanza, Findings],
) -> dict[str, JsonValue]:
    stanza, findings = rule
    found = apply_rules(
        given, stanza.keys, lambda key: document.where(("plugins", *location, key)), findings
    )
    return {**stanza.options, **found}


def _find_stanzas(
    document: Document,
    data: Mapping[str, Any],
    above: tuple[str, ...],
    into: tuple[dict[str, tuple[tuple[str, ...], Mapping[str, Any]]], Mapped, Findings],
) -> None:
    """Collect stanzas by the path that the table knows; report names on the way that it lacks."""
    stanzas, table, findings = into
    depth = len(above)
    here = [path.split(".") for path in table.stanzas]
    canonical = _canonical(above, table)
    known = {path[depth] for path in here if len(path) > depth and tuple(path[:depth]) == canonical}
    for written, value in data.items():
        where = document.where(("plugins", *above, written))
        name = spelled(written, known, where, findings)
        if name is None:
            continue
        path = ".".join((*canonical, name))
        inner = value if isinstance(value, dict) else {}
        if path in table.stanzas:
            stanzas[path] = ((*above, written), inner)
        else:
            _find_stanzas(document, inner, (*above, written), into)


def _canonical(written: tuple[str, ...], table: Mapped) -> tuple[str, ...]:
    """Return the path that the table has for one that may be misspelt."""
    silent = Findings()
    done: tuple[str, ...] = ()
    for name in written:
        known = {
            path.split(".")[len(done)]
            for path in table.stanzas
            if tuple(path.split(".")[: len(done)]) == done
        }
        done = (*done, spelled(name, known, "", silent) or name)
    return done
