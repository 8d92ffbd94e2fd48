"""Session plans of commands for `ab` and `bisect`, and short trial runs of the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from shlex import join
from typing import Any

from accel_bench.cli.request import Invocation
from accel_bench.errors import ScenarioError, WorkerError
from accel_bench.planning.plan import Plan, PlanRequest
from accel_bench.runner.purpose import ask_ranks
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.find import find_drafts
from accel_bench_ab.scenario import CommandSettings, NamedCommand, commands_scenario

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
"""Abbreviations of dtypes of 16 bits."""

LOOK = "look-at-command"
"""Purpose of a job that runs a command briefly to find out what the observer can see."""


def plan_commands(
    commands: Sequence[NamedCommand],
    settings: CommandSettings,
    invoked: Invocation,
    request: PlanRequest,
) -> Plan:
    """Return the plan of a session that compares commands; the first is the baseline."""
    return invoked.plan(commands_draft(commands, settings), request)


def commands_draft(commands: Sequence[NamedCommand], settings: CommandSettings) -> Draft:
    """Return the scenario that compares commands, before options of the command line change it."""
    with redirect_stdout(sys.stderr):
        (draft,) = find_drafts([commands_scenario(commands, settings)])
    return draft


def see(plan: Plan, invoked: Invocation) -> dict[str, dict[str, Any]]:
    """Run each command of a plan until three of its steps are observed, or to its end.

    Returns what was observed by the command's name: the keys are those of `Finished.seen`, such as
    `unseen` and `dtypes`. Raises WorkerError if a command fails.
    """
    seen = {}
    for planned in plan.runnable:
        stack = planned.experiment.stack
        try:
            (text,) = ask_ranks(LOOK, planned, invoked.machine, one_process=True)
        except WorkerError as error:
            words: Any = planned.experiment.scenario.engine.options["command"]
            failed = f"{stack.name} ({join(words)}) failed before its third step: {error.reason}"
            raise WorkerError(failed) from error
        seen[stack.name] = json.loads(text)
    return seen


def in_their_dtypes(
    commands: Sequence[NamedCommand], seen: Mapping[str, Mapping[str, Any]]
) -> list[NamedCommand]:
    """Return copies of the commands, with settings for the 16-bit dtypes observed in them.

    `seen` has the observations by the command's name. The limits of verdicts depend on the dtypes.
    """
    result = []
    for command in commands:
        facts = seen.get(command.name, {"autocast": "", "dtypes": ()})
        dtypes = {*facts["dtypes"]}
        more: dict[str, Any] = {}
        if facts["autocast"] in PRECISIONS:
            more["train.precision"] = f"{PRECISIONS[facts['autocast']]}-autocast"
        elif len(dtypes) == 1 and dtypes <= PRECISIONS.keys():
            (more["model.dtype"],) = dtypes
        result.append(replace(command, settings={**more, **command.settings}))
    return result


def counted_by(seen: Mapping[str, Mapping[str, Any]], settings: CommandSettings) -> CommandSettings:
    """Return the settings with the unit in which runs of all commands can be counted.

    `seen` has the observations that `see` returns. Raises ScenarioError if `settings.steps` is set,
    but the observer sees no steps.
    """
    unseen = {what for facts in seen.values() for what in facts["unseen"]}
    if "steps" not in unseen:
        return replace(settings, by="steps" if "tokens" in unseen else "tokens")
    if settings.steps:
        raise ScenarioError(
            "--steps ends a command by the steps that are seen, and none are seen of all commands"
        )
    return replace(settings, by="wall")
