"""The launcher `slurm`, which submits the command as a SLURM job and starts its ranks by srun."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from accel_bench import (
    Allocation,
    Options,
    Scenario,
    device_words,
    hookimpl,
    python_command,
)
from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench_cluster.agents import AgentLauncher, Ended
from accel_bench_cluster.launched_agents import (
    StartedAgents,
    agent_command,
    new_secret,
)
from accel_bench_cluster.node_resources import device_of_nodes, devices_of_nodes, memory_of_nodes
from accel_bench_cluster.rendering import refuse_secrets

POLL_SECONDS = 1.0
"""Interval in seconds at which a job's state is polled."""

NAME_JOB = 'export ACCEL_BENCH_JOB="slurm-$SLURM_CLUSTER_NAME-$SLURM_JOB_ID"'
"""Shell assignment of the job's name, by which a requeued job resumes its sessions."""

MOST_FAILURES = 300
"""Maximum consecutive failed polls of a job, after which the launcher gives up. A restarting
controller is silent for minutes."""

PREEMPTED_POLLS = 30
"""Number of polls after which a `PREEMPTED` job counts as cancelled, not as requeued
(`PreemptMode=CANCEL`)."""

NO_PART_OF_TYPE = re.compile(r"\d+gb|nvidia|amd")
"""Pattern of words of a device's name that are not part of SLURM's name of a GPU type."""

ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "REVOKED",
    "TIMEOUT",
)
"""Final states of SLURM jobs; SLURM does not requeue a job in such a state."""


class SlurmOptions(Options):
    """Options of `slurm`: resources of the job."""

    partition: str | None = Field(None, pattern=r"^[^\s]+$")
    """Name of the partition; null is SLURM's default."""

    time: str | None = Field(None, pattern=r"^[0-9:-]+$")
    """Time limit of the job in SLURM's format: `90` minutes, `4:00:00`, `2-00:00:00`."""

    account: str | None = Field(None, pattern=r"^[^\s]+$")
    """Name of the account to charge."""

    gres: str | None = Field(None, pattern=r"^[^\s]+$")
    """Generic resources of each node, such as `gpu:l4:4`; null asks for GPUs if the scenario's
    device is `cuda` or has a `device_type`."""

    extra: tuple[str, ...] = Field((), strict=False)
    """Additional options of sbatch, such as `--mem=64G`."""

    connect_seconds: float = Field(300.0, gt=0, le=86_400)
    """Seconds within which the nodes of a job must start their ranks."""


