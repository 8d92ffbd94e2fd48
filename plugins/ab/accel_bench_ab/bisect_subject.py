"""Subjects that `bisect` runs at each version: a command, or a stack of a scenario."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from accel_bench.cli.request import Invocation
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.experiment import Experiment
from accel_bench_ab.bisect_history import Prepared
from accel_bench_ab.scenario import CommandSettings, NamedCommand
from accel_bench_ab.session import plan_commands


class Subject(Protocol):
    """Protocol of what `bisect` runs at each version: a command, or a stack of a scenario."""

    @property
    def needs_environment(self) -> bool:
        """True if planning needs the interpreter of a version's environment."""

    @property
    def identity(self) -> Sequence[str]:
        """Texts that identify what is run, so that only the same search is resumed."""

    def plan(self, versions: Mapping[str, Prepared], rounds: int) -> Plan:
        """Return the plan of a session that measures versions in a number of rounds.

        `versions` maps the name of each version to its folder and environment.
        """

    def version_of(self, experiment: Experiment) -> str:
        """Return the name of the version that an experiment of the plan ran."""


@dataclass(frozen=True)
class CommandSubject:
    """Command that `bisect` runs; each version is a stack of the plan."""

    command: Sequence[str]
    settings: CommandSettings
    request: PlanRequest
    invoked: Invocation

    files: str = ""
    """Digests of the files that the command names, if they are the same at each version."""

    @property
    def needs_environment(self) -> bool:
        """True, since the command may be a program of the version's environment."""
        return True

    @property
    def identity(self) -> list[str]:
        """Words of the command, its settings, overrides, where it imports from, and its files."""
        path = os.environ.get("PYTHONPATH", "")
        return [*self.command, repr(self.settings), repr(self.request.overrides), path, self.files]

    def plan(self, versions: Mapping[str, Prepared], rounds: int) -> Plan:
        """Return a session's plan: the command, run in each version's folder and environment."""
        commands = [self._command(name, ready) for name, ready in versions.items()]
        overrides = (*self.request.overrides, ("name", "bisect"), ("measure.rounds", rounds))
        request = replace(self.request, overrides=overrides)
        return plan_commands(commands, self.settings, self.invoked, request)

    def version_of(self, experiment: Experiment) -> str:
        """Return the name of the experiment's stack, which is the version's name."""
        return experiment.stack.name

    def _command(self, name: str, ready: Prepared) -> NamedCommand:
        programs = str(ready.python.parent) if ready.python else ""
        folder = str(ready.folder or "")
        return NamedCommand(name, self.command, folder, revision=ready.revision, programs=programs)


@dataclass(frozen=True)
class ScenarioSubject:
    """Stack of a scenario that `bisect` runs; each version is an environment of the plan."""

    draft: Draft
    stack: str
    request: PlanRequest
    invoked: Invocation

    @property
    def needs_environment(self) -> bool:
        """False, since planning builds the environments."""
        return False

    @property
    def identity(self) -> list[str]:
        """Text of the scenario, overrides by the command line, stack, and where it imports from."""
        path = os.environ.get("PYTHONPATH", "")
        return [repr(self.draft.data), repr(self.request.overrides), self.stack, path]

    def plan(self, versions: Mapping[str, Prepared], rounds: int) -> Plan:
        """Return a session's plan: the stack, run in an environment built for each version."""
        draft = copy.deepcopy(self.draft)
        draft.data["environments"] = {
            name: {"requirements": [*ready.requirements]} for name, ready in versions.items()
        }
        request = replace(
            self.request,
            overrides=(*self.request.overrides, ("measure.rounds", rounds)),
            only=(self.stack,),
            no_baseline=True,
            # The environments are the command line's choice: all else was planned without this.
            allow_environment=True,
        )
        return self.invoked.plan(draft, request)

    def version_of(self, experiment: Experiment) -> str:
        """Return the name of the experiment's environment, which is the version's name."""
        return experiment.scenario.resources.environment


def is_scenario(words: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether `words` name a scenario, by file or shipped name, and are no command.

    `known` are the names of the scenarios shipped with accel-bench.
    """
    return len(words) == 1 and (Path(words[0]).suffix in (".yaml", ".yml", ".toml") or
                                words[0] in known)  # fmt: skip
