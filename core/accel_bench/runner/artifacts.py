"""Folder of an attempt and its files: scenario, command line, list of packages, logs, result."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

from accel_bench.documents.files import naming_the_file, slug, write_atomically
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import StoreError
from accel_bench.job import Job
from accel_bench.machine.provenance import commit_of
from accel_bench.result import Result

if TYPE_CHECKING:
    from accel_bench.planning.plan import Planned, PlanRequest

RUNS_FOLDER = "runs"
"""Name of the folder of all attempts in a results folder."""

RESULT_FILE = "result.json"
"""Name of the file in an attempt's folder that is written once the attempt is stored."""

KEPT_BYTES = 4 * 1024 * 1024
"""Bytes kept of the beginning of a long log, and of its end."""

TAIL_BYTES = 64 * 1024
"""Bytes of a failed rank's log that go into the result."""

EDGE_CHARACTERS = 64 * 1024
"""Characters beside the gap of a shortened log, in a long line, that may belong to a secret."""

LOG_LINES = 15
"""Number of the last lines of a log that are shown."""

BLOCK_BYTES = 1024 * 1024
"""Bytes read at a time; more for a longer line."""


def run_folder(root: Path, session: str, name: str, tag: str = "") -> Path:
    """Create and return the new folder `runs/<session>/<name>` of an attempt, its names as slugs.

    It lies in the results folder `root`; with a tag it is `runs/<session>/<tag>/<name>`. Only this
    user can open it until the attempt is recorded. Raises StoreError if the folder exists, or if a
    link would lead out of the root.
    """
    inside = root.resolve()
    parts = (RUNS_FOLDER, slug(session), *([slug(tag)] if tag else []))
    target = inside.joinpath(*parts, slug(name))
    with naming_the_file(target):
        for folder in (inside.joinpath(*parts[: n + 1]) for n in range(len(parts))):
            folder.mkdir(parents=True, exist_ok=True)
            if not folder.resolve().is_relative_to(inside):
                raise StoreError(f"{folder} is a link that leads out of {inside}; remove it")
        try:
            target.mkdir(mode=0o700)  # what is written here holds secrets until the run has ended
        except FileExistsError as error:
            raise StoreError(
                f"{target} is already there; a run's folder is never used twice"
            ) from error
    return target


def repeat_command(folder: Path, root: Path, request: PlanRequest) -> tuple[str, ...]:
    """Return the command line that runs the `scenario.yaml` in an attempt's `folder` again, for one
    round. Its results go to the folder `root`; `request` gives options such as `--force`."""
    command = [sys.executable, "-m", "accel_bench", "run", str(folder / "scenario.yaml")]
    command += ["--rounds", "1", "--results", str(root)]
    command += ["--allow-env"] if request.allow_environment else []
    command += ["--trust-remote-code"] if request.trust_remote_code else []
    command += ["--force"] if request.force else []
    command += ["--oversubscribe"] if request.oversubscribe else []
    return tuple(command)


def record_start(folder: Path, planned: Planned, command: tuple[str, ...]) -> None:
    """Write scenario (without secrets), command line and package list to an attempt's folder."""
    from accel_bench.planning.plan import scenario_of  # commands that only read results do without

    redactor = Redactor.of_this_process(planned.experiment.scenario.environment)
    scenario = redactor.redact_value(scenario_of(planned))
    write_atomically(folder / "scenario.yaml", scenario_text(scenario))
    where = f"cd {shlex.quote(str(Path.cwd()))}"
    write_atomically(folder / "command.txt", f"{where}\n{shlex.join(command)}\n")
    there = planned.interpreter
    packages = packages_list() if there is None else _pins(there.distributions)
    write_atomically(folder / "packages.txt", packages)


def redact_files(job: Job) -> None:
    """Redact the job file, logs and results of all ranks, once no process writes to them.

    An unreadable file is emptied, since it may hold a secret.
    """
    redactor = Redactor.of_this_process(job.experiment.scenario.environment)
    logs = [job.log_path(rank) for rank in range(job.world_size)]
    for path in (*logs, *map(job.result_path, range(job.world_size)), job.path()):
        try:
            redact_file(path, redactor, shorten=path in logs)
        except OSError:
            path.write_bytes(b"")


def record_result(folder: Path, result: Result) -> None:
    """Write a result, which must be redacted already, to `result.json` in an attempt's folder."""
    write_atomically(folder / RESULT_FILE, result.model_dump_json(indent=1))


