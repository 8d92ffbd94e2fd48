"""What a run's folder holds beside its logs: scenario, command, packages and result."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

from accel_bench.documents.redaction import Redactor
from accel_bench.planning.plan import Planned, PlanRequest, scenario_of
from accel_bench.result import Result
from accel_bench.runner.folders import packages_list, write_atomically


def repeat_command(folder: Path, root: Path, request: PlanRequest) -> tuple[str, ...]:
    """Arguments that run the same experiment once more, from the scenario in the run's folder."""
    command = [sys.executable, "-m", "accel_bench", "run", str(folder / "scenario.yaml")]
    command += ["--rounds", "1", "--results", str(root)]
    command += ["--allow-env"] if request.allow_environment else []
    command += ["--trust-remote-code"] if request.trust_remote_code else []
    return tuple(command)


def record_start(folder: Path, planned: Planned, command: tuple[str, ...]) -> None:
    """Write the scenario, without secrets, the command and the package list."""
    environment = {**os.environ, **planned.experiment.scenario.environment}
    scenario = Redactor.from_environment(environment).redact_value(scenario_of(planned))
    write_atomically(folder / "scenario.yaml", scenario_text(scenario))
    where = f"cd {shlex.quote(str(Path.cwd()))}"
    write_atomically(folder / "command.txt", f"{where}\n{shlex.join(command)}\n")
    write_atomically(folder / "packages.txt", packages_list())


def scenario_text(scenario: dict[str, Any]) -> str:
    """The scenario as YAML that we read back as it was."""
    return yaml.dump(
        scenario, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


class _Dumper(yaml.SafeDumper):
    """Writes what `scenario.load` reads: no aliases, and texts that look like numbers in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """PyYAML takes `2e-4` and `089` for texts, and so leaves out quotes that we need."""
    style = "'" if text[:1] in tuple("+-.0123456789") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def record_ending(folder: Path, result: Result) -> None:
    """Write the result, as it is stored."""
    write_atomically(folder / "result.json", result.model_dump_json(indent=1))
