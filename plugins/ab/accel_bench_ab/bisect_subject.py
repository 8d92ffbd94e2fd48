"""The work that `bisect` runs at each version: a command, or a stack of a scenario."""

from __future__ import annotations

import copy
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
    """Base class of the work that `bisect` runs at each version."""

    @property
    def needs_environment(self) -> bool:
        """True if planning needs the interpreter of a version's environment."""

    @property
    def identity(self) -> Sequence[str]:
        """Texts that distinguish the work from any other."""

    def plan(self, versions: Mapping[str, Prepared], rounds: int) -> Plan:
        """Return a plan with `rounds` rounds of these versions, by name."""

    def version_of(self, experiment: Experiment) -> str:
        """Return the name of the version that an experiment of the plan ran."""


@dataclass(frozen=True)
class CommandSubject:
    """A command as the work; its versions are stacks."""

    command: Sequence[str]
    settings: CommandSettings
    request: PlanRequest
    invoked: Invocation

    files: str = ""
    """Digests of the files that the command names, if they are the same at each version."""

    @property
    def needs_environment(self) -> bool:
        """True: the command may be a program of the environment."""
        return True

    @property
    def identity(self) -> list[str]:
        """Command, its settings and its files."""
        return [*self.command, repr(self.settings), self.files]

    def plan(self, versions: Mapping[str, Prepared], rounds: int) -> Plan:
        """Return the plan of the command in each version's folder and environment."""
        commands = [self._command(name, ready) for name, ready in versions.items()]
        overrides = (*self.request.overrides, ("name", "bisect"), ("measure.rounds", rounds))
        request = replace(self.request, overrides=overrides)
        return plan_commands(commands, self.settings, self.invoked, request)

    def version_of(self, experiment: Experiment) -> str:
        """Return the name of the experiment's stack."""
        return experiment.stack.name

    def _command(self, name: str, ready: Prepared) -> NamedCommand:
        programs = str(ready.python.parent) if ready.python else ""
        folder = str(ready.folder or "")
        return NamedCommand(name, self.command, folder, revision=ready.revision, programs=programs)


@dataclass(frozen=True)
class ScenarioSubject:
    """One stack of a scenario as the work; its versions are environments."""

    draft: Draft
    stack: str
    request: PlanRequest
    invoked: Invocation

    @property
    def needs_environment(self) -> bool:
        """False: the plan builds the environment."""
        return False

    @property
    def identity(self) -> list[str]:
        """Text of the scenario, changes of the command line, and name of the stack."""
        return [repr(self.draft.data), repr(self.request.overrides), self.stack]

    def plan(self, versions: Mapping[str, Prepared], rounds: int) -> Plan:
        """Return the plan of the stack in each version's environment, which is built."""
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
        """Return the name of the experiment's environment."""
        return experiment.scenario.resources.environment


def is_scenario(words: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether words are a scenario, a file or a shipped one's name, not a command."""
    return len(words) == 1 and (Path(words[0]).suffix in (".yaml", ".yml", ".toml") or
                                words[0] in known)  # fmt: skip
