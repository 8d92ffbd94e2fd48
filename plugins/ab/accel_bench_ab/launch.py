"""Start of a command's processes: the rank that runs the command, and its environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from accel_bench import Job, LocalProcess

OBSERVER = Path(__file__).parent / "observer"
"""Folder of the observer, whose `sitecustomize` Python imports when it starts."""

RECORDS, PAGE = "ACCEL_BENCH_AB", "ACCEL_BENCH_AB_PAGE"
"""Environment variables of an observed command: the folder of records, and the heartbeat page."""

OURS = ("LOCAL_RANK", "ACCEL_BENCH_PARENT")
"""Environment variables of the rank process that the command does not inherit."""


REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
"""Environment variables by which git's hooks name the user's repository and index."""


def elsewhere(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with which git finds the repository of its working folder."""
    return {name: value for name, value in variables.items() if name not in REPOSITORY}


class CommandProcess(LocalProcess):
    """Rank process that runs a command with the user's environment variables, not a worker's."""

    PROGRAM = "accel_bench_ab.rank"

    def __init__(self, job: Job) -> None:
        own = {
            self.MARK: f"{job.run_id}/0",
            "ACCEL_BENCH_PARENT": str(os.getpid()),
            "LOCAL_RANK": "0",
        }
        super().__init__(job, 0, {**os.environ, **job.experiment.scenario.environment, **own})


def command_environment(
    variables: Mapping[str, str], records: Path, page: Path, observed: bool, programs: str = ""
) -> dict[str, str]:
    """Return the environment variables of a command, made from `variables`.

    If `observed`, PYTHONPATH begins with the observer's folder. The observer writes to the folder
    `records` and the heartbeat file `page`. `programs` is a folder to search before PATH; empty for
    none.
    """
    made = {name: value for name, value in variables.items() if name not in OURS}
    if programs:
        made["PATH"] = search_path(programs)
        made["VIRTUAL_ENV"] = str(Path(programs).parent)
    if not observed:
        return made
    path = [str(OBSERVER), *filter(None, [variables.get("PYTHONPATH", "")])]
    return {**made, "PYTHONPATH": os.pathsep.join(path), RECORDS: str(records), PAGE: str(page)}


def search_path(programs: str) -> str:
    """Return the PATH of a command: a folder of programs, then the PATH of this process."""
    return os.pathsep.join(filter(None, [programs, os.environ.get("PATH", os.defpath)]))


def program_of(word: str, folder: str, programs: str = "") -> str | None:
    """Return the path of the program `word`, given by name or path, or None if it is missing.

    A relative path starts at `folder`. A name is searched in the folder `programs`, then in PATH.
    """
    if os.sep in word:
        path = Path(folder or ".") / word
        return str(path.absolute()) if os.access(path, os.X_OK) and path.is_file() else None
    return shutil.which(word, path=search_path(programs))
