"""The launchers `skypilot` and `kubeflow`, which print the command as a cluster's job."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from accel_bench import Allocation, Options, Redactor, Scenario, device_words, hookimpl
from accel_bench.errors import ScenarioError
from accel_bench_cluster.agents import AgentLauncher, Ended
from accel_bench_cluster.node_resources import (
    device_of_nodes,
    largest,
    memory_of_nodes,
    refuse_unequal,
)
from accel_bench_cluster.wire import SECRET

SCENARIOS = (".json", ".toml", ".yaml", ".yml")
"""File name suffixes of scenarios, which the nodes must be able to read."""


class RenderOptions(Options):
    """Options of both `skypilot` and `kubeflow`: the installation of accel-bench on a node."""

    setup: str = f"python3 -m pip install accel-bench=={metadata.version('accel-bench')}"
    """Shell command that installs accel-bench and the scenario's plugins on each node; empty if the
    image has them."""


def print_job(text: str, dry_run: bool, launcher: str, submit: str) -> Ended:
    """Print the job document `text`; return an `Allocation` that ends the command with code 0.

    Raises ScenarioError without `--dry-run`, since nothing is submitted; it names the command
    `submit` that submits the printed file.
    """
    if not dry_run:
        raise ScenarioError(
            f"launcher {launcher} renders a job and submits none: add --dry-run > job.yaml, then "
            f"`{submit} job.yaml`; or start the ranks here, with --set launcher=local"
        )
    print(text, end="")
    return Ended(0)


def to_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML text, with its keys in order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)


def without_empty(document: Any) -> Any:
    """Return a copy of a document of mappings and lists, without empty values of mappings at any
    depth."""
    if isinstance(document, list):
        return [without_empty(item) for item in document]
    if not isinstance(document, dict):
        return document
    kept = {key: without_empty(value) for key, value in document.items()}
    return {key: value for key, value in kept.items() if value not in (None, "", {}, [])}


def new_name() -> tuple[str, str]:
    """Return a new random name for a job, and a new secret that its nodes share."""
    return f"accel-bench-{secrets.token_hex(3)}", secrets.token_hex(32)


def command_on_nodes(command: Sequence[str], launcher: str) -> str:
    """Return the shell command for each node: the words of `command`, with the launcher `env`.

    Raises ScenarioError if the command contains a secret, or a scenario file that the nodes lack.
    `launcher` is named in the error.
    """
    words = [_portable(word, launcher) for word in _without_launcher(command[1:])]
    refuse_secrets(words, launcher)
    return shlex.join(["python3", "-m", "accel_bench", *words, "--set", "launcher=env"])


def refuse_secrets(words: Sequence[str], launcher: str) -> None:
    """Raise ScenarioError if a command contains a secret, since the platform stores the command.

    `words` are its arguments; the error shows them with the secret redacted, and names `launcher`.
    """
    shown = Redactor.of_this_process().redact_arguments(words)
    changed = [safe for word, safe in zip(words, shown, strict=True) if safe != word]
    if changed:
        raise ScenarioError(
            f"launcher {launcher}: the job would show a secret of the command ("
            f"{' '.join(changed)}); let the nodes have it as a variable of their own, such as "
            "ACCEL_BENCH_RESULTS for --results"
        )


def _without_launcher(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command except `--dry-run` and the settings of its launcher."""
    rest = iter(words)
    for word in rest:
        if word == "--set":
            setting = next(rest, "")
            if not _is_launcher(setting):
                yield from (word, setting)
        elif word != "--dry-run" and not _is_launcher(word.removeprefix("--set=")):
            yield word


def _is_launcher(setting: str) -> bool:
    return setting.startswith(("launcher=", "launcher."))


