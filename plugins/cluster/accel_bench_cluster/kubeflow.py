"""`kubeflow`: renders the command as a TrainJob of Kubeflow Trainer."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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

API = "trainer.kubeflow.org/v1alpha1"

FOLDER = "/accel-bench"
"""Folder at which the volume of `claim` appears in the containers."""

CONTAINER = "node"
"""Name of the job and of its container in Kubeflow's runtimes for torch."""

MANAGER = "accel-bench/launcher"
"""Owner of the changes to the runtime, of which each owner has one entry."""


class KubeflowOptions(RenderOptions):
    """What the TrainJob asks for beside what the scenario needs."""

    runtime: str = Field("torch-distributed", min_length=1)
    """Name of the ClusterTrainingRuntime; one for torch, which numbers the nodes."""

    image: str | None = Field(None, pattern=r"^[^\s]+$")
    """Image of the containers; null is the runtime's."""

    claim: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """PersistentVolumeClaim with the scenario files, in which the command is run and the results
    stay; null runs in the image's folder, and the results go with the pod."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes, such as `{nvidia.com/gpu.product: NVIDIA-L4}`."""


class Kubeflow(AgentLauncher[KubeflowOptions]):
    """Renders the command as a TrainJob of Kubeflow Trainer, which `--dry-run` prints.

    It submits nothing. On each node the same command takes the node's processes over, as the
    launcher `env` does.
    """

    @hookimpl
    def allocate_ranks(
        self, scenarios: Sequence[Scenario], command: Sequence[str], dry_run: bool
    ) -> Allocation:
        """Print the TrainJob, and the Kubernetes Secret that its nodes share."""
        name, secret = new_name()
        kept = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        documents = [{**kept, "stringData": {SECRET: secret}}, self.job(scenarios, command, name)]
        text = "---\n".join(map(to_yaml, documents))
        return print_job(text, dry_run, "kubeflow", "kubectl create -f")

    def job(
        self, scenarios: Sequence[Scenario], command: Sequence[str], name: str
    ) -> dict[str, Any]:
        """Return the TrainJob."""
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

        Raises ScenarioError for a type of which only the cluster knows the label.
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
        """Return what the shell of a container runs."""
        folder = f"cd {shlex.quote(FOLDER)}" if self.options.claim else ""
        again = f"exec {command_on_nodes(command, 'kubeflow')}"
        return " && ".join(filter(None, [folder, self.options.setup, again]))

    def patches(self) -> list[dict[str, Any]]:
        """Return what the pods have beside the runtime's: the volume, the labels of nodes."""
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