class Slurm(AgentLauncher[SlurmOptions]):
    """Submits the command as a job of SLURM; within a job, starts the ranks on its nodes.

    The job runs this same command, so its first node must reach the results folder.
    """

    @hookimpl
    def allocate_ranks(
        self, scenarios: Sequence[Scenario], command: Sequence[str], dry_run: bool
    ) -> Allocation:
        """Start agents by srun; outside of a job, submit the command and wait for the job."""
        devices = devices_of_nodes(scenarios)
        if "SLURM_JOB_ID" not in os.environ:
            script = self.script(scenarios, command)
            if dry_run:
                print(script, end="")
                return Ended(0)
            return Ended(run_job(script))
        srun = srun_command(check_job(os.environ, len(devices)), devices)
        if dry_run:
            print(shlex.join(srun), file=sys.stderr)
            return Ended(None)
        agents = StartedAgents(("", 0), new_secret(), "srun")
        # An agent knows the parent's address by a variable that srun sets.
        agents.start(srun, "")
        agents.gather(len(devices), devices, self.options.connect_seconds)
        return agents

    def script(self, scenarios: Sequence[Scenario], command: Sequence[str]) -> str:
        """Return the job script, which runs the words `command` again on the first node.

        Successive nodes with equal memory and devices form a component of a heterogeneous job.
        """
        first, others = memory_of_nodes(scenarios)
        sizes = enumerate(devices_of_nodes(scenarios))
        nodes = [(others if node else first, devices) for node, devices in sizes]
        lines = ["#!/bin/bash", "#SBATCH --requeue", "#SBATCH --open-mode=append"]
        for number, ((memory, devices), group) in enumerate(itertools.groupby(nodes)):
            count = len(list(group))
            lines += ["#SBATCH hetjob"] if number else []
            asked = ["--job-name=accel-bench", f"--nodes={count}", f"--ntasks-per-node={devices}"]
            asked += [f"--mem={memory}G"] if memory else []
            lines += [f"#SBATCH {option}" for option in (*asked, *self.asked(scenarios, devices))]
        words = [word for word in command[1:] if word != "--dry-run"]
        refuse_secrets(words, "slurm")
        again = shlex.join(python_command("-m", "accel_bench", *words))
        return "\n".join(
            [*lines, NAME_JOB, f"cd {shlex.quote(str(Path.cwd()))}", f"exec {again}", ""]
        )

    def asked(self, scenarios: Sequence[Scenario], devices: int) -> list[str]:
        """Return this launcher's options as options of sbatch, for nodes of `devices` devices.

        Raises ScenarioError if a line of the option `extra` is no option of sbatch.
        """
        options = self.options
        named = {name: getattr(options, name) for name in ("partition", "time", "account", "gres")}
        asked = [f"--{name}={value}" for name, value in named.items() if value is not None]
        if options.gres is None:
            asked += gpu_options(scenarios, devices)
        for line in options.extra:
            if not line.startswith("--") or "\n" in line:
                raise ScenarioError(f"launcher.extra: {line!r} is no option of sbatch, as --mem=8G")
        return [*asked, *options.extra]


def gpu_options(scenarios: Sequence[Scenario], devices: int) -> list[str]:
    """Return a list with sbatch's GPU option for nodes of `devices` devices; empty for CPUs.

    SLURM's name of a GPU type is a word that a cluster has chosen, mostly the product's, such as
    `a100`. The size of memory and the manufacturer are no part of it.
    """
    device, kind = device_of_nodes(scenarios, "slurm")
    if device == "cpu":
        return []
    words = [word for word in device_words(kind or "") if not NO_PART_OF_TYPE.fullmatch(word)]
    return [f"--gpus-per-node={':'.join(filter(None, ['_'.join(words), str(devices)]))}"]


