"""Make a run's folder, and write what it holds: scenario, command, packages, logs, result."""

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
"""Folder of the attempts in a results folder."""

RESULT_FILE = "result.json"
"""What an attempt's folder holds once its row is stored."""

KEPT_BYTES = 4 * 1024 * 1024
"""Bytes kept of the beginning of a log, and of its end."""

TAIL_BYTES = 64 * 1024
"""Bytes of a failed rank's log that go into the result."""

EDGE_CHARACTERS = 64 * 1024
"""Characters beside what is left out of a log in which a secret that was cut in two may stand."""

LOG_LINES = 15
"""Last lines that are shown."""

BLOCK_BYTES = 1024 * 1024
"""Bytes read at a time; more where a line is longer."""


def run_folder(root: Path, session: str, name: str, tag: str = "") -> Path:
    """Make and return the new folder `runs/<session>/<name>` of an attempt, its names as slugs.

    With a tag it is `runs/<session>/<tag>/<name>`.

    Only this user can open it, until the attempt is recorded.

    Raises StoreError when it is already there, or when a link would lead out of the root.
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
    """Return arguments that run the experiment once more, from the scenario in its folder."""
    command = [sys.executable, "-m", "accel_bench", "run", str(folder / "scenario.yaml")]
    command += ["--rounds", "1", "--results", str(root)]
    command += ["--allow-env"] if request.allow_environment else []
    command += ["--trust-remote-code"] if request.trust_remote_code else []
    command += ["--force"] if request.force else []
    command += ["--oversubscribe"] if request.oversubscribe else []
    return tuple(command)


def record_start(folder: Path, planned: Planned, command: tuple[str, ...]) -> None:
    """Write the scenario, without secrets, the command and the package list."""
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
    """Take secrets out of the job and of what the ranks wrote, once nobody writes any more.

    A file that cannot be read is emptied, since it may hold a secret.
    """
    redactor = Redactor.of_this_process(job.experiment.scenario.environment)
    logs = [job.log_path(rank) for rank in range(job.world_size)]
    for path in (*logs, *map(job.result_path, range(job.world_size)), job.path()):
        try:
            redact_file(path, redactor, shorten=path in logs)
        except OSError:
            path.write_bytes(b"")


def record_result(folder: Path, result: Result) -> None:
    """Write the result, which holds no secrets any more."""
    write_atomically(folder / RESULT_FILE, result.model_dump_json(indent=1))


def redact_file(path: Path, redactor: Redactor, *, shorten: bool) -> None:
    """Take secrets out of a file; with `shorten` also the middle of a very long one.

    Written aside and renamed: where that fails, a file that holds a secret is emptied, and any
    other stays as it is. Raises OSError when it cannot be read, or not be emptied.
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
    """Return the end of a log as text; empty where there is none.

    What still writes to it may write faster than this reads.
    """
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            return log.read(TAIL_BYTES).decode("utf8", errors="replace")
    except OSError:
        return ""


def log_end(result: Result) -> list[str]:
    """Return the last lines of a failed run's log; none where its reasons say all."""
    if _reasons_suffice(result):
        return []
    return result.log_tail.rstrip().splitlines()[-LOG_LINES:]


def _reasons_suffice(result: Result) -> bool:
    """Return whether each reason is of an error whose message says all."""
    sufficient = tuple(
        reason
        for rank in result.ranks
        if rank.error is not None and rank.error.message_suffices
        for reason in rank.reasons
    )
    # A reason may have the number of its rank before it.
    return bool(result.reasons) and all(one.endswith(sufficient) for one in result.reasons)


def scenario_text(scenario: dict[str, Any]) -> str:
    """Return a scenario as YAML that is read back unchanged."""
    return yaml.dump(
        scenario, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


@lru_cache(maxsize=1)
def packages_list() -> str:
    """Return `name==version` for each distribution; `name==version @ commit` for a checkout."""
    pinned: dict[str, str] = {}
    for found in metadata.distributions():
        described = found.metadata  # Reads and parses the file each time.
        # An interrupted install leaves no metadata; of two installs, the first is imported.
        if described and (name := described["Name"]) and name.lower() not in pinned:
            commit = commit_of(found)
            at = f" @ {commit.replace('.dirty', '+dirty')}" if commit else ""
            pinned[name.lower()] = f"{name}=={described['Version']}{at}"
    return "".join(f"{pinned[key]}\n" for key in sorted(pinned))


def _pins(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in versions.items())


def _holds_secret(path: Path, redactor: Redactor) -> bool:
    with path.open("rb") as source:
        return any(redactor.redact(text) != text for text in _blocks(source))


def _blocks(source: BinaryIO) -> Iterator[str]:
    """Yield blocks that end with a line, so that no secret is cut in two."""
    while block := source.read(BLOCK_BYTES):
        yield (block + source.readline()).decode("utf8", errors="replace")


def _whole(source: BinaryIO, redactor: Redactor) -> Iterator[str]:
    return map(redactor.redact, _blocks(source))


def _ends(source: BinaryIO, redactor: Redactor) -> Iterator[str]:
    """Yield the beginning and the end of a long log without secrets, in whole lines if it has any.

    A secret may have been cut in two where the middle was left out: of a line that is longer than
    EDGE_CHARACTERS so many are left out too.
    """
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
    """Write what `documents.load` reads: no aliases, texts that look like numbers in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """PyYAML takes `2e-4` and `089` for texts, and so leaves out quotes that we need."""
    style = "'" if text[:1] in tuple("+-.0123456789") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
