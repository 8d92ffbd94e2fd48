"""Protocol of the histories that `bisect` searches: ordered versions to build and run."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple, Protocol

from accel_bench.errors import AccelBenchError
from accel_bench_ab.launch import elsewhere

SECONDS = 3600.0
"""Time limit of one build in seconds."""

LAST_LINES = 3
"""Number of last lines of a failed program's output in an error."""


class VersionError(AccelBenchError):
    """Exception for a version that cannot be built. The search skips such a version."""


class Version(NamedTuple):
    """One version of a history: a commit, or a combination of packages."""

    name: str
    """Short name, unique in its history."""

    title: str
    """Description of the version's change, such as a commit's subject."""


class Prepared(NamedTuple):
    """Folder and Python environment in which a version runs."""

    folder: Path | None = None
    """Working folder of the version's command; None for the user's."""

    revision: str = ""
    """Commit that is checked out in `folder`; empty for none."""

    python: Path | None = None
    """Python interpreter of the version's environment; None to search the user's PATH."""

    requirements: tuple[str, ...] = ()
    """Requirements of the environment in which the version's scenario runs."""


class History(Protocol):
    """Protocol of ordered versions, from the good end to the bad end."""

    @property
    def versions(self) -> Sequence[Version]:
        """Versions, from the good end to the bad end."""

    @property
    def identity(self) -> Sequence[str]:
        """Texts that identify the history, so that only the same search is resumed."""

    def prepare(self, version: int, environment: bool) -> Prepared:
        """Build the version of index `version`; return the folder and environment to run it in.

        The Python environment is built only if `environment` is true. Raises VersionError if the
        version cannot be built.
        """

    def decides_on(self, name: str) -> bool:
        """Return whether each version has its own copy of the file that a command calls `name`."""

    def close(self, answered: bool = True) -> None:
        """End the search; if it was `answered`, remove files that no other search uses."""


def run_program(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run a program in `folder` and return what it prints on stdout.

    `variables` are added to the environment variables of this process. What the program leaves in
    its process group is killed. Raises VersionError with the last lines of output if the program
    fails or takes more than an hour.
    """
    name = Path(command[0]).name
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=elsewhere({**os.environ, **variables}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = process.wait(SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        except (OSError, subprocess.SubprocessError) as error:
            raise VersionError(f"{name} cannot be run: {error}") from error
        printed, complaints = map(_text_of, (out, errors))
    if code:
        last = " | ".join([*printed.splitlines(), *complaints.splitlines()][-LAST_LINES:])
        raise VersionError(f"{name} ended with {code}: {last}")
    return printed


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf8", "replace")