def check_job(variables: Mapping[str, str], nodes: int) -> list[int]:
    """Return the number of nodes in each component of this SLURM job; most jobs have one.

    `variables` are the environment's. Raises ScenarioError if the job has less than `nodes` nodes,
    or if srun has started this command several times.
    """
    if int(variables.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        raise ScenarioError(
            "launcher slurm: srun has started this command several times; start it once in the "
            "job, or use the launcher env"
        )
    counts = [variables.get("SLURM_JOB_NUM_NODES", "1")]
    if (components := int(variables.get("SLURM_HET_SIZE", "1"))) > 1:
        names = (f"SLURM_JOB_NUM_NODES_HET_GROUP_{number}" for number in range(components))
        counts = [variables[name] for name in names]
    here = sum(map(int, counts))
    if here < nodes:
        raise ScenarioError(
            f"launcher slurm: job {variables['SLURM_JOB_ID']} has {here} of the {nodes} nodes that "
            "the scenario asks for; get as many, or set resources.nodes"
        )
    return [int(count) for count in counts]


def srun_command(components: Sequence[int], devices: Sequence[int]) -> list[str]:
    """Return the srun command that starts the agents of all ranks on the first nodes.

    `components` has the number of nodes of each component of the job, `devices` the number of
    devices of each node. Raises ScenarioError if the nodes of a component differ.
    """
    command, left = ["srun"], [*devices]
    for number, here in enumerate(components):
        sizes, left = left[:here], left[here:]
        if len({*sizes}) > 1:
            raise ScenarioError(
                f"launcher slurm: nodes with {sizes} devices are one component of this job; submit "
                "nodes that differ as components of a heterogeneous job, as this launcher does"
            )
        group = [f"--het-group={number}"] if len(components) > 1 else []
        if sizes:
            count, each = len(sizes), sizes[0]
            size = [f"--nodes={count}", f"--ntasks={count * each}", f"--ntasks-per-node={each}"]
            command += [":"] if number else []
            command += [*group, *size, "--kill-on-bad-exit=0", *agent_command()]
    return command


def run_job(script: str) -> int:
    """Submit the job script, print the job's output until it ends, and return its exit code. Ctrl-C
    cancels the job."""
    job = submit(script)
    output = Path.cwd() / f"slurm-{job}.out"
    print(f"job {job} is submitted; it prints to {output}", file=sys.stderr)
    try:
        state, code = follow_job(job, output)
    except (KeyboardInterrupt, SystemExit):
        cancel(job)
        raise
    if state != "COMPLETED":
        print(f"job {job} has ended: {state}", file=sys.stderr)
    return code or (0 if state == "COMPLETED" else 1)


def follow_job(job: str, output: Path) -> tuple[str, int]:
    """Print the job's output, a file, until the job has ended. Return the job's last state and exit
    code. Raises AccelBenchError if SLURM stops answering; the job continues."""
    shown = failures = preempted = 0
    while True:
        try:
            state, code = job_state(job)
            failures = 0
        except AccelBenchError as error:
            failures += 1
            if failures > MOST_FAILURES:
                raise AccelBenchError(
                    f"{error}; job {job} is not cancelled: see squeue, and what it prints to "
                    f"{output}"
                ) from error
            state, code = "", 0
        shown = show(output, shown)
        preempted = preempted + 1 if state == "PREEMPTED" else 0
        if state in ENDED or preempted > PREEMPTED_POLLS:
            return state, code
        time.sleep(POLL_SECONDS)


def cancel(job: str) -> None:
    """Cancel the job with the id `job`, and print whether it could be cancelled."""
    try:
        call_slurm("scancel", job)
        print(f"job {job} is cancelled", file=sys.stderr)
    except AccelBenchError as error:
        print(f"job {job} could not be cancelled: {error}", file=sys.stderr)


def submit(script: str) -> str:
    """Submit a job script to sbatch, and return the id of the job."""
    return call_slurm("sbatch", "--parsable", text=script).strip().partition(";")[0]


def job_state(job: str) -> tuple[str, int]:
    """Return a job's state, such as `RUNNING`, and its exit code, as SLURM's controller reports.

    After a signal the exit code is 128 plus the signal's number.
    """
    # Each component of a job has a line, the first one that of the script.
    words = call_slurm("scontrol", "--oneliner", "show", "job", job).partition("\n")[0].split()
    values = dict(word.split("=", 1) for word in words if "=" in word)
    code, _, number = values.get("ExitCode", "0:0").partition(":")
    signal = int(number or 0)
    return values.get("JobState", "").partition(",")[0], int(code) or (
        128 + signal if signal else 0
    )


def show(output: Path, shown: int) -> int:
    """Print what the job's output file has after `shown` bytes. Return the total bytes printed."""
    try:
        with output.open("rb") as file:
            file.seek(shown)
            text = file.read()
    except FileNotFoundError:
        return shown
    sys.stdout.write(text.decode("utf8", "replace"))
    sys.stdout.flush()
    return shown + len(text)


def call_slurm(*command: str, text: str | None = None) -> str:
    """Run a SLURM program with `text` as its input, and return its output.

    Raises AccelBenchError with the program's message if it fails or is not installed.
    """
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except OSError as error:
        raise AccelBenchError(
            f"{command[0]} cannot be started: {error.strerror}; run this on a node of a SLURM "
            "cluster, or use another launcher"
        ) from error
    if done.returncode:
        raise AccelBenchError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
