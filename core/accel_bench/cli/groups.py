"""Groups of typer commands that import a command only when a user calls it.

Their help is short, and an error for a former name states the new name.
"""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from accel_bench.cli.commands import BELOW_A_NOUN, Command, commands_below, successors
from accel_bench.errors import ScenarioError, did_you_mean

WIDEST = 24
"""Largest width of option names in a list, in columns; a longer name has a line of its own."""

_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH", "Path": "PATH"}
_KIND = re.compile("<([^>]+)>")
_RANGE = re.compile(r"  \[x>=[\d.]+\]|; x>=[\d.]+|(?<=\[)x>=[\d.]+; ")

VERBS = ("list", "show", "check", "new")
"""Commands that are listed first below every noun."""


class PlainCommand(TyperCommand):
    """Command with short explanations of options, and errors that give an option's new name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options to the help under titles, first `Arguments` and `Options`."""
        titled: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for option in self.get_params(ctx):
            usual = "Options" if option.param_type_name == "option" else "Arguments"
            title = "Output" if option.name == "help" else getattr(option, "rich_help_panel", None)
            if record := option.get_help_record(ctx):
                row = _short_record(option, *record)
                titled.setdefault(title or usual, []).append(row)
        for title, rows in titled.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=WIDEST)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Return the parsed arguments. Raises ScenarioError for an option's former name."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            known = {name for option in self.get_params(ctx) for name in option.opts}
            former = getattr(error, "option_name", None)
            named = successors("options").get(str(former), ()) if former not in known else ()
            if new := [name for name in named if name in known or "`" in name]:
                raise ScenarioError(
                    f"there is no option {former}; did you mean {' or '.join(new)}?"
                ) from None
            raise


def _short_record(parameter: Any, names: str, text: str) -> tuple[str, str]:
    """Return a parameter's names and help, shortened: `N` for `<int range>`, no `[x>=1]`. `names`
    and `text` are as click would print them. The help of a choice gets the allowed words."""
    text = _RANGE.sub("", text)
    match = _KIND.search(names)
    is_option = parameter.param_type_name == "option"
    if not match or (is_option and parameter.metavar):
        return names, text
    kind = match[1].removeprefix("list[").removesuffix("]").removesuffix(" range")
    if "|" in kind:
        own = parameter.help or ""
        choice = f"{own.removesuffix('.')}: {kind.replace('|', ', ')}."
        return names.replace(match[0], "WORD"), choice + text[len(own) :]
    if not is_option:
        return names.removesuffix(f" {match[0]}"), text
    return names.replace(match[0], _METAVARS.get(kind, "VALUE")), text


class LazyCommands(TyperGroup):
    """Group that lists commands by their descriptions, and imports a command when it is called."""

    noun = ""
    """Noun of the group's commands; empty for commands without a noun."""

    def available(self) -> dict[str, Command]:
        """Return the group's commands of all distributions, by the last word of their names."""
        return commands_below(self.noun)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all command names; below a noun `list`, `show`, `check` and `new` come first."""
        names = [*dict.fromkeys([*self.commands, *self.available()])]
        return sorted(names, key=lambda name: (*VERBS, name).index(name)) if self.noun else names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command, or None for an unknown name. Raises PluginError if the
        import fails."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        command = self.available().get(cmd_name)
        return None if command is None else _as_click(command, cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Return the parsed arguments; a noun alone runs its command `list`, or prints its help."""
        own = self.invoke_without_command or ctx.resilient_parsing or not self.noun
        bare = not args or (args[0].startswith("-") and args[0] != "--help" and not self.params)
        if bare and not own:
            lists = "list" in self.list_commands(ctx)
            args = ["list", *args] if lists else args or ["--help"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments, as click does. Raises ScenarioError for an
        unknown command; the message states the command's new name or the nearest name."""
        known = self.list_commands(ctx)
        wrong = args and args[0] not in known and not args[0].startswith("-")
        if wrong and not ctx.resilient_parsing:  # A shell that completes is told nothing.
            former = f"{self.noun} {args[0]}".strip().replace(".", " ")
            if new := successors("commands").get(former):
                raise ScenarioError(f"`accel-bench {former}` is now `accel-bench {new}`")
            near = did_you_mean(args[0], known)
            raise ScenarioError(f"no command{self._of_noun()} is called {args[0]!r}{near}")
        return super().resolve_command(ctx, args)

    def _of_noun(self) -> str:
        return f" of {self.noun.replace('.', ' ')}" if self.noun else ""

    def lines(self, ctx: Any) -> dict[str, dict[str, str]]:
        """Return one-line descriptions by title and command name, without importing any command."""
        titled: dict[str, dict[str, str]] = {}
        commands = self.available()
        for name in self.list_commands(ctx):
            if name in self.commands:
                if not self.commands[name].hidden:
                    line = _first_sentence(self.commands[name].help or "")
                    titled.setdefault(BELOW_A_NOUN, {})[name] = line
            elif not commands[name].more:
                titled.setdefault(commands[name].title, {})[name] = commands[name].line
        return titled

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands to the help under their titles."""
        for title, lines in self.lines(ctx).items():
            with formatter.section(title):
                formatter.write_dl([*lines.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return completions of commands' names without importing them, and of options as usual."""
        described: dict[str, Any] = {
            name: TyperCommand(name, short_help=line)
            for lines in self.lines(ctx).values()
            for name, line in lines.items()
        }
        listed = TyperGroup(commands=described)
        names = listed.shell_complete(typer.Context(listed), incomplete)
        return names or super().shell_complete(ctx, incomplete)


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text on one line."""
    first = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    sentence, end, _ = first.partition(". ")
    return f"{sentence}." if end else first


def _as_click(command: Command, word: str) -> Any:
    """Import a command, and return it as click's command with the name `word`. Raises PluginError
    if the import fails."""
    if command.entry is None:
        return _made_of(typer.Typer(), command, word)
    loaded = command.entry.load()
    if not callable(loaded):
        value = command.entry.point.value
        raise command.entry.broken(f"{value} is neither a function nor a typer.Typer")
    with command.entry.blamed():  # Typer resolves annotations.
        return _made_of(loaded, command, word)


def _made_of(loaded: Any, command: Command, word: str) -> Any:
    """Return the click command or group `word`, made of a loaded function or `typer.Typer`."""
    outer = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    outer.callback()(lambda: None)
    if isinstance(loaded, typer.Typer):
        return _group(loaded, outer, command, word)
    from accel_bench.cli.output import with_wide

    outer.command(word, cls=PlainCommand)(with_wide(loaded))
    return _made(outer, word)


def _group(loaded: typer.Typer, outer: typer.Typer, command: Command, word: str) -> Any:
    """Add the typer app `loaded` to the app `outer`, and return its click group, named `word`."""
    from accel_bench.cli.output import with_wide

    for own in (*loaded.registered_commands, loaded.registered_callback):
        if own is not None and own.callback is not None:
            own.callback = with_wide(own.callback)
    for registered in loaded.registered_commands:
        if registered.cls is TyperCommand or registered.cls is None:
            registered.cls = PlainCommand
    outer.add_typer(loaded, name=word, cls=LazyCommands)
    group = _made(outer, word)
    group.noun, group.help = command.name, group.help or command.line
    return group


def _made(outer: typer.Typer, word: str) -> Any:
    group: Any = typer.main.get_group(outer)
    return group.commands[word]
