"""Commands of installed distributions: listed from metadata and a data file, imported when called.

A distribution adds a command by an entry point of the group `accel_bench.commands`, whose value is
a function with typer's annotations or a `typer.Typer`, and by a table of the same name in the file
`commands.toml` among its presets (`accel_bench.samples`): the title under which `--help` lists the
command, and one line about it. The entry point `results.import` is the command `import` of the noun
`results`. The program's own commands are added in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from accel_bench.documents.presets import preset_roots
from accel_bench.plugins.doors import DoorEntry, find_entries

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GROUP = "accel_bench.commands"
"""Entry-point group of commands."""

DESCRIPTIONS = "commands.toml"
"""File beside a distribution's presets that describes its commands."""

RENAMED = "renamed.toml"
"""File beside a distribution's presets with successors of former commands and options."""

MAXIMUM_BYTES = 256 * 1024
"""Size limit of a file that describes commands, in bytes."""

UNTITLED = "Of other distributions"
"""Title in lists for commands without a description."""

BELOW_A_NOUN = "Commands"
"""Title in lists for the commands of a noun that have no title of their own."""


@dataclass(frozen=True)
class Command:
    """Command, or noun that groups commands, in the program's lists of commands."""

    name: str
    """Words of the command, with a dot between noun and command."""

    entry: DoorEntry | None
    """Entry point of the command; None for a noun that has only commands below it."""

    title: str
    """Title under which the command is listed."""

    line: str
    """Description in one line; a command without its library has a line that names the library."""

    more: bool = False
    """True for a command that only `accel-bench help commands` lists."""


def find_commands() -> dict[str, Command]:
    """Return all commands by name, in the order of `--help`, without importing any."""
    return _commands_on(tuple(sys.path))


def commands_below(noun: str) -> dict[str, Command]:
    """Return a noun's commands by their last word; an empty `noun` means commands without a
    noun."""
    commands = find_commands().values()
    return {_parts(cmd.name)[1]: cmd for cmd in commands if _parts(cmd.name)[0] == noun}


def _parts(name: str) -> tuple[str, str]:
    """Return noun and last word of a command's name; a name `distribution:name` has no noun."""
    if ":" in name or not all(name.split(".")):
        return "", name
    noun, _, word = name.rpartition(".")
    return noun, word


def _nouns_of(name: str) -> Iterator[str]:
    while name := _parts(name)[0]:
        yield name


@lru_cache(maxsize=1)
def _commands_on(_path: tuple[str, ...]) -> dict[str, Command]:
    """Return all commands by name; a core command wins over its namesakes. `_path` is the present
    `sys.path`, the key of the cache."""
    own_root, *roots = preset_roots()
    ours, others = _descriptions([own_root]), _descriptions(roots)
    entries = find_entries(GROUP, "command")
    listed = [_described(entry, ours if entry.is_ours else others) for entry in entries.values()]
    for noun in dict.fromkeys(noun for name in entries for noun in _nouns_of(name)):
        if noun not in entries:
            facts = {"title": UNTITLED, **others.get(noun, {}), **ours.get(noun, {})}
            title, line = (str(facts.get(key, "")) for key in ("title", "help"))
            listed.append(Command(noun, None, title, line, facts.get("more") is True))
    order = [*ours]
    listed.sort(
        key=lambda cmd: (order.index(cmd.name) if cmd.name in ours else len(order), cmd.name)
    )
    return {command.name: command for command in listed}


def _described(entry: DoorEntry, described: Mapping[str, Mapping[str, Any]]) -> Command:
    """Return the command of an entry point; `described` has tables of `commands.toml` by name."""
    facts = described.get(entry.point.name, {})
    untitled = BELOW_A_NOUN if _parts(entry.name)[0] else UNTITLED
    title, line = str(facts.get("title") or untitled), str(facts.get("help", ""))
    if not entry.is_ours:
        from accel_bench.plugins.registry import unmet_requirement

        missing = filter(None, map(unmet_requirement, entry.requires))
        line = "; ".join(missing) or line
    return Command(entry.name, entry, title, line, facts.get("more") is True)


def _descriptions(roots: Iterable[Path]) -> dict[str, Mapping[str, Any]]:
    """Return descriptions of commands by name from `commands.toml` files; the first folder wins."""
    tables = _tables(roots, DESCRIPTIONS)
    return {name: facts for name, facts in tables.items() if isinstance(facts, dict)}


def _tables(roots: Iterable[Path], file: str) -> dict[str, Any]:
    """Return all tables of the TOML files `file` in the folders `roots`; the first of equal names
    wins."""
    tables: dict[str, Any] = {}
    for path in (root / file for root in roots):
        try:
            if path.stat().st_size <= MAXIMUM_BYTES:
                tables = {**tomllib.loads(path.read_text(encoding="utf8")), **tables}
        except (OSError, ValueError):  # Of another distribution: its commands have no line.
            continue
    return tables


def successors(kind: str) -> dict[str, Any]:
    """Return the new names of commands or of options by former name. `kind` is the table of
    `renamed.toml` to read: `commands` or `options`."""
    named: dict[str, Any] = _tables([preset_roots()[0]], RENAMED)[kind]
    return named
