"""Scenario made of commands: a stack for each command, run by an ordinary session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from accel_bench_ab.plugin import ENGINE

By: TypeAlias = Literal["tokens", "steps", "wall"]
"""Unit in which a run is counted: real tokens, optimizer steps, or the whole run."""

TASKS: Mapping[By, str] = {
    "tokens": "command-tokens",
    "steps": "command-steps",
    "wall": "command-calls",
}
"""Name of the task that counts a run in each unit."""

LONGEST_SECONDS = 86_400.0
"""Time limit of one run in seconds, unless `--timeout` sets another."""

ANY_LENGTH = 16_777_216
"""Sequence length in the scenario, a placeholder: lengths of a command's batches are unknown."""


@dataclass(frozen=True)
class NamedCommand:
    """A command and the name of its stack."""

    name: str
    command: Sequence[str]

    folder: str = ""
    """Working folder; empty for the current one."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the command's stack, by dotted key."""

    revision: str = ""
    """Commit that is checked out in the folder; empty if the folder is the user's own."""

    programs: str = ""
    """Folder that is searched for programs before those of PATH; empty for none."""


@dataclass(frozen=True)
class CommandSettings:
    """Settings that all compared commands share."""

    by: By = "tokens"
    steps: int = 0
    """Measured steps after which a command is ended; 0 lets it end by itself."""

    figures: Mapping[str, str] = field(default_factory=dict)
    higher: Sequence[str] = ()
    observe: bool = True
    compare: str | None = None
    """Name of the compared quantity; None for speed."""


def commands_scenario(
    commands: Sequence[NamedCommand], settings: CommandSettings
) -> dict[str, Any]:
    """Return the contents of a scenario file with a stack for each command, the baseline first."""
    return {
        "name": "ab",
        "description": f"Which of {', '.join(command.name for command in commands)} is faster?",
        "task": {"use": TASKS[settings.by]},
        "model": {"use": "none", "id": "command"},
        "data": {"use": "none", "sequence_length": ANY_LENGTH if settings.by == "tokens" else 1},
        "optimizer": {"use": "none"},
        "engine": {
            "use": ENGINE,
            "steps": settings.steps,
            "figures": dict(settings.figures),
            "higher": [*settings.higher],
            "observe": settings.observe,
        },
        "metrics": [],
        "measure": {
            "phase_steps": 0,
            "exact_update_bytes": 0,
            "timeout_seconds": LONGEST_SECONDS,
            "compare": settings.compare,
        },
        "stacks": {command.name: {"set": _own(command)} for command in commands},
        "baseline": commands[0].name,
    }


def _own(one: NamedCommand) -> dict[str, Any]:
    more = {"folder": one.folder, "revision": one.revision, "programs": one.programs}
    known = {f"engine.{key}": value for key, value in more.items() if value}
    return {"engine.command": [*one.command], **known, **one.settings}