def redact_file(path: Path, redactor: Redactor, *, shorten: bool) -> None:
    """Redact a file; with `shorten` also remove the middle of a very long file.

    The new text is written to a temporary file, which is renamed. If that fails, a file that holds
    a secret is emptied, and any other file stays unchanged. Raises OSError for a file that can
    neither be read nor emptied.
    """
    if not path.is_file():
        return
    cut = shorten and path.stat().st_size > 2 * KEPT_BYTES
    if not cut and not _holds_secret(path, redactor):
        return
    aside = path.with_name(f"{path.name}.part")
    try:
        aside.unlink(missing_ok=True)  # it may be a link, in a folder that came from elsewhere
        with path.open("rb") as source, aside.open("x", encoding="utf8") as target:
            target.writelines((_ends if cut else _whole)(source, redactor))
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        if _holds_secret(path, redactor):
            path.write_bytes(b"")


def log_tail(path: Path) -> str:
    """Return the last TAIL_BYTES of a log as text; an empty text if there is no log.

    Output written during the call is ignored, since a writer may be faster than this reader.
    """
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            return log.read(TAIL_BYTES).decode("utf8", errors="replace")
    except OSError:
        return ""


def log_end(result: Result) -> list[str]:
    """Return the last lines of a failed run's log; an empty list if its reasons say enough."""
    if _reasons_suffice(result):
        return []
    return result.log_tail.rstrip().splitlines()[-LOG_LINES:]


def _reasons_suffice(result: Result) -> bool:
    """Return whether each reason of a result is the message of an error that needs no log."""
    sufficient = tuple(
        reason
        for rank in result.ranks
        if rank.error is not None and rank.error.message_suffices
        for reason in rank.reasons
    )
    # A reason may have the number of its rank before it.
    return bool(result.reasons) and all(reason.endswith(sufficient) for reason in result.reasons)


def scenario_text(scenario: dict[str, Any]) -> str:
    """Return a scenario as YAML text that parses to the same scenario."""
    return yaml.dump(
        scenario, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


@lru_cache(maxsize=1)
def packages_list() -> str:
    """Return lines `name==version`, one for each distribution; for a checkout with ` @ commit`."""
    pinned: dict[str, str] = {}
    for dist in metadata.distributions():
        described = dist.metadata  # Reads and parses the file each time.
        # An interrupted install leaves no metadata; of two installs, the first is imported.
        if described and (name := described["Name"]) and name.lower() not in pinned:
            commit = commit_of(dist)
            at = f" @ {commit.replace('.dirty', '+dirty')}" if commit else ""
            pinned[name.lower()] = f"{name}=={described['Version']}{at}"
    return "".join(f"{pinned[key]}\n" for key in sorted(pinned))


def _pins(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in versions.items())


def _holds_secret(path: Path, redactor: Redactor) -> bool:
    with path.open("rb") as source:
        return any(redactor.redact(text) != text for text in _blocks(source))


def _blocks(source: BinaryIO) -> Iterator[str]:
    """Yield a log as blocks of whole lines, so that no secret is split between two blocks."""
    while block := source.read(BLOCK_BYTES):
        yield (block + source.readline()).decode("utf8", errors="replace")


def _whole(source: BinaryIO, redactor: Redactor) -> Iterator[str]:
    return map(redactor.redact, _blocks(source))


def _ends(source: BinaryIO, redactor: Redactor) -> Iterator[str]:
    """Yield the redacted beginning and end of a long log, with a note on the gap between them. The
    gap may split a secret: up to EDGE_CHARACTERS of a partial line beside it are removed too."""
    size = os.fstat(source.fileno()).st_size
    head = redactor.redact(source.read(KEPT_BYTES).decode("utf8", errors="replace"))
    source.seek(size - KEPT_BYTES)
    tail = redactor.redact(source.read(KEPT_BYTES).decode("utf8", errors="replace"))
    head = head[: max(head.rfind("\n") + 1, len(head) - EDGE_CHARACTERS)]
    first_line = tail.find("\n") + 1 or EDGE_CHARACTERS
    tail = tail[min(first_line, EDGE_CHARACTERS) :]
    yield head if head.endswith("\n") else f"{head}\n"
    yield f"[{size - len(head) - len(tail)} bytes left out]\n"
    yield tail


class _Dumper(yaml.SafeDumper):
    """YAML dumper for the reader `documents.load`: no aliases; quotes around texts like numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Return the YAML node of a text, with the quotes that PyYAML omits for `2e-4` and `089`."""
    style = "'" if text[:1] in tuple("+-.0123456789") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