def _portable(word: str, launcher: str) -> str:
    """Return an argument of the command; a path in it is made relative to the working folder.

    The path may follow the `=` of an option or a key. Raises ScenarioError for a scenario file
    outside of the folder, which the nodes lack.
    """
    path = Path(word)
    is_scenario = path.suffix in SCENARIOS and path.is_file()
    if not (is_scenario or path.is_absolute()):
        option, equals, value = word.partition("=")
        return f"{option}={_portable(value, launcher)}" if equals else word
    here, there = Path.cwd().resolve(), path.resolve()
    if there.is_relative_to(here):
        return str(there.relative_to(here))
    if is_scenario:
        raise ScenarioError(
            f"launcher {launcher}: {word} is outside of {here}, and the nodes get this folder "
            "alone; copy it there, or change to a folder that holds it"
        )
    return word


def equal_nodes(scenarios: Sequence[Scenario], launcher: str) -> tuple[int, int, int | None]:
    """Return the number of nodes, the devices of each node, and the GiB of host memory of each;
    None if no scenario sets it.

    Raises ScenarioError if nodes need different devices or memory, since the platform's nodes are
    equal.
    """
    refuse_unequal(scenarios, launcher)
    nodes, devices = largest(scenarios)
    first, others = memory_of_nodes(scenarios)
    if nodes > 1 and first != others:
        raise ScenarioError(
            f"launcher {launcher}: the nodes of its jobs are alike, and the first one needs {first}"
            " GiB of host memory (resources.first_node_host_memory_gib); let all have as much, with"
            f" --set resources.host_memory_gib={first} --set "
            "resources.first_node_host_memory_gib=null, or use the launcher slurm"
        )
    return nodes, devices, first


NAME_JOB = 'ACCEL_BENCH_JOB="skypilot-$SKYPILOT_TASK_ID"'
"""Shell assignment of the job's name, by which a restarted job resumes its sessions."""


class SkyPilotOptions(RenderOptions):
    """Options of `skypilot`: resources of the task in addition to the scenario's."""

    extra: dict[str, Any] = Field(default_factory=dict)
    """Additional keys of the task, such as `{resources: {infra: aws, use_spot: true}}`."""


class SkyPilot(AgentLauncher[SkyPilotOptions]):
    """Renders the command as a task of SkyPilot, which `--dry-run` prints; submits nothing.

    Each node runs the command with the launcher `env`. Nodes get the working folder; results stay
    on the first node, in the folder of `--results`. The printed task contains a secret that is new
    for each task.
    """

    @hookimpl
    def allocate_ranks(
        self, scenarios: Sequence[Scenario], command: Sequence[str], dry_run: bool
    ) -> Allocation:
        """Print the SkyPilot task, and end the command."""
        task = without_empty(self.task(scenarios, command))
        text = to_yaml(merged(task, self.options.extra))
        return print_job(text, dry_run, "skypilot", "sky launch")

    def task(self, scenarios: Sequence[Scenario], command: Sequence[str]) -> dict[str, Any]:
        """Return the SkyPilot task as a mapping, into which the option `extra` is not merged yet.
        `command` are the words of this command."""
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
    """Return SkyPilot's name of a device type, such as `A100-80GB` for `a100 80gb`. Raises
    ScenarioError for None."""
    if device_type is None:
        raise ScenarioError(
            "launcher skypilot: SkyPilot asks for GPUs by name; set resources.device_type, such as "
            "l4 (`sky show-gpus` lists names)"
        )
    return "-".join(device_words(device_type)).upper()


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `below` into which `above` is merged; mappings of both are merged
    recursively, other values of `above` win."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            both[key] = merged(below[key], above[key])
    return both


API = "trainer.kubeflow.org/v1alpha1"

FOLDER = "/accel-bench"
"""Mount path of the volume `claim` in containers."""

CONTAINER = "node"
"""Name of the replicated job and of its container in Kubeflow's torch runtimes."""

MANAGER = "accel-bench/launcher"
"""Name of the field manager of the runtime's changes; each manager has one entry."""


class KubeflowOptions(RenderOptions):
    """Options of `kubeflow`: resources of the TrainJob in addition to the scenario's."""

    runtime: str = Field("torch-distributed", min_length=1)
    """Name of a ClusterTrainingRuntime for torch, which numbers the nodes."""

    image: str | None = Field(None, pattern=r"^[^\s]+$")
    """Image of the containers; null uses the runtime's."""

    claim: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """PersistentVolumeClaim with the scenario files, used as working folder for command and
    results; null uses the image's folder, and results are lost with the pod."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes, such as `{nvidia.com/gpu.product: NVIDIA-L4}`."""


