"""The door for commands: listed from metadata and a data file, imported when they are called.

A distribution adds a command by an entry point of the group `accel_bench.commands`, whose value is
a function with typer's annotations or a `typer.Typer`, and by a table of that name in the file
`commands.toml` among its presets (`accel_bench.samples`): the title under which `--help` lists it,
and one line about it. The entry point `results.import` is the command `import` of the noun
`results`, whoever brings either. Our own commands enter by this door too.
"""

from __future__ import annotations

import re
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

RENAMED = "renamed.toml"
"""File beside them with former names of commands and options, and what took their place."""

MAXIMUM_BYTES = 256 * 1024
"""Size of such a file; nothing that describes commands is as large."""

UNTITLED = "Of other distributions"
"""Title above commands that no file describes."""

BELOW_A_NOUN = "Commands"
"""Title above commands of a noun whose description has none."""

WIDEST = 24
"""Columns that names of options may take in a list; longer ones have a line of their own."""

_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH", "Path": "PATH"}
_KIND = re.compile("<([^>]+)>")
_RANGE = re.compile(r"  \[x>=[\d.]+\]|; x>=[\d.]+|(?<=\[)x>=[\d.]+; ")

VERBS = ("list", "show", "check", "new")
"""Commands that stand first below every noun."""


@dataclass(frozen=True)
class Command:
    """A command as the list of all commands shows it."""

    name: str
    """Words that are typed, with a dot between noun and command."""

    entry: Entry | None
    """What a distribution brings; None for a noun of which there are only the commands below it."""

    title: str
    """Heading under which it is listed."""

    line: str
    """Description in one line; of a command that lacks a library, which one."""

    more: bool = False
    """True if only `accel-bench help commands` lists it."""


def find_commands() -> dict[str, Command]:
    """Return all commands by name, in the order in which they are listed; nothing is imported."""
    return _commands_on(tuple(sys.path))


def commands_below(noun: str) -> dict[str, Command]:
    """Return the commands of a noun by the word that follows it; those of the program for ""."""
    found = find_commands().values()
    return {_parts(one.name)[1]: one for one in found if _parts(one.name)[0] == noun}


def _parts(name: str) -> tuple[str, str]:
    """Return noun and command of a name; an address, `distribution:name`, is no noun's."""
    noun, _, word = name.rpartition(".") if ":" not in name else ("", "", name)
    return noun, word


@lru_cache(maxsize=1)
def _commands_on(_path: tuple[str, ...]) -> dict[str, Command]:
    """Return the commands of this `sys.path`; ours keep their names, whoever has them too."""
    own_root, *roots = preset_roots()
    ours, others = _descriptions([own_root]), _descriptions(roots)
    entries = find_entries(GROUP, "command")
    found = [_described(one, ours if one.is_ours else others) for one in entries.values()]
    nouns = dict.fromkeys(noun for noun, _ in map(_parts, entries) if noun)
    for noun in nouns:
        if noun not in entries:
            facts = {"title": UNTITLED, **others.get(noun, {}), **ours.get(noun, {})}
            found.append(Command(noun, None, str(facts["title"]), str(facts.get("help", ""))))
    order = [*ours]
    found.sort(
        key=lambda one: (order.index(one.name) if one.name in ours else len(order), one.name)
    )
    return {command.name: command for command in found}


def _described(entry: Entry, described: Mapping[str, Mapping[str, Any]]) -> Command:
    """Return a command; the line of one that lacks a library says so."""
    facts = described.get(entry.point.name, {})
    untitled = BELOW_A_NOUN if _parts(entry.name)[0] else UNTITLED
    title, line = str(facts.get("title") or untitled), str(facts.get("help", ""))
    if not entry.is_ours:
        from accel_bench.plugins.registry import unmet_requirement

        missing = filter(None, map(unmet_requirement, entry.requires))
        line = "; ".join(missing) or line
    return Command(entry.name, entry, title, line, facts.get("more") is True)


def _descriptions(roots: Iterable[Path]) -> dict[str, Mapping[str, Any]]:
    """Return the descriptions of commands in these folders; the first of a name counts."""
    tables = _tables(roots, DESCRIPTIONS)
    return {name: facts for name, facts in tables.items() if isinstance(facts, dict)}


def _tables(roots: Iterable[Path], file: str) -> dict[str, Any]:
    """Return the tables of a file that may lie in each of these folders."""
    from accel_bench.documents.files import read_text
    from accel_bench.documents.load_toml import load_toml

    found: dict[str, Any] = {}
    for path in (root / file for root in roots):
        if not path.is_file():
            continue
        try:
            document = load_toml(read_text(path, MAXIMUM_BYTES, ScenarioError, ""), str(path))
        except ScenarioError:  # Of another distribution: its commands are listed without a line.
            continue
        found = {**document.data, **found}
    return found


def _successors(kind: str) -> dict[str, Any]:
    """Return what took the place of former commands or options, by their former names."""
    named: dict[str, Any] = _tables([preset_roots()[0]], RENAMED)[kind]
    return named


class PlainCommand(TyperCommand):
    """Answers the former name of an option with the new one, and explains options in few lines."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under their titles, those of the command alone first."""
        titled: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for one in self.get_params(ctx):
            usual = "Options" if one.param_type_name == "option" else "Arguments"
            title = "Output" if one.name == "help" else getattr(one, "rich_help_panel", None)
            if record := one.get_help_record(ctx):
                row = _short_record(one, *record)
                titled.setdefault(title or usual, []).append(row)
        for title, rows in titled.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=WIDEST)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse arguments. Raises ScenarioError where an option has another name."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            known = {name for one in self.get_params(ctx) for name in one.opts}
            former = getattr(error, "option_name", None)
            named = _successors("options").get(str(former), ()) if former not in known else ()
            if new := [name for name in named if name in known or "`" in name]:
                raise ScenarioError(
                    f"there is no option {former}; did you mean {' or '.join(new)}?"
                ) from None
            raise


