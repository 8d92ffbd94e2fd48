"""Program that describes the Python that runs it as JSON, and the reader of its output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from packaging.utils import canonicalize_name
from pydantic import BaseModel, ValidationError

from accel_bench.documents.canonical import digest
from accel_bench.documents.program import __version__, python_command
from accel_bench.errors import ScenarioError
from accel_bench.job import Job
from accel_bench.machine.info import read_machine
from accel_bench.machine.provenance import distribution_version
from accel_bench.plugins.interpreter import EnvironmentPlugin, Interpreter
from accel_bench.plugins.registry import installed
from accel_bench.result import RankResult
from accel_bench.scenario.experiment import SCHEMA_VERSION

SECONDS = 120.0
"""Timeout in seconds of the process that describes an interpreter."""


def read_interpreter(python: str) -> Interpreter:
    """Run the Python at a path, and return its description.

    Raises ScenarioError if it cannot run this version's jobs.
    """
    command = [python, "-m", "accel_bench_environments.interpreter"]
    try:
        # With -m the working folder is on the path: this one holds no modules of anyone's.
        done = subprocess.run(
            command,
            cwd=Path(sys.executable).anchor,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ScenarioError(f"{python} cannot be run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        way_out = f"install it there: {python} -m pip install accel-bench=={__version__}"
        raise ScenarioError(f"{python} has no usable accel-bench ({last}); {way_out}")
    return _checked(python, done.stdout)


def _checked(python: str, text: str) -> Interpreter:
    """Return the description parsed from the JSON `text`, which `python` printed.

    Raises ScenarioError if its accel-bench reads jobs with other fields, or prints no description.
    """
    try:
        document = json.loads(text)
        schema, version = document["schema_version"], document["accel_bench"]
        if schema == SCHEMA_VERSION and document.get("contract") == contract():
            return Interpreter.model_validate_json(text)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise ScenarioError(f"{python}: its accel-bench gives no description: {error}") from error
    which = (
        f"of other fields than this accel-bench {__version__} writes"
        if schema == SCHEMA_VERSION
        else f"of schema {schema}, this accel-bench {__version__} writes schema {SCHEMA_VERSION}"
    )
    raise ScenarioError(
        f"{python}: accel-bench {version} there reads jobs {which}; install the same version in "
        "both"
    )


def contract() -> str:
    """Return a digest of the fields of jobs and results, and of their possible values.

    This program and the other Python must have equal digests, since neither reads unknown fields.
    """
    fields: dict[str, list[str]] = {}
    for model in (Job, RankResult):
        _add_fields(model, fields)
    return digest(fields)


def _add_fields(annotation: Any, found: dict[str, list[str]]) -> None:
    """Add the fields of all models in a type annotation to `found`, by the name of the model.

    A field is added as a text of its name and its literal values.
    """
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for part in get_args(annotation):
            _add_fields(part, found)
        return
    if annotation.__name__ in found:
        return
    found[annotation.__name__] = sorted(
        f"{name}: {' '.join(sorted(_literals(field.annotation)))}"
        for name, field in annotation.model_fields.items()
    )
    for field in annotation.model_fields.values():
        _add_fields(field.annotation, found)


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (str(member.value) for member in annotation)
    else:
        for part in get_args(annotation):
            yield from _literals(part)


def describe_this() -> Interpreter:
    """Return a description of this interpreter: its distributions, plugins and machine."""
    # An interrupted install leaves no metadata.
    named = [
        package
        for package in metadata.distributions()
        if package.metadata and package.metadata["Name"]
    ]
    versions = {canonicalize_name(package.metadata["Name"]): package.version for package in named}
    ours = {"accel-bench", *(plugin.distribution for plugin in installed())}
    versions |= {canonicalize_name(name): distribution_version(name) for name in ours}
    return Interpreter(
        schema_version=SCHEMA_VERSION,
        contract=contract(),
        accel_bench=__version__,
        command=tuple(python_command()),
        machine=read_machine(),
        distributions=dict(sorted(versions.items())),
        plugins=tuple(
            EnvironmentPlugin(
                name=plugin.name, distribution=plugin.distribution, unmet=plugin.unmet()
            )
            for plugin in installed()
        ),
    )


if __name__ == "__main__":
    print(describe_this().model_dump_json())
