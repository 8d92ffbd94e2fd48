"""Reader of bundles: files with sessions and their runs that others can verify and reproduce."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from accel_bench.documents.base import Frozen
from accel_bench.documents.canonical import digest
from accel_bench.documents.load import MAXIMUM_BYTES, load_yaml
from accel_bench.documents.validate import validate
from accel_bench.errors import AccelBenchError, BundleError
from accel_bench.result import Result
from accel_bench.scenario.models import ScenarioFile
from accel_bench.store.records import parse_result
from accel_bench.store.rows import SHA256_DIGITS
from accel_bench.store.schema import MAXIMUM_PAYLOAD_BYTES
from accel_bench.store.sessions import SessionRecord
from accel_bench_share.archive import unpack

MANIFEST, SCENARIO, SESSIONS, RUNS = "manifest.json", "scenario.yaml", "sessions.json", "runs.gz"
CONCLUSION, REPORT, SUMMARY = "conclusion.md", "report.html", "summary.json"
MACHINES, VERSIONS = "machines.json", "versions.json"

NEEDED = frozenset({MANIFEST, SCENARIO, SESSIONS, RUNS})
KNOWN = NEEDED | {CONCLUSION, REPORT, SUMMARY, MACHINES, VERSIONS}
"""Names of a bundle's members: the required ones, and all allowed ones."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)

MAXIMUM_RUNS_BYTES = 128 * 1024 * 1024
"""Maximum bytes of all runs of a bundle as JSON."""

_SESSIONS = TypeAdapter(tuple[SessionRecord, ...])


class BundleMember(Frozen):
    """Name, size and checksum of a member: one of the files in a bundle."""

    name: str
    bytes: int
    sha256: str


class Manifest(Frozen):
    """Manifest of a bundle: its members with their checksums, and what it has measured."""

    format: Literal["accel-bench bundle"] = "accel-bench bundle"
    version: Literal[1] = 1

    written_by: str
    """Version of accel-bench that wrote the bundle."""

    scenario: str
    """Name of the scenario."""

    baseline: str
    """Name of the stack that others are compared with."""

    started_at: str
    """Start of the first session: UTC, ISO 8601."""

    sessions: tuple[str, ...] = Field(min_length=1)
    """Ids of the bundle's sessions."""

    repeats: str = ""
    """Identity of the bundle that these sessions reproduce; empty if they reproduce none."""

    measured_by: str = ""
    """Pseudonym of machine and user, equal only among reproductions of one bundle, or empty."""

    members: tuple[BundleMember, ...]
    """All members except the manifest, by name."""

    sha256: str
    """Checksum of all other fields of the manifest as canonical JSON."""


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle file whose checksums were verified."""

    file: str
    """Name of the file as given."""

    manifest: Manifest

    scenario: dict[str, Any]
    """The resolved scenario file."""

    sessions: tuple[SessionRecord, ...]
    results: tuple[Result, ...]

    conclusion: str
    """The author's conclusion from the runs as Markdown text."""

    identity: str
    """Checksum of the bundle's sessions and runs, independent of its report."""


def read_bundle(path: Path) -> Bundle:
    """Read and verify a bundle file, and return its content.

    Raises BundleError with the file and the reason if the bundle is unreadable or changed.
    """
    members = unpack(path)
    try:
        manifest = Manifest.model_validate_json(members.get(MANIFEST, b""))
        _verify(manifest, members)
        sessions = _SESSIONS.validate_json(members[SESSIONS])
        runs = _inflated(members[RUNS])
        results = tuple(_results(runs))
        _check_origin(manifest, sessions, results)
        return Bundle(
            file=str(path),
            manifest=manifest,
            scenario=_scenario(members[SCENARIO], f"{path}:{SCENARIO}"),
            sessions=sessions,
            results=results,
            conclusion=members.get(CONCLUSION, b"").decode(),
            identity=identity_of(members[SESSIONS], runs),
        )
    except (ValueError, KeyError, RecursionError, zlib.error, AccelBenchError) as error:
        first = str(error).splitlines()[:3]
        raise BundleError(f"{path}: refused, {'; '.join(first)}") from error


