"""Commands that `ab` compares: one for each given command, value, revision and environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from accel_bench.cli.output import print_aside
from accel_bench.documents.canonical import digest
from accel_bench.documents.escaping import plain
from accel_bench.documents.files import locked
from accel_bench.errors import ScenarioError
from accel_bench.machine.caches import cache_folder
from accel_bench_ab.bisect_commits import check_out, commit_of, git, remove_tree
from accel_bench_ab.bisect_packages import build_whole_lock, read_lock
from accel_bench_ab.scenario import NamedCommand

BETWEEN = ".."
"""Separator of the two sides of `--ref` and `--env`."""


def split_commands(words: Sequence[str]) -> list[NamedCommand]:
    """Return the commands that `--` separates, named A, B and so on."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    given = [part for part in parts if part]
    return [NamedCommand(chr(ord("A") + place), part) for place, part in enumerate(given)]


@contextmanager
def compared_commands(
    words: Sequence[str], varied: Sequence[str], refs: str | None, environments: str | None
) -> Iterator[list[NamedCommand]]:
    """Yield a command line's commands; remove work trees of revisions after the `with` block.

    `varied`, `refs` and `environments` are the values of `--vary`, `--ref` and `--env`. Raises
    ScenarioError for fewer than two commands, or more than 26 given ones.
    """
    commands = split_commands(words)
    known = {command.name for command in commands}
    if len(commands) > len("ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
        raise ScenarioError(f"ab compares 26 commands at most, and there are {len(commands)}")
    for text in varied:
        commands = list(_varied(commands, text))
    with ExitStack() as stack:
        if refs is not None:
            both = stack.enter_context(_work_trees(refs))
            commands = [
                replace(command, name=f"{command.name}-{name}", folder=folder, revision=revision)
                for command in commands
                for name, folder, revision in both
            ]
        if environments is not None:
            sides = [_environment(side) for side in two_sides(environments, "--env", paths=True)]
            commands = [
                replace(command, name=f"{command.name}-{name}", programs=programs)
                for command in commands
                for name, programs in sides
            ]
        if len(commands) < 2:
            raise ScenarioError(
                "ab compares two commands or more: accel-bench ab -- A ... -- B ..., or one with "
                "--vary, --ref or --env"
            )
        yield [*_named(commands, alone=len(known) == 1)]


def _named(commands: Sequence[NamedCommand], alone: bool) -> Iterator[NamedCommand]:
    """Yield copies of the commands with unique names.

    If `alone`, all are variants of a single command, and a name states only what distinguishes its
    variant.
    """
    names = [command.name.partition("-")[2] if alone else command.name for command in commands]
    if len({name[:64] for name in names}) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    for command, name in zip(commands, names, strict=True):
        yield replace(command, name=name[:64])


def _varied(commands: Sequence[NamedCommand], text: str) -> Iterator[NamedCommand]:
    """Yield each command with every value of `NAME=A,B` in the place of `{NAME}`.

    A command without `{NAME}` is yielded once. Raises ScenarioError if no command has `{NAME}`.
    """
    name, equals, values = text.partition("=")
    if not equals or not name or not all(values.split(",")):
        raise ScenarioError(f"--vary {text}: expected NAME=VALUE,VALUE such as lr=1e-4,2e-4")
    place = f"{{{name}}}"
    if not any(place in word for command in commands for word in command.command):
        raise ScenarioError(f"--vary {text}: no command holds {place}")
    for command in commands:
        if not any(place in word for word in command.command):
            yield command
            continue
        for value in values.split(","):
            words = [word.replace(place, value) for word in command.command]
            varied = f"{plain_word(name).lstrip('-._+')}.{plain_word(value)}".lstrip(".")
            yield replace(command, name=f"{command.name}-{varied}", command=words)


def plain_word(text: str) -> str:
    """Return a text with `-` for each character that a stack's name cannot have."""
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text)


def two_sides(text: str, option: str, paths: bool = False) -> tuple[str, str]:
    """Return the texts before and after `..` in the value `text` of an option.

    If `paths`, a split into two existing paths is preferred, since a path may contain `..` too.
    Raises ScenarioError, which names the `option`, for any other text.
    """
    places = [match.start() for match in re.finditer(r"(?=\.\.)", text)]
    pairs = [(text[:place], text[place + len(BETWEEN) :]) for place in places]
    there = [pair for pair in pairs if paths and all(map(os.path.exists, pair))]
    before, after = [*there, *pairs, ("", "")][0]
    if not (before and after) or (after.startswith(".") and not there):
        raise ScenarioError(f"{option} {text}: expected OLD..NEW")
    return before, after


@contextmanager
def _work_trees(refs: str) -> Iterator[list[tuple[str, str, str]]]:
    """Check out both revisions of `OLD..NEW` for the duration of the `with` block.

    Yields the name, working folder and commit of each revision. The path of a work tree depends on
    the commit alone, since an experiment's identity includes the path. Another session waits until
    the work tree is free.
    """
    root = Path(git(Path.cwd(), "rev-parse", "--show-toplevel"))
    below = git(Path.cwd(), "rev-parse", "--show-prefix")
    commits = {ref: commit_of(root, ref) for ref in two_sides(refs, "--ref")}
    trees = {
        commit: cache_folder() / "ab" / digest(str(root), 24) / commit
        for commit in commits.values()
    }
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        print_aside("your changes that are not committed are in neither revision")
    revisions = []
    with ExitStack() as stack:
        for commit, tree in sorted(trees.items()):
            stack.enter_context(locked(tree.with_suffix(".lock")))
            stack.callback(remove_tree, root, tree)
            check_out(root, tree, commit)
        for ref in two_sides(refs, "--ref"):
            commit = commits[ref]
            name = plain_word(ref).strip("-._+") or commit[:10]
            revisions.append((name, os.path.join(trees[commit], below), commit))
        yield revisions


def _environment(side: str) -> tuple[str, str]:
    """Return the name and the `bin` folder of an environment.

    `side` is the environment's folder, or a lock file to install. Raises ScenarioError if the
    folder has no interpreter, or if the lock file cannot be installed.
    """
    path = Path(side)
    own = path.stem if path.is_file() else path.resolve().name
    name = plain_word(own).strip("-._+") or "environment"
    if path.is_dir():
        if not (path / "bin" / "python").exists():
            raise ScenarioError(f"--env {side} is no environment: it has no bin/python")
        return name, str((path / "bin").absolute())
    print_aside(plain(f"environment {name}: as pinned in {path}"))
    return name, str(build_whole_lock(read_lock(path)).parent)
