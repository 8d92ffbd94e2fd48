"""Read bundles: sessions in one file that others can verify and repeat."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import digest
from accel_bench.documents.load import MAXIMUM_BYTES, load_yaml
from accel_bench.errors import AccelBenchError, BundleError
from accel_bench.interchange.archive import unpack
from accel_bench.result import Result
from accel_bench.store.records import SHA256_DIGITS, SessionRecord, parse_result
from accel_bench.store.schema import MAXIMUM_PAYLOAD_BYTES

MANIFEST, SCENARIO, SESSIONS, RUNS = "manifest.json", "scenario.yaml", "sessions.json", "runs.gz"
CONCLUSION = "conclusion.md"

MAXIMUM_RUNS_BYTES = 128 * 1024 * 1024
"""Size of all runs of a bundle as JSON."""

PIECE = 1024 * 1024


class Member(Frozen):
    """One member of a bundle."""

    name: str
    bytes: int
    sha256: str


class Manifest(Frozen):
    """What a bundle holds, with the checksums of all of it."""

    format: Literal["accel-bench bundle"] = "accel-bench bundle"
    version: Literal[1] = 1

    written_by: str
    """Version of accel-bench."""

    scenario: str
    """Name of the scenario."""

    baseline: str
    """Stack that the others are compared with."""

    started_at: str
    """When its first session started: UTC, ISO 8601."""

    sessions: tuple[str, ...] = Field(min_length=1)
    """Ids of its sessions."""

    repeats: str = ""
    """`sha256` of the bundle that these sessions repeat; empty where they repeat none."""

    members: tuple[Member, ...]
    """All other members, by name."""

    sha256: str
    """Checksum of the rest of this manifest as canonical JSON: it names the bundle."""


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and verified."""

    file: str
    """The file as it was named."""

    manifest: Manifest

    scenario: dict[str, Any]
    """The scenario file as it was resolved."""

    sessions: tuple[SessionRecord, ...]
    results: tuple[Result, ...]

    conclusion: str
    """The answer as text, in the words of the version that wrote it."""


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and verify all of it. Raises BundleError with the file and the reason."""
    members = unpack(path)
    try:
        manifest = Manifest.model_validate_json(members.get(MANIFEST, b""))
        _verify(manifest, members)
        sessions = tuple(map(SessionRecord.model_validate, _list(members[SESSIONS])))
        results = tuple(_results(members[RUNS]))
        _check_origin(manifest, sessions, results)
        return Bundle(
            file=str(path),
            manifest=manifest,
            scenario=_scenario(members[SCENARIO], f"{path}:{SCENARIO}"),
            sessions=sessions,
            results=results,
            conclusion=members.get(CONCLUSION, b"").decode(),
        )
    except (ValueError, KeyError, RecursionError, zlib.error, AccelBenchError) as error:
        first = str(error).splitlines()[:3]
        raise BundleError(f"{path}: refused, {'; '.join(first)}") from error


def member_of(name: str, content: bytes) -> Member:
    """Return what a manifest states of a member."""
    return Member(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def checksum_of(manifest: Manifest) -> str:
    """Return the checksum of all but the checksum itself."""
    return digest(manifest.model_dump(mode="json", exclude={"sha256"}), SHA256_DIGITS)


def _verify(manifest: Manifest, members: Mapping[str, bytes]) -> None:
    """Raise ValueError for what differs from the manifest."""
    if checksum_of(manifest) != manifest.sha256:
        raise ValueError("the manifest does not fit its checksum")
    stated = {one.name: one for one in manifest.members}
    if {*stated, MANIFEST} != {*members}:
        odd = sorted({*stated, MANIFEST} ^ {*members})
        raise ValueError(f"the manifest and the file differ in the members {', '.join(odd)}")
    for name, one in stated.items():
        if name != RUNS and one.bytes > MAXIMUM_PAYLOAD_BYTES:
            raise ValueError(f"the member {name!r} is larger than {MAXIMUM_PAYLOAD_BYTES} bytes")
        if member_of(name, members[name]) != one:
            raise ValueError(f"the member {name!r} does not fit its checksum")
    if members[MANIFEST] != json_member(manifest.model_dump(mode="json")):
        raise ValueError("the manifest is not as it was written")


def _check_origin(
    manifest: Manifest, sessions: Sequence[SessionRecord], results: Sequence[Result]
) -> None:
    """Raise ValueError for runs that do not belong to the sessions, or were not measured there."""
    ids = [one.id for one in sessions]
    if tuple(ids) != manifest.sessions or len({*ids}) < len(ids):
        raise ValueError("its sessions are not those of the manifest")
    if not results:
        raise ValueError("it holds no run")
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


def _results(content: bytes) -> Iterator[Result]:
    """Yield the runs. Raises ValueError for one that cannot be read, zlib.error."""
    for number, line in enumerate(_lines(content), 1):
        try:
            yield parse_result(line.decode())
        except ValueError as error:
            raise ValueError(f"its run {number} cannot be read: {error}") from error


def _lines(content: bytes) -> Iterator[bytes]:
    """Yield the lines of a gzip file that are within limits, inflating a piece at a time."""
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    left, total, pending = content, 0, b""
    while not inflating.eof:
        piece = inflating.decompress(left, PIECE)
        left, total = inflating.unconsumed_tail, total + len(piece)
        if not piece and not left and not inflating.eof:
            raise ValueError(f"{RUNS} is cut off")
        *whole, pending = (pending + piece).split(b"\n")
        if total > MAXIMUM_RUNS_BYTES or len(pending) > MAXIMUM_PAYLOAD_BYTES:
            raise ValueError(f"{RUNS} grows beyond what a bundle may hold")
        yield from whole
    if pending or inflating.unused_data:
        raise ValueError(f"{RUNS} has more behind its runs")


def _scenario(content: bytes, source: str) -> dict[str, Any]:
    if len(content) > MAXIMUM_BYTES:
        raise ValueError(f"{SCENARIO} is larger than {MAXIMUM_BYTES} bytes, which no scenario is")
    return load_yaml(content.decode(), source).data


def _list(content: bytes) -> list[JsonValue]:
    found = json.loads(content)
    if not isinstance(found, list):
        raise ValueError(f"{SESSIONS} is no list")
    return [_tuples(one) for one in found]


def _tuples(record: Any) -> Any:
    """Return a session's record with its command as the tuple that the model takes."""
    if isinstance(record, dict) and isinstance(record.get("command"), list):
        return {**record, "command": tuple(record["command"])}
    return record


def json_member(value: Any) -> bytes:
    """Return JSON with one spelling, that people can read."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
