"""`skypilot` and `kubeflow`: jobs that their own parsers accept and every node can run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from accel_bench_cluster.rendering import command_on_nodes
from cli.program import call
from launched import Launched, free_port

from accel_bench import Status

ON_TWO_NODES = {"device": "cpu", "nodes": 2, "devices": 1}

ON_GPUS = {"device": "cuda", "device_type": "l4", "nodes": 3, "devices": 4, "host_memory_gib": 64}

SELECTOR = {"nvidia.com/gpu.product": "NVIDIA-L4"}

SKYPILOT = "skypilot==0.14.1"

PARSE = """
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(json.dumps([task.num_nodes, resources.accelerators, resources.memory, task.run]))
"""
"""Program that parses a task as `sky launch` does."""


def render(program: Launched, *words: str, **changes: Any) -> list[dict[str, Any]]:
    """Return the documents that a dry run prints, in the program's folder."""
    program.write(**changes)
    done = call("run", "scenario.yaml", "-q", *words, "--dry-run", folder=program.folder)
    assert done.code == 0, done.err
    return list(yaml.safe_load_all(done.out))


def check_run(program: Launched, commands: list[list[str]], nodes: list[Mapping[str, str]]) -> None:
    """Run a node's command with the variables of each node; together they make one run."""
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    started = [
        program.start_command(command, {**path, **variables})
        for command, variables in zip(commands, nodes, strict=True)
    ]
    done, *others = [program.finish(process) for process in started]
    assert done.code == 0, done.err + done.out
    assert [one.code for one in others] == [0]
    (result,) = done.results
    assert result.status is Status.OK, result.reasons
    assert [node.rank for node in result.nodes] == [0, 1]
    assert program.left_behind() == []


def test_a_task_of_skypilot_runs_on_every_node(program: Launched) -> None:
    launcher = {"use": "skypilot", "extra": {"resources": {"infra": "aws"}}}
    settings = ("--set", 'launcher.setup=""', "--set=launcher.extra.envs={A: b}", "--oversubscribe")
    (task,) = render(program, *settings, resources=ON_TWO_NODES, launcher=launcher)
    assert (task["num_nodes"], task["workdir"], task["envs"]) == (2, ".", {"A": "b"})
    assert task["resources"] == {"infra": "aws"}
    assert "setup" not in task
    shared = {
        **task["secrets"],
        "SKYPILOT_TASK_ID": str(uuid4()),
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
    }
    nodes = [{**shared, "SKYPILOT_NODE_RANK": str(rank)} for rank in range(2)]
    check_run(program, [["bash", "-c", task["run"]]] * 2, nodes)


@pytest.mark.release
def test_a_train_job_of_kubeflow_runs_on_every_node(program: Launched) -> None:
    settings = ("--set", "launcher.use=kubeflow", "--set", 'launcher.setup=""', "--oversubscribe")
    secret, job = render(program, *settings, resources=ON_TWO_NODES)
    check_train_job(job)
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 1)
    (name, value) = trainer["env"][0]["name"], trainer["env"][0]["valueFrom"]["secretKeyRef"]
    assert value["name"] == secret["metadata"]["name"]
    shared = {
        name: secret["stringData"][value["key"]],
        trainer["env"][1]["name"]: trainer["env"][1]["value"],
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
    }
    nodes = [{**shared, "PET_NODE_RANK": str(rank)} for rank in range(2)]
    check_run(program, [trainer["command"]] * 2, nodes)


def check_train_job(job: dict[str, Any]) -> None:
    """Check that Kubeflow's model accepts the TrainJob with all its keys."""
    # Its models take long to import.
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

    model = TrainerV1alpha1TrainJob.from_json(json.dumps(job))
    assert model is not None
    assert model.to_dict() == job


def test_a_train_job_asks_for_what_the_scenario_needs(program: Launched) -> None:
    launcher = {"use": "kubeflow", "claim": "data", "image": "i:1", "node_selector": SELECTOR}
    _, job = render(program, resources=ON_GPUS, launcher=launcher)
    check_train_job(job)
    trainer = job["spec"]["trainer"]
    asked = {"requests": {"memory": "64Gi"}, "limits": {"nvidia.com/gpu": "4"}}
    assert (trainer["resourcesPerNode"], trainer["numNodes"]) == (asked, 3)
    assert trainer["command"][2].startswith("cd /accel-bench && python3 -m pip install accel-bench")
    (patch,) = job["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == SELECTOR
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}


def test_a_task_asks_for_what_the_scenario_needs(program: Launched) -> None:
    (task,) = render(program, "--set", "launcher=skypilot", resources=ON_GPUS)
    assert task["resources"] == {"accelerators": {"L4": 4}, "memory": "64+"}
    words = "python3 -m accel_bench run scenario.yaml -q --set launcher=env"
    assert task["run"].endswith(words)
    assert task["setup"].startswith("python3 -m pip install accel-bench==")
    (task,) = render(program, "--set", "launcher=skypilot", resources={**ON_GPUS, "nodes": 1})
    assert task["num_nodes"] == 1