def member_of(name: str, content: bytes) -> BundleMember:
    """Return an entry for the manifest: the name, size and SHA-256 checksum of a member."""
    return BundleMember(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def identity_of(sessions: bytes, runs: bytes) -> str:
    """Return the SHA-256 checksum of two members, with sessions and with uncompressed runs."""
    return hashlib.sha256(sessions + runs).hexdigest()


def checksum_of(manifest: Manifest) -> str:
    """Return the SHA-256 checksum of all fields of a manifest except `sha256`."""
    return digest(manifest.model_dump(mode="json", exclude={"sha256"}), SHA256_DIGITS)


def _verify(manifest: Manifest, members: Mapping[str, bytes]) -> None:
    """Raise ValueError if the manifest is invalid, or the members differ from it."""
    if checksum_of(manifest) != manifest.sha256:
        raise ValueError("the manifest does not fit its checksum")
    stated = {member.name: member for member in manifest.members}
    if {*stated, MANIFEST} != {*members}:
        odd = sorted({*stated, MANIFEST} ^ {*members})
        raise ValueError(f"the manifest and the file differ in the members {', '.join(odd)}")
    if unknown := sorted({*members} - KNOWN):
        raise ValueError(f"no bundle has the members {', '.join(map(repr, unknown))}")
    if missing := sorted(NEEDED - {*members}):
        raise ValueError(f"it has no {', '.join(missing)}")
    for name, member in stated.items():
        if name != RUNS and member.bytes > MAXIMUM_PAYLOAD_BYTES:
            raise ValueError(f"the member {name!r} is larger than {MAXIMUM_PAYLOAD_BYTES} bytes")
        if member_of(name, members[name]) != member:
            raise ValueError(f"the member {name!r} does not fit its checksum")
    if members[MANIFEST] != json_member(manifest.model_dump(mode="json")):
        raise ValueError("the manifest is not as it was written")


def _check_origin(
    manifest: Manifest, sessions: Sequence[SessionRecord], results: Sequence[Result]
) -> None:
    """Raise ValueError if runs are not measured runs of the sessions, or a time is invalid."""
    ids = [session.id for session in sessions]
    if tuple(ids) != manifest.sessions or len({*ids}) < len(ids):
        raise ValueError("its sessions are not those of the manifest")
    if not results:
        raise ValueError("it holds no run")
    starts = [session.started_at for session in sessions]
    for time in (manifest.started_at, *starts, *(result.started_at for result in results)):
        _check_time(time)
    if manifest.started_at not in starts:
        raise ValueError(f"none of its sessions started at {manifest.started_at}")
    names = [result.run_id for result in results]
    if len({*names}) < len(names):
        raise ValueError("two of its runs have one id")
    for result in results:
        if result.session not in ids:
            raise ValueError(f"the run {result.run_id!r} belongs to none of its sessions")
        if result.provenance.origin != "measured":
            raise ValueError(
                f"the run {result.run_id!r} was imported: a bundle holds measured ones"
            )


def _check_time(text: str) -> None:
    """Raise ValueError unless a text is a time in ISO 8601."""
    if not _TIME.fullmatch(text):
        raise ValueError(f"started_at is {text[:40]!r}, no time like 2026-01-05T08:00:00Z")
    datetime.fromisoformat(text)


def _results(runs: bytes) -> Iterator[Result]:
    """Yield the runs in lines of JSON, one in each line. Raises ValueError for an invalid one."""
    for number, line in enumerate(runs.split(b"\n")[:-1], 1):
        try:
            yield parse_result(line.decode())
        except ValueError as error:
            raise ValueError(f"its run {number} cannot be read: {error}") from error


def _inflated(content: bytes) -> bytes:
    """Return the uncompressed lines in a member that gzip has compressed.

    Raises ValueError if the lines are too long in all, cut off, or followed by other data.
    """
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    lines = inflating.decompress(content, MAXIMUM_RUNS_BYTES + 1)
    if len(lines) > MAXIMUM_RUNS_BYTES:
        raise ValueError(f"{RUNS} grows beyond what a bundle may hold")
    if not inflating.eof:
        raise ValueError(f"{RUNS} is cut off")
    if inflating.unused_data or lines[-1:] not in (b"\n", b""):
        raise ValueError(f"{RUNS} has more behind its runs")
    return lines


def _scenario(content: bytes, source: str) -> dict[str, Any]:
    if len(content) > MAXIMUM_BYTES:
        raise ValueError(f"{SCENARIO} is larger than {MAXIMUM_BYTES} bytes, which no scenario is")
    data = load_yaml(content.decode(), source).data
    validate(ScenarioFile, data, lambda inner: ".".join(map(str, (SCENARIO, *inner))), BundleError)
    return data


def json_member(value: Any) -> bytes:
    """Return the bytes of a member for a JSON value: sorted keys, indented."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