def _short_record(parameter: Any, names: str, text: str) -> tuple[str, str]:
    """Return names and help of a parameter, with `N` for `<int range>` and without `[x>=1]`.

    Words to choose from stand in the help.
    """
    text = _RANGE.sub("", text)
    found = _KIND.search(names)
    is_option = parameter.param_type_name == "option"
    if not found or (is_option and parameter.metavar):
        return names, text
    kind = found[1].removeprefix("list[").removesuffix("]").removesuffix(" range")
    if "|" in kind:
        own = parameter.help or ""
        choice = f"{own.removesuffix('.')}: {kind.replace('|', ', ')}."
        return names.replace(found[0], "WORD"), choice + text[len(own) :]
    if not is_option:
        return names.removesuffix(f" {found[0]}"), text
    return names.replace(found[0], _METAVARS.get(kind, "VALUE")), text


class LazyCommands(TyperGroup):
    """Lists all commands by their descriptions, and imports the one that is called."""

    noun = ""
    """What stands before the commands; nothing before those of the program."""

    def found(self) -> dict[str, Command]:
        """Return what comes through the door, by the word that is typed."""
        return commands_below(self.noun)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those that all nouns have first."""
        names = [*dict.fromkeys([*self.commands, *self.found()])]
        return sorted(names, key=lambda name: (*VERBS, name).index(name)) if self.noun else names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None where there is none of that name. Raises PluginError."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        found = self.found().get(cmd_name)
        return None if found is None else _as_click(found, cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse arguments; a noun without a command is its list, or else its help."""
        own = self.invoke_without_command or ctx.resilient_parsing or not self.noun
        bare = not args or (args[0].startswith("-") and args[0] != "--help" and not self.params)
        if bare and not own:
            lists = "list" in self.list_commands(ctx)
            args = ["list", *args] if lists else args or ["--help"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called. Raises ScenarioError with the nearest name."""
        known = self.list_commands(ctx)
        wrong = args and args[0] not in known and not args[0].startswith("-")
        if wrong and not ctx.resilient_parsing:  # A shell that completes is told nothing.
            former = f"{self.noun} {args[0]}".strip().replace(".", " ")
            if new := _successors("commands").get(former):
                raise ScenarioError(f"`accel-bench {former}` is now `accel-bench {new}`")
            near = did_you_mean(args[0], known)
            raise ScenarioError(f"no command{self._of_noun()} is called {args[0]!r}{near}")
        return super().resolve_command(ctx, args)

    def _of_noun(self) -> str:
        return f" of {self.noun.replace('.', ' ')}" if self.noun else ""

    def lines(self, ctx: Any) -> dict[str, dict[str, str]]:
        """Return the lines about commands by title and name, without importing those of others."""
        titled: dict[str, dict[str, str]] = {}
        found = self.found()
        for name in self.list_commands(ctx):
            if name in self.commands:
                if not self.commands[name].hidden:
                    line = _first_sentence(self.commands[name].help or "")
                    titled.setdefault(BELOW_A_NOUN, {})[name] = line
            elif not found[name].more:
                titled.setdefault(found[name].title, {})[name] = found[name].line
        return titled

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their titles."""
        for title, lines in self.lines(ctx).items():
            with formatter.section(title):
                formatter.write_dl([*lines.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete names of commands without importing them, and options as usual."""
        described: dict[str, Any] = {
            name: TyperCommand(name, short_help=line)
            for lines in self.lines(ctx).values()
            for name, line in lines.items()
        }
        listed = TyperGroup(commands=described)
        names = listed.shell_complete(typer.Context(listed), incomplete)
        return names or super().shell_complete(ctx, incomplete)


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text, whole."""
    first = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    sentence, end, _ = first.partition(". ")
    return f"{sentence}." if end else first


def _as_click(command: Command, word: str) -> Any:
    """Return the command that typer makes of a function or of a group."""
    loaded = command.entry.load() if command.entry else typer.Typer()
    outer = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    outer.callback()(lambda: None)
    if isinstance(loaded, typer.Typer):
        return _group(loaded, outer, command, word)
    if not callable(loaded):
        assert command.entry
        value = command.entry.point.value
        raise command.entry.broken(f"{value} is neither a function nor a typer.Typer")
    from accel_bench.cli.output import with_wide

    outer.command(word, cls=PlainCommand)(with_wide(loaded))
    return _made(outer, word)


def _group(loaded: typer.Typer, outer: typer.Typer, command: Command, word: str) -> Any:
    """Return the group of a noun: its own commands, and those that others bring."""
    from accel_bench.cli.output import with_wide

    for one in (*loaded.registered_commands, loaded.registered_callback):
        if one is not None and one.callback is not None:
            one.callback = with_wide(one.callback)
    for registered in loaded.registered_commands:
        if registered.cls is TyperCommand or registered.cls is None:
            registered.cls = PlainCommand
    outer.add_typer(loaded, name=word, cls=LazyCommands)
    group = _made(outer, word)
    group.noun, group.help = command.name, group.help or command.line
    return group


def _made(outer: typer.Typer, word: str) -> Any:
    """Return what typer makes of the only command of a program."""
    group: Any = typer.main.get_group(outer)
    return group.commands[word]