class Kubeflow(AgentLauncher[KubeflowOptions]):
    """Renders the command as a TrainJob of Kubeflow Trainer, which `--dry-run` prints.

    It submits nothing. Each node runs the command with the launcher `env`.
    """

    @hookimpl
    def allocate_ranks(
        self, scenarios: Sequence[Scenario], command: Sequence[str], dry_run: bool
    ) -> Allocation:
        """Print the TrainJob and the Kubernetes Secret shared by its nodes, and end the command."""
        name, secret = new_name()
        kept = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        documents = [{**kept, "stringData": {SECRET: secret}}, self.job(scenarios, command, name)]
        text = "---\n".join(map(to_yaml, documents))
        return print_job(text, dry_run, "kubeflow", "kubectl create -f")

    def job(
        self, scenarios: Sequence[Scenario], command: Sequence[str], name: str
    ) -> dict[str, Any]:
        """Return the TrainJob as a mapping. `name` is the name of the job and of its Secret."""
        nodes, devices, memory = equal_nodes(scenarios, "kubeflow")
        secret = {"secretKeyRef": {"name": name, "key": SECRET}}
        trainer = {
            "image": self.options.image,
            "numNodes": nodes,
            "numProcPerNode": devices,
            "command": ["sh", "-c", self.script(command)],
            "resourcesPerNode": {
                "requests": {"memory": f"{memory}Gi"} if memory else {},
                "limits": {"nvidia.com/gpu": str(devices)} if self.has_gpus(scenarios) else {},
            },
            "env": [
                {"name": SECRET, "valueFrom": secret},
                {"name": "ACCEL_BENCH_JOB", "value": f"kubeflow-{name}"},
            ],
        }
        runtime = {"name": self.options.runtime}
        spec = {"runtimeRef": runtime, "trainer": without_empty(trainer)}
        if patches := self.patches():
            spec["runtimePatches"] = patches
        return {"apiVersion": API, "kind": "TrainJob", "metadata": {"name": name}, "spec": spec}

    def has_gpus(self, scenarios: Sequence[Scenario]) -> bool:
        """Return whether the nodes have GPUs.

        Raises ScenarioError for a device type without the option `node_selector`, since only the
        cluster knows its label.
        """
        device, kind = device_of_nodes(scenarios, "kubeflow")
        if kind is not None and not self.options.node_selector:
            raise ScenarioError(
                f"launcher kubeflow: Kubernetes knows no device type {kind}; name the label that "
                "such nodes have in the cluster, as by --set "
                "'launcher.node_selector={nvidia.com/gpu.product: NVIDIA-L4}'"
            )
        return device == "cuda"

    def script(self, command: Sequence[str]) -> str:
        """Return the shell script of a container: change to the volume, install, and run
        `command`."""
        folder = f"cd {shlex.quote(FOLDER)}" if self.options.claim else ""
        again = f"exec {command_on_nodes(command, 'kubeflow')}"
        return " && ".join(filter(None, [folder, self.options.setup, again]))

    def patches(self) -> list[dict[str, Any]]:
        """Return the changes to the runtime's pods, for volume and node labels; an empty list if
        there are none."""
        pod: dict[str, Any] = {}
        if self.options.node_selector:
            pod["nodeSelector"] = self.options.node_selector
        if claim := self.options.claim:
            volume = {"name": "accel-bench", "persistentVolumeClaim": {"claimName": claim}}
            mount = {"name": "accel-bench", "mountPath": FOLDER}
            pod["volumes"] = [volume]
            pod["containers"] = [{"name": CONTAINER, "volumeMounts": [mount]}]
        if not pod:
            return []
        # From the JobSet down to the pod, each level has a template.
        node = {"name": CONTAINER, "template": {"spec": {"template": {"spec": pod}}}}
        runtime = {"template": {"spec": {"replicatedJobs": [node]}}}
        return [{"manager": MANAGER, "trainingRuntimeSpec": runtime}]
