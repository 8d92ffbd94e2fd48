"""Tables that the commands `plugins`, `plugins show` and `plugins check` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel_bench.errors import install_package
from accel_bench.plugins.doors import OWN_DISTRIBUTION
from accel_bench.report.table import Column, Report, Section, Table, entry, keyed, listed

UNDECLARED = {
    "loss_tolerance": "exactly equal",
    "update_tolerance": "equal work",
    "output_tolerance": "equal work",
    "strategy": "none",
}
"""Text for each declaration of a plugin that is null, where this does not mean `any`."""

OF_THE_BOX = f"all of {OWN_DISTRIBUTION}: a folder of its box was taken away here"
"""Text in place of a package, for an included plugin whose folder was removed here."""

NOT_INSTALLED = "Not installed, with what `pip install` brings it from:"
"""Title above the plugins that are not installed."""


def plugins_report(rows: Sequence[Mapping[str, Any]]) -> Report:
    """Return the report of `plugins`: tables of the installed plugins and of the others.

    `rows` has a mapping for each plugin that accel-bench knows, as `overview` returns them.
    """
    here = [row for row in rows if row["installed"]]
    absent = [row for row in rows if not row["installed"]]
    sections = [
        Section(tables=[Table(HERE, here)], notes=[_problem(r) for r in here if not r["usable"]])
    ]
    if absent:
        sections.append(Section(title=NOT_INSTALLED, tables=[Table(ABSENT, absent)]))
    return Report(sections, rows)


def plugin_report(described: Mapping[str, Any]) -> Report:
    """Return the report of `plugins show`: a plugin's facts, its options, and further tables.

    `described` is the plugin's description by `plugin_facts.describe`.
    """
    listings = [key for key, value in described.items() if _is_table(value) or key == "options"]
    facts = [(key, _fact(key, value)) for key, value in described.items() if key not in listings]
    sections = [Section(tables=[listed(("key", "value"), facts)])]
    options = [
        {key: "null" if value is None else _text(value) for key, value in option.items()}
        for option in described["options"]
    ]
    if options:
        sections.append(Section(title="Options:", tables=[Table(OPTIONS, options)]))
    else:
        sections.append(Section(notes=["No options."]))
    for key in listings[1:]:
        rows = described[key]
        tables = [keyed(dict.fromkeys(name for row in rows for name in row), rows)]
        sections.append(Section(title=f"{key.capitalize()}:", tables=tables))
    return Report(sections, described)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(row, Mapping) for row in value)


def _does(row: Mapping[str, Any]) -> str:
    ours = row["extra"] or row["distribution"] == OWN_DISTRIBUTION
    return f"{'' if ours else row['distribution'] + ': '}{row['does']}"


def _problem(row: Mapping[str, Any]) -> str:
    label = f"{row['name']} ({row['distribution']} {row['version']})"
    return f"cannot be used: {label}: {'; '.join(row['unmet'])}"


def _fact(key: str, value: Any) -> str:
    return UNDECLARED.get(key, "any") if value is None else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


NAME, FILLS = entry("name", kind="word"), entry("fills", rank=1)

HERE = (NAME, FILLS, Column("does", _does), entry("needs"))
"""Columns of installed plugins."""

ABSENT = (
    NAME,
    FILLS,
    Column(
        "package",
        lambda row: install_package(row["extra"]) if row["extra"] else OF_THE_BOX,
        kind="word",
    ),
    entry("does"),
    entry("needs"),
)
"""Columns of plugins that are not installed."""

CHECKED = (
    NAME,
    entry("distribution", kind="word", rank=2),
    entry("version", kind="word", rank=1),
    entry("usable", form=lambda usable: "yes" if usable else "no", kind="word"),
    entry("reasons"),
)
"""Columns of `plugins check`."""

OPTIONS = (NAME, entry("type"), entry("default"), entry("description"))
"""Columns of a plugin's options."""
