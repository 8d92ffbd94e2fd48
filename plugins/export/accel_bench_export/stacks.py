"""Stacks to export: by name, from a scenario, or from stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_bench.analysis.wording import join_names
from accel_bench.cli.request import parse_overrides, single_draft
from accel_bench.documents.presets import find_presets
from accel_bench.errors import PluginError, ScenarioError, did_you_mean
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import stand_in_notices
from accel_bench.planning.request import PlanRequest
from accel_bench.planning.resolve import resolve_request
from accel_bench.plugins.registry import find
from accel_bench.runner.interrupted import open_results
from accel_bench.scenario.draft import read_stack
from accel_bench.scenario.models import Scenario, Stack, StackEntry
from accel_bench.scenario.uses import Use


def stack_alone(text: str) -> Stack:
    """Return the stack that `text` names: a shipped stack, a plugin, or several of them joined by
    `+`.

    Raises PluginError for an unknown name, and ScenarioError for an unusable file.
    """
    named = find_presets("stacks")
    uses: list[Use] = []
    settings: dict[str, Any] = {}
    for name in text.split("+"):
        if name not in named:
            find(name)
        entry = read_stack(named[name]) if name in named else StackEntry(use=(Use(use=name),))
        uses += entry.use
        settings |= entry.set
    return Stack(name=text, uses=tuple(uses), settings=settings)


def stack_in_scenario(
    text: str, scenario: str, changes: Sequence[str]
) -> tuple[Stack, Scenario, list[str]]:
    """Return the stack called `text` with its scenario, and remarks in sentences.

    The stack need not belong to the scenario. `scenario` is a file or a name, and `changes` are
    `KEY=VALUE` strings. In a sweep the first point is used, and a remark says so. Raises
    ScenarioError if the scenario or the changes are invalid, or if a size is `auto`, and
    PluginError for an unknown stack.
    """
    draft = single_draft(scenario, "export")
    own = draft.get("stacks") or {"baseline": []}
    if text not in own:
        try:
            alone = stack_alone(text)
        except PluginError as error:
            raise PluginError(f"{scenario} has {join_names([*own])}; {error}") from error
        uses = [use.model_dump(mode="json") for use in alone.uses]
        entry = {"use": uses, "set": dict(alone.settings)}
        draft.data.setdefault("stacks", {"baseline": {"use": []}})[text] = entry
    request = PlanRequest(
        overrides=parse_overrides(changes, {}), only=(text,), build_environments=False
    )
    file = resolve_request(draft, request)
    points = [point for point in file.points(read_machine().device) if point.stack.name == text]
    point = points[0]
    try:
        [*stand_in_notices(file, [point], request)]
    except ScenarioError as error:
        raise ScenarioError(f"{error}; `--run ID` has the numbers of a stored run") from error
    if point.scenario.generates:
        raise ScenarioError(f"{scenario}: answers requests, and a training program does not")
    swept = ", ".join(f"{key}={value}" for key, value in point.sweep.items())
    first = f"the first of {len(points)} points of a sweep, {swept}; --set chooses another"
    return point.stack, point.scenario, [first] if len(points) > 1 else []


def stored_stack(text: str, identifier: str, results: str) -> tuple[Stack, Scenario]:
    """Return the stack called `text` and its scenario from stored runs.

    `identifier` is the id of a run, experiment or session, and `results` is the store's folder or
    URL. Raises ScenarioError if these runs have no such stack, and StoreError for an unknown id.
    """
    with open_results(results) as store:
        stored = [run.experiment for run in store.find(identifier)]
    for experiment in stored:
        if experiment.stack.name == text:
            return experiment.stack, experiment.scenario
    names = sorted({experiment.stack.name for experiment in stored})
    raise ScenarioError(
        f"{identifier} holds no run of the stack {text!r}{did_you_mean(text, names)}; on other "
        "work, --scenario names it"
    )
