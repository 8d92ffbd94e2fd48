"""Python environments that a scenario names: finding them, and building missing ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from accel_bench.documents.canonical import digest
from accel_bench.documents.files import locked
from accel_bench.errors import ScenarioError
from accel_bench.machine.caches import cache_folder
from accel_bench.machine.provenance import distribution_version
from accel_bench.plugins.doors import OWN_DISTRIBUTION
from accel_bench.plugins.interpreter import Interpreter
from accel_bench.plugins.registry import find, missing_extra
from accel_bench.scenario.settings import PythonEnvironment
from accel_bench_environments.interpreter import read_interpreter

SECONDS = 3600.0
"""Timeout in seconds of one installation."""

PYTORCH_INDEX = "https://download.pytorch.org/whl/"
"""Base URL of PyTorch's package indexes, which end in a build's name, such as `cu126`."""

INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX")
"""Variables that choose where pip finds packages: other ones make another environment."""

LAST_LINES = 5
"""Number of last lines of pip's output that an error shows."""


def find_interpreter(
    name: str,
    settings: PythonEnvironment,
    uses: Iterable[str],
    notify: Callable[[str], object] | None,
) -> Interpreter | None:
    """Return the interpreter of the environment `name`; None if it is yet to be built.

    A built environment gets the distributions of the plugins in `uses`. `notify` is called with a
    line of text before a build, which takes minutes. Without `notify` nothing is built. Raises
    ScenarioError for an environment that cannot be built, or cannot run this version's jobs.
    """
    python = _python(name, settings, _distributions(uses), notify)
    return read_interpreter(python) if python else None


def _python(
    name: str,
    settings: PythonEnvironment,
    own: Sequence[str],
    notify: Callable[[str], object] | None,
) -> str:
    """Return the path of an environment's Python; an empty text if it is yet to be built.

    `own` names distributions to install from the sources that this Python has them from. Without
    `notify` nothing is built.
    """
    if settings.python:
        path = Path(os.path.expanduser(settings.python))
        if path.is_dir():
            return os.path.abspath(path / "bin" / "python")
        # A bare name, such as `python3.12`, is looked up on PATH.
        return os.path.abspath(path) if os.sep in settings.python else settings.python
    if notify is None:
        return str(python_of(environment_folder(settings, own)) or "")
    line = f"environment {name}: installing {', '.join(settings.requirements)}"
    return str(build_environment(settings, own, partial(notify, line)))


def environment_folder(settings: PythonEnvironment, own: Iterable[str]) -> Path:
    """Return the cache folder of an environment with these settings.

    `own` names distributions to install from the sources that this Python has them from.
    """
    packages = [sorted(settings.requirements), settings.index]
    indexes = [[name, os.environ[name]] for name in INDEXES if os.environ.get(name)]
    key = [*packages, sorted(map(installed_from, own)), sys.version, *indexes]
    return cache_folder() / "environments" / digest(key, 24)


def python_of(folder: Path) -> Path | None:
    """Return the path of the Python in an environment's folder; None if it is not fully built."""
    return folder / "bin" / "python" if (folder / "complete").exists() else None


def build_environment(
    settings: PythonEnvironment, own: Sequence[str], on_start: Callable[[], object] = lambda: None
) -> Path:
    """Build an environment unless it exists, and return the path of its Python.

    The setting `index` is the name of a PyTorch build (`cpu`, `cu126`) or a URL, searched beside
    pip's own. `own` names distributions to install from the sources that this Python has them from.
    `on_start` is called before a build. Concurrent processes wait for the builder. Raises
    ScenarioError with the last lines of pip's output.
    """
    folder = environment_folder(settings, own)
    with locked(folder.with_suffix(".lock")):
        if python := python_of(folder):
            return python
        on_start()
        pip = _create(folder)
        options = ["--disable-pip-version-check", "--no-input"]
        packages = [word for name in own for word in installed_from(name)]
        install = [*pip, "install", *options, *packages, "--", *settings.requirements]
        _run(install, _indexes(settings.index))
        (folder / "complete").touch()
    return folder / "bin" / "python"


def _create(folder: Path) -> list[str]:
    """Create an empty environment, and return the start of a pip command that installs into it.

    The pip of this program is preferred, since installing another one takes seconds.
    """
    create, python = [sys.executable, "-m", "venv", "--clear"], str(folder / "bin" / "python")
    if not distribution_version("pip"):
        _run([*create, str(folder)])
        return [python, "-m", "pip"]
    _run([*create, "--without-pip", str(folder)])
    return [sys.executable, "-m", "pip", "--python", python]


def installed_from(name: str) -> list[str]:
    """Return the pip arguments that reinstall a distribution from its folder, file or index.

    Raises PackageNotFoundError if the distribution is not installed.
    """
    package = metadata.distribution(name)
    record = json.loads(package.read_text("direct_url.json") or "{}")
    url = str(record.get("url", ""))
    if not url:
        return [f"{name}=={package.version}"]
    if record.get("dir_info", {}).get("editable"):
        return ["-e", url]
    if source := record.get("vcs_info"):
        url = f"{source['vcs']}+{url}@{source['commit_id']}"
    # By its hashes an archive that is built again is another one.
    hashes = record.get("archive_info", {}).get("hashes") or {}
    parts = {"subdirectory": record.get("subdirectory"), **hashes}
    fragment = "&".join(f"{key}={value}" for key, value in parts.items() if value)
    return [f"{name} @ {url}#{fragment}" if fragment else f"{name} @ {url}"]


def _indexes(index: str) -> dict[str, str]:
    """Return the environment variable that adds a package index to pip; empty for no index.

    `index` is the name of a PyTorch build or a URL. A command-line argument would expose the URL's
    password.
    """
    if not index:
        return {}
    where = index if "://" in index else PYTORCH_INDEX + index
    known = os.environ.get("PIP_EXTRA_INDEX_URL", "")
    return {"PIP_EXTRA_INDEX_URL": f"{known} {where}".strip()}


def _run(command: list[str], variables: Mapping[str, str] = MappingProxyType({})) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ScenarioError(f"the environment cannot be built: {error}") from error
    if done.returncode:
        last = "\n".join(done.stdout.rstrip().splitlines()[-LAST_LINES:])
        raise ScenarioError(f"the environment cannot be built:\n{last}")


def _distributions(uses: Iterable[str]) -> list[str]:
    """Return the names of the distributions of accel-bench and of the installed plugins used."""
    present = [use for use in uses if not missing_extra(use)]
    return sorted({OWN_DISTRIBUTION, *(find(use).distribution for use in present)})
