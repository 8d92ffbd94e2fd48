"""Make bundles: take out secrets and names, and write members with their checksums."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel_bench._version import __version__
from accel_bench.documents.files import write_atomically
from accel_bench.errors import BundleError
from accel_bench.machine.measurer import pseudonym
from accel_bench.result import Result
from accel_bench.store.sessions import SessionRecord
from accel_bench_share.archive import pack
from accel_bench_share.bundle_file import (
    MANIFEST,
    RUNS,
    SESSIONS,
    Manifest,
    checksum_of,
    json_member,
    manifest_value,
    member_of,
    read_bundle,
)


@dataclass(frozen=True)
class Content:
    """What is put into a bundle; it is anonymous already."""

    sessions: Sequence[SessionRecord]
    results: Sequence[Result]
    baseline: str
    texts: Mapping[str, str]
    """Further members: `scenario.yaml`, `conclusion.md` and what only people read."""


def write_bundle(path: Path, content: Content) -> Manifest:
    """Write the file of a bundle, the same bytes for the same content; return its manifest."""
    lines = [one.model_dump_json() for one in content.results]
    members = {name: text.encode() for name, text in content.texts.items()}
    members[SESSIONS] = json_member([one.model_dump(mode="json") for one in content.sessions])
    members[RUNS] = gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0)
    manifest = _manifest(content, members)
    members[MANIFEST] = json_member(manifest_value(manifest))
    write_atomically(path, pack(members))
    try:
        read_bundle(path)  # what cannot be read again is no bundle
    except BundleError:
        path.unlink()
        raise
    return manifest


def _manifest(content: Content, members: Mapping[str, bytes]) -> Manifest:
    first = min(content.sessions, key=lambda one: one.started_at)
    repeats = str(first.document.get("repeats", ""))
    identity = hashlib.sha256(members[SESSIONS] + gzip.decompress(members[RUNS])).hexdigest()
    unsigned = Manifest(
        written_by=__version__,
        scenario=first.scenario,
        started_at=first.started_at,
        baseline=content.baseline,
        sessions=tuple(one.id for one in content.sessions),
        repeats=repeats,
        measured_by=pseudonym(repeats or identity),
        members=tuple(member_of(name, members[name]) for name in sorted(members)),
        sha256="",
    )
    return unsigned.model_copy(update={"sha256": checksum_of(unsigned)})
