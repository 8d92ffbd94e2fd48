"""The door for commands: listed from metadata and a data file, imported when they are called.

A distribution adds a command by an entry point of the group `accel_bench.commands`, whose value is
a function with typer's annotations or a `typer.Typer`, and by a table of that name in the file
`commands.toml` among its presets (`accel_bench.samples`): the title under which `--help` lists it,
and one line about it. Our own commands enter by this door too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from accel_bench.documents.presets import preset_roots
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.plugins.doors import Entry, find_entries

GROUP = "accel_bench.commands"
"""Group of the entry points."""

DESCRIPTIONS = "commands.toml"
"""File beside the presets of a distribution that describes its commands."""

MAXIMUM_BYTES = 256 * 1024
"""Size of that file; nothing that describes commands is as large."""

UNTITLED = "Of other distributions"
"""Title above commands that no file describes."""


@dataclass(frozen=True)
class Command:
    """A command as the list of all commands shows it."""

    entry: Entry

    title: str
    """Heading under which it is listed."""

    line: str
    """Description in one line; of a command that lacks a library, which one."""

    @property
    def name(self) -> str:
        """Name that is typed."""
        return self.entry.name


def find_commands() -> dict[str, Command]:
    """Return all commands by name, in the order in which they are listed; nothing is imported."""
    return _commands_on(tuple(sys.path))


@lru_cache(maxsize=1)
def _commands_on(_path: tuple[str, ...]) -> dict[str, Command]:
    """Return the commands of this `sys.path`; ours keep their names, whoever has them too."""
    own_root, *roots = preset_roots()
    ours, others = _descriptions([own_root]), _descriptions(roots)
    found = [
        _described(entry, ours if entry.is_ours else others)
        for entry in find_entries(GROUP, "command").values()
    ]
    order = [*ours]
    found.sort(
        key=lambda one: (order.index(one.name) if one.name in ours else len(order), one.name)
    )
    return {command.name: command for command in found}


def _described(entry: Entry, described: Mapping[str, tuple[str, str]]) -> Command:
    """Return a command; the line of one that lacks a library says so."""
    title, line = described.get(entry.point.name, (UNTITLED, ""))
    if not entry.is_ours:
        from accel_bench.plugins.registry import unmet_requirement

        missing = filter(None, map(unmet_requirement, entry.requires))
        line = "; ".join(missing) or line
    return Command(entry, title, line)


def _descriptions(roots: Iterable[Path]) -> dict[str, tuple[str, str]]:
    """Return title and line of the commands that the files in these folders describe."""
    from accel_bench.documents.files import read_text
    from accel_bench.documents.load_toml import load_toml

    found: dict[str, tuple[str, str]] = {}
    for path in (root / DESCRIPTIONS for root in roots):
        if not path.is_file():
            continue
        try:
            document = load_toml(read_text(path, MAXIMUM_BYTES, ScenarioError, ""), str(path))
        except ScenarioError:  # Of another distribution: its commands are listed without a line.
            continue
        for name, entry in document.data.items():
            facts = entry if isinstance(entry, dict) else {}
            title, line = (str(facts.get(key, "")) for key in ("title", "help"))
            found.setdefault(name, (title or UNTITLED, line))
    return found


class LazyCommands(TyperGroup):
    """Lists all commands by their descriptions, and imports the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*find_commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None where there is none of that name. Raises PluginError."""
        found = find_commands().get(cmd_name)
        return None if found is None else _as_click(found)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called. Raises ScenarioError with the nearest name."""
        known = find_commands()
        wrong = args and args[0] not in known and not args[0].startswith("-")
        if wrong and not ctx.resilient_parsing:  # A shell that completes is told nothing.
            near = did_you_mean(args[0], known)
            raise ScenarioError(f"no command is called {args[0]!r}{near}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their titles, without importing them."""
        titled: dict[str, list[tuple[str, str]]] = {}
        for command in find_commands().values():
            titled.setdefault(command.title, []).append((command.name, command.line))
        for title, rows in titled.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete names of commands without importing them, and options as usual."""
        described: dict[str, Any] = {
            one.name: TyperCommand(one.name, short_help=one.line)
            for one in find_commands().values()
        }
        listed = TyperGroup(commands=described)
        names = listed.shell_complete(typer.Context(listed), incomplete)
        return names or super().shell_complete(ctx, incomplete)


def _as_click(command: Command) -> Any:
    """Return the command that typer makes of a function or of a group."""
    from accel_bench.cli.output import with_wide

    loaded = command.entry.load()
    outer = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    outer.callback()(lambda: None)
    if isinstance(loaded, typer.Typer):
        _add_wide(loaded)
        outer.add_typer(loaded, name=command.name)
    elif callable(loaded):
        outer.command(command.name)(with_wide(loaded))
    else:
        value = command.entry.point.value
        raise command.entry.broken(f"{value} is neither a function nor a typer.Typer")
    group: Any = typer.main.get_group(outer)
    return group.commands[command.name]


def _add_wide(group: typer.Typer) -> None:
    """Give `--wide` to all commands of a group that print tables, and to the group itself."""
    from accel_bench.cli.output import with_wide

    for one in (*group.registered_commands, group.registered_callback):
        if one is not None and one.callback is not None:
            one.callback = with_wide(one.callback)
