"""What a run's folder holds beside its logs: scenario, command, packages and result."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import yaml

from accel_bench.plan import Planned, Wishes, scenario_of
from accel_bench.result import Result
from accel_bench.store.folders import packages_list, write_atomically


def repeat_command(folder: Path, root: Path, wishes: Wishes) -> tuple[str, ...]:
    """Arguments that run the same experiment once more, from the scenario in the run's folder."""
    command = [sys.executable, "-m", "accel_bench", "run", str(folder / "scenario.yaml")]
    command += ["--repeats", "1", "--results", str(root)]
    command += ["--allow-env"] if wishes.allow_environment else []
    command += ["--trust-remote-code"] if wishes.trust_remote_code else []
    return tuple(command)


def record_start(folder: Path, planned: Planned, command: tuple[str, ...]) -> None:
    """Write the scenario, the command and the package list."""
    document = yaml.safe_dump(scenario_of(planned), sort_keys=False, allow_unicode=True)
    write_atomically(folder / "scenario.yaml", document)
    where = f"cd {shlex.quote(str(Path.cwd()))}"
    write_atomically(folder / "command.txt", f"{where}\n{shlex.join(command)}\n")
    write_atomically(folder / "packages.txt", packages_list())


def record_ending(folder: Path, result: Result) -> None:
    """Write the result, as it is stored."""
    write_atomically(folder / "result.json", result.model_dump_json(indent=1))
