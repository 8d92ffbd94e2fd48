"""The compared commands, from the words of the command line: each value, revision, environment."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from accel_bench.cli.output import print_aside
from accel_bench.documents.escaping import plain
from accel_bench.errors import ScenarioError
from accel_bench.planning.activation import ENVIRONMENTS
from accel_bench.plugins.doors import find_entry
from accel_bench.scenario.settings import PythonEnvironment
from accel_bench_ab.scenario import NamedCommand

BETWEEN = ".."
"""Sign between the two sides of `--ref` and `--env`."""


def split_commands(words: Sequence[str]) -> list[NamedCommand]:
    """Return the commands between `--`, called A, B and so on."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    found = [part for part in parts if part]
    return [NamedCommand(chr(ord("A") + place), part) for place, part in enumerate(found)]


@contextmanager
def compared_commands(
    words: Sequence[str], varied: Sequence[str], refs: str | None, environments: str | None
) -> Iterator[list[NamedCommand]]:
    """Yield the commands of a command line; the work trees of revisions go with the block.

    Raises ScenarioError for fewer than two.
    """
    commands = split_commands(words)
    known = {one.name for one in commands}
    if len(commands) > len("ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
        raise ScenarioError(f"ab compares 26 commands at most, and there are {len(commands)}")
    for text in varied:
        commands = list(_varied(commands, text))
    with ExitStack() as stack:
        if refs is not None:
            both = [stack.enter_context(_work_tree(ref)) for ref in two_sides(refs, "--ref")]
            commands = [
                replace(one, name=f"{one.name}-{name}", folder=folder, revision=revision)
                for one in commands
                for name, folder, revision in both
            ]
        if environments is not None:
            found = [_environment(side) for side in two_sides(environments, "--env")]
            commands = [
                replace(one, name=f"{one.name}-{name}", programs=programs)
                for one in commands
                for name, programs in found
            ]
        if len(commands) < 2:
            raise ScenarioError(
                "ab compares two commands or more: accel-bench ab -- A ... -- B ..., or one with "
                "--vary, --ref or --env"
            )
        yield [*_named(commands, alone=len(known) == 1)]


def _named(commands: Sequence[NamedCommand], alone: bool) -> Iterator[NamedCommand]:
    """Yield commands under names of their own; forms of one command `alone` by what differs."""
    names = [one.name.partition("-")[2] if alone else one.name for one in commands]
    if len({name[:64] for name in names}) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    for one, name in zip(commands, names, strict=True):
        yield replace(one, name=name[:64])


def _varied(commands: Sequence[NamedCommand], text: str) -> Iterator[NamedCommand]:
    """Yield each command with each value of `NAME=A,B`. Raises ScenarioError for unused values."""
    name, equals, values = text.partition("=")
    if not equals or not name or not all(values.split(",")):
        raise ScenarioError(f"--vary {text}: expected NAME=VALUE,VALUE such as lr=1e-4,2e-4")
    place = f"{{{name}}}"
    if not any(place in word for one in commands for word in one.command):
        raise ScenarioError(f"--vary {text}: no command holds {place}")
    for one, value in itertools.product(commands, values.split(",")):
        words = [word.replace(place, value) for word in one.command]
        yield replace(one, name=f"{one.name}-{name}.{plain_word(value)}", command=words)


def plain_word(text: str) -> str:
    """Return a text as a part of a stack's name."""
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text)


def two_sides(text: str, option: str) -> tuple[str, str]:
    """Return what stands before and after `..`. Raises ScenarioError for anything else."""
    before, dots, after = text.partition(BETWEEN)
    if not (before and dots and after) or after.startswith("."):
        raise ScenarioError(f"{option} {text}: expected OLD..NEW")
    return before, after


def git(*arguments: str, folder: str | None = None) -> str:
    """Return what git prints. Raises ScenarioError with its last line."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ScenarioError(f"git {' '.join(arguments[:2])}: {last}")
    return done.stdout.strip()


@contextmanager
def _work_tree(ref: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, working folder and commit of a revision, checked out beside the repository."""
    revision = git("rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    below = git("rev-parse", "--show-prefix")
    with tempfile.TemporaryDirectory(prefix="accel-bench-ref-") as folder:
        tree = os.path.join(folder, "tree")
        git("worktree", "add", "--detach", tree, revision)
        try:
            yield plain_word(ref).strip("-."), os.path.join(tree, below), revision
        finally:
            git("worktree", "remove", "--force", tree)


def _environment(side: str) -> tuple[str, str]:
    """Return name and folder of programs of an environment: its folder, or one made of a file of
    pinned requirements. Raises ScenarioError."""
    path = Path(side)
    name = plain_word(path.stem if path.is_file() else path.name).strip("-.")
    if path.is_dir():
        if not (path / "bin" / "python").exists():
            raise ScenarioError(f"--env {side} is no environment: it has no bin/python")
        return name, str((path / "bin").absolute())
    settings = PythonEnvironment(requirements=requirements_of(path))
    entry = find_entry(ENVIRONMENTS, "finder of environments", "python")
    with entry.blamed():
        found = entry.load()(name, settings, (), lambda line: print_aside(plain(line)))
    return name, str(Path(found.command[0]).parent)


def requirements_of(path: Path) -> tuple[str, ...]:
    """Return the pinned requirements in a file as pip writes it. Raises ScenarioError."""
    try:
        text = path.read_text(encoding="utf8")
    except (OSError, ValueError) as error:
        raise ScenarioError(f"--env {path} could not be read: {error}") from error
    lines = re.sub(r"\\\n", " ", text).splitlines()
    bare = (re.split(r"\s#|\s--hash", line)[0].strip() for line in lines)
    found = tuple(line for line in bare if line and not line.startswith(("#", "-")))
    if not found or any(re.search(r"^\[|^\w+ = ", line) for line in found):
        raise ScenarioError(f"--env {path} is no list of requirements, as `pip freeze` writes it")
    return found
