"""Command `accel-bench help`: explains a command, or topics common to all commands."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

from accel_bench.cli.commands import MAXIMUM_BYTES, find_commands
from accel_bench.cli.output import print_text
from accel_bench.documents.files import read_text
from accel_bench.documents.presets import preset_roots
from accel_bench.errors import ScenarioError, did_you_mean

COMMANDS = "commands"
"""Name of the topic that lists all commands."""


def explain(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC|COMMAND", help="A topic, or the words of a command."),
    ] = None,
) -> None:
    """Explain a command, or what all commands share; alone, list the topics."""
    topics, root = find_topics(), context.find_root()
    program: Any = root.command
    known = program.list_commands(root)
    if not words:
        lines = {COMMANDS: "Commands of all programs; NOUN --help lists all of a noun."}
        lines |= {name: text.partition("\n")[0] for name, text in topics.items()}
        _print_lists(root, {"Topics (accel-bench help TOPIC)": lines})
    elif words == [COMMANDS]:
        _print_lists(root, _all_commands())
    elif words[0] in known:
        program.invoke(program.make_context(root.info_name, [*words, "--help"]))
    elif words[0] in topics:
        print_text(topics[words[0]])
    else:
        near = did_you_mean(words[0], [COMMANDS, *topics, *known])
        raise ScenarioError(f"no topic and no command is called {words[0]!r}{near}")


def find_topics() -> dict[str, str]:
    """Return the texts of all topics by name, read from the folders `help` of presets, core first.

    The first line of a text describes it. An unreadable topic is left out.
    """
    topics: dict[str, str] = {}
    for root in preset_roots():
        for path in sorted((root / "help").glob("*.txt")):
            if path.stem in (COMMANDS, *topics):
                continue
            with suppress(ScenarioError):  # Of another distribution.
                topics[path.stem] = read_text(path, MAXIMUM_BYTES, ScenarioError, "").rstrip()
    return topics


def _all_commands() -> dict[str, dict[str, str]]:
    """Return all commands' descriptions by title and name; the commands of a noun share a title."""
    titled: dict[str, dict[str, str]] = {}
    for name, command in find_commands().items():
        noun = name.rpartition(".")[0] if ":" not in name else ""
        title = f"accel-bench {noun} COMMAND" if noun else command.title
        titled.setdefault(title, {})[name.rpartition(".")[2] if noun else name] = command.line
    return titled


def _print_lists(context: Any, titled: dict[str, dict[str, str]]) -> None:
    """Print the names and descriptions in `titled` below their titles, as `--help` does."""
    formatter = context.make_formatter()
    for title, lines in titled.items():
        with formatter.section(title):
            formatter.write_dl([*lines.items()])
    print_text(formatter.getvalue().strip())