def test_empty_values_of_the_user_stay(program: Launched) -> None:
    extra = {"envs": {"HTTP_PROXY": ""}, "resources": {"ports": []}}
    (task,) = render(program, resources=ON_TWO_NODES, launcher={"use": "skypilot", "extra": extra})
    assert (task["envs"], task["resources"]) == ({"HTTP_PROXY": ""}, {"ports": []})
    launcher = {"use": "kubeflow", "node_selector": {"node-role.kubernetes.io/worker": ""}}
    _, job = render(program, resources=ON_TWO_NODES, launcher=launcher)
    (patch,) = job["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == launcher["node_selector"]
    assert "resourcesPerNode" not in job["spec"]["trainer"]


def test_paths_behind_an_equals_sign_are_those_of_the_nodes(program: Launched) -> None:
    path = program.folder / "there"
    words = ("--set", "launcher=skypilot", f"--results={path}", "--set", f"tags.of={path}/x.json")
    rendered = command_on_nodes(["accel-bench", "run", *words], "skypilot")
    assert str(path) in rendered
    with contextlib.chdir(program.folder):
        rendered = command_on_nodes(["accel-bench", "run", *words], "skypilot")
    assert "run --results=there --set tags.of=there/x.json --set launcher=env" in rendered


@pytest.mark.parametrize("launcher", ["skypilot", "kubeflow", "slurm"])
def test_a_secret_of_the_command_is_not_rendered(program: Launched, launcher: str) -> None:
    name = program.write(resources=ON_TWO_NODES)
    for words in (
        ("--results", "postgresql://me:hunter2hunter2@db/runs"),
        ("--allow-env", "--set", "environment.HF_TOKEN=hunter2hunter2"),
    ):
        options = ("--set", f"launcher.use={launcher}", *words, "--dry-run")
        done = call("run", name, *options, folder=program.folder)
        assert (done.code, done.out) == (2, ""), done.err
        assert "hunter2" not in done.err
        assert "as a variable of their own, such as ACCEL_BENCH_RESULTS" in done.err


@pytest.mark.release
def test_skypilot_reads_the_task(program: Launched) -> None:
    """Its click is older than ours: it is installed apart."""
    environment = program.folder / "skypilot"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = str(environment / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-compile", SKYPILOT], check=True
    )
    (task,) = render(program, "--set", "launcher=skypilot", resources=ON_GPUS)
    path = program.folder / "task.yaml"

    def parse() -> subprocess.CompletedProcess[str]:
        path.write_text(yaml.safe_dump(task))
        command = [python, "-c", PARSE, str(path)]
        home = {"HOME": str(program.folder), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            command, cwd=program.folder, env=home, capture_output=True, text=True, check=False
        )

    done = parse()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [3, {"L4": 4}, "64+", task["run"]]
    task["number_of_nodes"] = task.pop("num_nodes")
    assert "number_of_nodes" in parse().stderr


@pytest.mark.parametrize(
    ("launcher", "resources", "culprits"),
    [
        ("skypilot", {"device": "cuda"}, ["GPUs by name", "resources.device_type"]),
        ("kubeflow", ON_GPUS, ["no device type l4", "launcher.node_selector={"]),
        (
            "kubeflow",
            {**ON_TWO_NODES, "host_memory_gib": 1, "first_node_host_memory_gib": 256},
            ["the first one needs 256 GiB", "resources.host_memory_gib=256"],
        ),
        (
            "skypilot",
            {**ON_TWO_NODES, "host_memory_gib": 64, "first_node_host_memory_gib": 256},
            ["the first one needs 256 GiB", "launcher slurm"],
        ),
        *(
            (
                launcher,
                {"device": "cpu", "devices_by_node": [2, 1]},
                [
                    f"launcher {launcher} starts as many",
                    "devices_by_node is [2, 1]",
                    "slurm or ray",
                ],
            )
            for launcher in ("skypilot", "kubeflow", "torchrun", "accelerate")
        ),
    ],
)
def test_what_a_platform_cannot_say_is_refused(
    program: Launched, launcher: str, resources: dict[str, Any], culprits: list[str]
) -> None:
    name = program.write(resources=resources)
    done = call(
        "run", name, "--set", f"launcher.use={launcher}", "--dry-run", folder=program.folder
    )
    assert done.code == 2
    assert all(culprit in done.err for culprit in culprits), done.err
    assert done.out == ""


def test_nothing_is_submitted_and_no_file_is_left_out(program: Launched, tmp_path: Path) -> None:
    name = program.write(resources=ON_TWO_NODES)
    done = call("run", name, "--set", "launcher.use=skypilot", folder=program.folder)
    assert (done.code, done.out) == (2, "")
    assert "--dry-run > job.yaml" in done.err
    assert "sky launch job.yaml" in done.err
    (tmp_path / "elsewhere").mkdir()
    options = ("--set", "launcher.use=kubeflow", "--dry-run")
    done = call("run", name, *options, folder=tmp_path / "elsewhere")
    assert (done.code, done.out) == (2, "")
    assert f"{name} is outside of {tmp_path / 'elsewhere'}" in done.err
