"""Experiment: one fully resolved point of a scenario, with its identity."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json, digest
from accel_bench.scenario.models import Scenario, Stack

SCHEMA_VERSION = 2
"""Schema version of scenarios, jobs and results; a reader refuses newer ones."""

LATER_RESOURCES = (
    "backend",
    "data_parallel",
    "device_memory_gib",
    "devices_by_node",
    "first_node_host_memory_gib",
    "host_memory_gib",
)
"""Keys of `resources` that are left out of an identity at their default, so that older ids stay."""


WITHOUT_EVALUATION: tuple[tuple[str, str, JsonValue], ...] = (
    ("data", "held_out", 0),
    ("evaluate", "batches", None),
    ("evaluate", "micro_batch_size", None),
    ("evaluate", "steps", 0),
    ("evaluate", "every", None),
)
"""Section, key and default of later settings, left out of an identity so that older ids stay."""


class Experiment(Frozen):
    """Experiment: work x stack x sweep values, the unit that a run executes."""

    id: str
    """First 12 hex digits of the SHA-256 of `identity` as canonical JSON."""

    scenario: Scenario
    """Resolved work, with the stack's settings and the sweep's values merged."""

    stack: Stack
    """The plugins that make this experiment differ from the baseline."""

    sweep: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of the swept keys at this point."""

    tag: str = ""
    """Name of the sweep point, made from its values; safe as a folder name."""

    identity: dict[str, JsonValue]
    """All settings and versions that can change the result, and nothing else."""

    notices: tuple[str, ...] = ()
    """Messages about parts that were added to the work because a plugin needs them."""

    @property
    def point(self) -> str:
        """Canonical JSON of the sweep values, equal for stacks that are compared."""
        return canonical_json(self.sweep)

    @property
    def series(self) -> str:
        """Digest that identifies work, stack, sweep point and kind of machine, without versions."""
        identity = {key: part for key, part in self.identity.items() if key != "environment"}
        environment = self.identity.get("environment")
        facts = environment if isinstance(environment, dict) else {}
        machine = [facts.get(key) for key in ("devices", "cores", "variables")]
        names = [self.scenario.name, self.stack.name, self.sweep]
        return digest([names, identity, machine])


def _task_of(task: dict[str, Any]) -> JsonValue:
    """Return a task's entry in an identity: its plugin's name, or a mapping with its options."""
    written = {key: value for key, value in task.items() if key != "counts"}
    return written if len(written) > 1 else written["use"]


def identity_of(scenario: Scenario, stack: Stack, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of an experiment: all values that can change a result.

    Names, rounds, timeouts and folders are left out: they do not change the work of a process.
    `environment` holds the versions, devices and fingerprints that `planning.plan` finds.
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
