"""The engine `observed-command`, which runs a command in place of a worker, and its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from accel_bench import (
    Batch,
    Engine,
    Experiment,
    Held,
    Job,
    Loss,
    Machine,
    Options,
    Plugin,
    RankProcess,
    Run,
    Task,
    hookimpl,
)
from accel_bench_ab.launch import CommandProcess, program_of

ENGINE = "observed-command"
"""Name of the engine."""

MOST_HASHED_BYTES = 1 << 26
"""Maximum bytes of a file whose content is part of an experiment's identity."""


class CommandOptions(Options):
    """Options of the engine `observed-command`."""

    command: tuple[str, ...] = Field(default=(), strict=False)
    """Program and arguments, as the user gave them; no shell reads them."""

    folder: str = ""
    """Working folder of the command; empty for the folder in which accel-bench was started."""

    revision: str = ""
    """Commit that accel-bench checked out in the folder, for the record; empty for none."""

    programs: str = ""
    """Folder that is searched for programs before those of PATH, such as an environment's `bin`."""

    steps: int = Field(0, ge=0)
    """Measured steps after which the command is ended; 0 lets it end by itself."""

    figures: dict[str, str] = Field(default_factory=dict)
    """Figures of the command's own by name: a regular expression of its output, whose last match
    counts, or `json:PATH` in the last JSON object that it prints, or `json:FILE#PATH`."""

    higher: tuple[str, ...] = Field(default=(), strict=False)
    """Names of figures of which more is better; of all other figures, less is better."""

    observe: bool = True
    """True to observe the command's steps; false for wall time and the command's figures alone."""


def digests_of(words: Sequence[str], folder: Path) -> dict[str, str]:
    """Return SHA-256 digests of the files that a command names, by name.

    Files are words, values in `--option=FILE`, and the module after `-m`, relative to `folder`.
    Missing files, and files of more than 64 MiB, are left out.
    """
    names = [*words, *(word.partition("=")[2] for word in words)]
    for option, module in pairwise(words):
        if option == "-m":
            place = module.replace(".", "/")
            names += [f"{place}.py", f"{place}/__main__.py"]
    digests = {}
    for name in filter(None, names):
        path = folder / name
        with suppress(OSError, ValueError):  # A long word is no file, and others cannot be read.
            if path.is_file() and path.stat().st_size <= MOST_HASHED_BYTES:
                digests[name] = sha256(path.read_bytes()).hexdigest()
    return digests


class _Counts(Task[Options]):
    """Base class of tasks whose elements (tokens, steps or calls) the observer counts."""

    def held(self, batch: Batch) -> Held | None:
        """Return None, since the command makes its own batches."""
        return None

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Raise NotImplementedError, since the command computes its own loss."""
        raise NotImplementedError("a command computes its own loss")


class Tokens(_Counts):
    """Training of a command whose optimizer steps and tokens are seen."""


class Steps(_Counts):
    """Training of a command whose optimizer steps are seen, and their tokens are not."""

    counts: ClassVar[str] = "steps"


class Calls(_Counts):
    """Any command: each run of it is one call, timed by the wall clock."""

    counts: ClassVar[str] = "calls"


class Command(Plugin[CommandOptions]):
    """Runs a command in processes of its own, and reads what the observer has seen of it."""

    Options = CommandOptions
    modes = frozenset({"train"})
    tasks = frozenset({"command-tokens", "command-steps", "command-calls"})
    uses_torch = False

    def claims(self) -> frozenset[str]:
        """Return the names of the hooks that no other plugin may implement beside this engine.

        Only `launch_ranks` of these hooks is called in a run, since the command has its own model
        and data.
        """
        return frozenset(
            {"launch_ranks", "load_data", "load_model", "build_optimizer", "build_batches"}
        )

    def fingerprint(self, experiment: Experiment) -> Any:
        """Return digests of the files named in the command, such as its script."""
        return digests_of(self.options.command, Path(self.options.folder or ".")) or None

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield the reasons why the command cannot be started."""
        options = self.options
        if not options.command:
            yield "engine.command is empty: give a program and its arguments"
        elif program_of(options.command[0], options.folder, options.programs) is None:
            yield f"no program {options.command[0]!r} is on PATH, nor in the working folder"
        if options.steps and (experiment.scenario.counts == "calls" or not options.observe):
            yield "engine.steps ends a command by the steps that are seen, and none are counted"
        if options.folder and not Path(options.folder).is_dir():
            yield f"engine.folder {options.folder!r} is no folder"

    @hookimpl
    def launch_ranks(self, job: Job) -> Sequence[RankProcess]:
        """Start the process that runs and observes the command."""
        return [CommandProcess(job)]

    @hookimpl
    def load_data(self, run: Run) -> Any:
        """Return an empty dataset, since the command has its own data."""
        return ()

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return a placeholder, since the command has its own model."""
        return self

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        """Return a placeholder, since the command has its own optimizer."""
        return self

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Return an empty iterator, since the command has its own batches."""
        return iter(())

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Raise NotImplementedError, since the command takes its own steps."""
        raise NotImplementedError("a command takes its own steps, in a process of its own")
