"""What launchers share that print a job for another program to submit."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from accel_bench import Options, Redactor, Scenario
from accel_bench.errors import ScenarioError
from accel_bench_cluster.agents import Ended
from accel_bench_cluster.places import largest, memory_of_nodes

SCENARIOS = (".json", ".toml", ".yaml", ".yml")
"""Endings of files that the nodes read."""


class RenderOptions(Options):
    """How a node gets accel-bench."""

    setup: str = f"python3 -m pip install accel-bench=={metadata.version('accel-bench')}"
    """Shell command that installs accel-bench, and the plugins of the scenario, on each node; empty
    where the image has them."""


def print_job(text: str, dry_run: bool, launcher: str, submit: str) -> Ended:
    """Print a rendered job. Raises ScenarioError without `--dry-run`: nothing is submitted."""
    if not dry_run:
        raise ScenarioError(
            f"launcher {launcher} renders a job and submits none: add --dry-run > job.yaml, then "
            f"`{submit} job.yaml`; or start the ranks here, with --set launcher=local"
        )
    print(text, end="")
    return Ended(0)


def to_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML, in the order of its keys."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)


def without_empty(document: Any) -> Any:
    """Return a part of ours without its empty values, at any depth; a user's parts keep them."""
    if isinstance(document, list):
        return [without_empty(one) for one in document]
    if not isinstance(document, dict):
        return document
    kept = {key: without_empty(value) for key, value in document.items()}
    return {key: value for key, value in kept.items() if value not in (None, "", {}, [])}


def new_name() -> tuple[str, str]:
    """Return a name for a job, and the secret that its nodes prove to one another to know."""
    return f"accel-bench-{secrets.token_hex(3)}", secrets.token_hex(32)


def command_on_nodes(command: Sequence[str], launcher: str) -> str:
    """Return the command for each node: the same one, which takes the node's processes over.

    Raises ScenarioError for a file that the nodes do not have, and for a secret.
    """
    words = [_portable(word, launcher) for word in _without_launcher(command[1:])]
    refuse_secrets(words, launcher)
    return shlex.join(["python3", "-m", "accel_bench", *words, "--set", "launcher=env"])


def refuse_secrets(words: Sequence[str], launcher: str) -> None:
    """Refuse a command that holds a secret: its job is printed, and kept by the platform.

    Raises ScenarioError with the words as they may be shown.
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
    """Leave out what belongs to this launcher: `--dry-run`, and settings of its own."""
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
    """Return a word of the command with its path relative to the working folder.

    A path may stand behind an option's or a key's `=`.
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
    """Return the nodes of a job, the devices of each, and the GiB of memory of each, if any.

    Raises ScenarioError where the first one needs another amount: the platform has equal nodes.
    """
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
