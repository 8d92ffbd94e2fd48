"""An experiment: one fully resolved point, and the identity that says when two are the same."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.scenario.models import Scenario, Stack

SCHEMA_VERSION = 2
"""Version of scenarios, jobs and results; a reader refuses what is newer than itself."""

LATER_RESOURCES = (
    "data_parallel",
    "device_memory_gib",
    "first_node_host_memory_gib",
    "host_memory_gib",
)
"""Keys without which ids are those from before there were these keys."""


WITHOUT_EVALUATION: tuple[tuple[str, str, JsonValue], ...] = (
    ("data", "held_out", 0),
    ("evaluate", "batches", None),
    ("evaluate", "micro_batch_size", None),
    ("evaluate", "steps", 0),
    ("evaluate", "every", None),
)
"""Sections, keys and values with which ids are those from before there were evaluations."""


class Experiment(Frozen):
    """Work x stack x sweep values: what a run executes."""

    id: str
    """First 12 hex digits of the SHA-256 of `identity` as canonical JSON."""

    scenario: Scenario
    """The resolved work, with the stack's settings and the sweep's values folded in."""

    stack: Stack
    """The plugins that make this experiment differ from the baseline."""

    sweep: dict[str, JsonValue] = Field(default_factory=dict)
    """This point's values of the swept keys."""

    tag: str = ""
    """Name of the sweep point, made of its values; safe as the name of a folder."""

    identity: dict[str, JsonValue]
    """Everything that can change the result, and nothing else."""

    notices: tuple[str, ...] = ()
    """What was added to the work because a plugin needs it."""

    @property
    def point(self) -> str:
        """The sweep point as a canonical string: equal for the stacks that are compared."""
        return canonical_json(self.sweep)

    @property
    def series(self) -> str:
        """Key of its work, stack, sweep point and kind of machine: everything but versions."""
        identity = {key: part for key, part in self.identity.items() if key != "environment"}
        environment = self.identity.get("environment")
        facts = environment if isinstance(environment, dict) else {}
        machine = [facts.get(key) for key in ("devices", "cores", "variables")]
        names = [self.scenario.name, self.stack.name, self.sweep]
        return digest([names, identity, machine])


def _task_of(task: dict[str, Any]) -> JsonValue:
    """Return the name of a task, with its options where it has any: what it counts follows."""
    written = {key: value for key, value in task.items() if key != "counts"}
    return written if len(written) > 1 else written["use"]


def identity_of(scenario: Scenario, stack: Stack, environment: dict[str, Any]) -> dict[str, Any]:
    """Collect what can change a result.

    Names, rounds, timeouts and folders are left out: they do not change what a process does.
    `environment` holds versions, devices and fingerprints, by `planning.environments`.
    """
    work = scenario.model_dump(mode="json", exclude={"name", "description", "launcher"})
    measure = work.pop("measure")
    work["task"] = _task_of(work["task"])
    if not scenario.generates:
        del work["inference"]  # ids are those from before there was inference
    for key in LATER_RESOURCES:
        if work["resources"][key] is None:
            del work["resources"][key]
    for section, key, value in WITHOUT_EVALUATION:
        if work[section][key] == value:
            del work[section][key]
    if not work["evaluate"]:
        del work["evaluate"]
    if not work["data"]["prefetch"]:
        del work["data"]["prefetch"]
    return {
        "schema_version": SCHEMA_VERSION,
        "work": work,
        "measure": {key: measure[key] for key in ("warmup", "steps", "sync", "seed")},
        "uses": [use.model_dump(mode="json") for use in stack.uses],
        "environment": environment,
    }
