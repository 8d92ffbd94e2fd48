"""A history that `bisect` searches: ordered versions, each of which can be made ready to run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from accel_bench.errors import AccelBenchError

SECONDS = 3600.0
"""Limit for one build."""

LAST_LINES = 3
"""Lines of a failed program's output that are a reason."""


class VersionError(AccelBenchError):
    """A version cannot be made ready, so that it is skipped."""


class Version(NamedTuple):
    """One version of a history."""

    name: str
    """Short name, unique in its history."""

    title: str
    """What it changes, in its author's words."""


class Prepared(NamedTuple):
    """Where a version runs."""

    folder: Path | None = None
    """Working folder of its command; None for that of the user."""

    revision: str = ""
    """Commit that is checked out there; empty for none."""

    python: Path | None = None
    """Interpreter of its environment; None for that of the command."""

    requirements: tuple[str, ...] = ()
    """Requirements of the environment in which its scenario runs."""


class History(Protocol):
    """Ordered versions, the good end first."""

    @property
    def versions(self) -> Sequence[Version]:
        """Versions, the good end first."""

    @property
    def identity(self) -> Sequence[str]:
        """Texts that tell this history from any other one."""

    def prepare(self, version: int, environment: bool) -> Prepared:
        """Make a version ready, building what is missing; `environment` for its interpreter too.

        Raises VersionError if it cannot be built.
        """

    def close(self) -> None:
        """Remove what is no longer needed once there is an answer."""


def run_program(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return what a program prints. Raises VersionError with its last lines if it fails."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise VersionError(f"{name} cannot be run: {error}") from error
    if done.returncode:
        last = " | ".join(done.stdout.rstrip().splitlines()[-LAST_LINES:])
        raise VersionError(f"{name} ended with {done.returncode}: {last}")
    return done.stdout
