"""`skypilot`: renders the command as a task of SkyPilot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from accel_bench import Allocation, Scenario, hookimpl
from accel_bench.errors import ScenarioError
from accel_bench_cluster.agents import AgentLauncher
from accel_bench_cluster.places import device_of_nodes
from accel_bench_cluster.rendering import (
    RenderOptions,
    command_on_nodes,
    equal_nodes,
    new_name,
    print_job,
    to_yaml,
    without_empty,
)
from accel_bench_cluster.wire import SECRET

NAME_JOB = 'ACCEL_BENCH_JOB="skypilot-$SKYPILOT_TASK_ID"'
"""Names the job, so that one that is recovered continues its own sessions."""


class SkyPilotOptions(RenderOptions):
    """What the task asks for beside what the scenario needs."""

    extra: dict[str, Any] = Field(default_factory=dict)
    """More keys of the task, such as `{resources: {infra: aws, use_spot: true}}`."""


class SkyPilot(AgentLauncher[SkyPilotOptions]):
    """Renders the command as a task of SkyPilot, which `--dry-run` prints; submits nothing.

    On each node the same command takes the node's processes over, as the launcher `env` does. The
    nodes get the working folder; the results stay on the first one, in the folder of `--results`.
    The printed task holds a secret, which is this task's alone.
    """

    @hookimpl
    def allocate_ranks(
        self, scenarios: Sequence[Scenario], command: Sequence[str], dry_run: bool
    ) -> Allocation:
        """Print the task."""
        task = without_empty(self.task(scenarios, command))
        text = to_yaml(merged(task, self.options.extra))
        return print_job(text, dry_run, "skypilot", "sky launch")

    def task(self, scenarios: Sequence[Scenario], command: Sequence[str]) -> dict[str, Any]:
        """Return the task, without `extra`."""
        nodes, devices, memory = equal_nodes(scenarios, "skypilot")
        device, kind = device_of_nodes(scenarios, "skypilot")
        resources: dict[str, Any] = {}
        if device == "cuda":
            resources["accelerators"] = {accelerator(kind): devices}
        if memory is not None:
            resources["memory"] = f"{memory}+"
        name, secret = new_name()
        return {
            "name": name,
            "num_nodes": nodes,
            "workdir": ".",
            "resources": resources,
            "secrets": {SECRET: secret},
            "setup": self.options.setup,
            "run": f"{NAME_JOB} {command_on_nodes(command, 'skypilot')}",
        }


def accelerator(device_type: str | None) -> str:
    """Return SkyPilot's name of a type of devices: `A100-80GB` for `a100 80gb`."""
    if device_type is None:
        raise ScenarioError(
            "launcher skypilot: SkyPilot asks for GPUs by name; set resources.device_type, such as "
            "l4 (`sky show-gpus` lists names)"
        )
    return "-".join(device_type.upper().split())


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with another one laid over it, mapping by mapping."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            both[key] = merged(below[key], above[key])
    return both
