"""Zip archive of a bundle's members in one canonical form, so that any changed bit is refused.

Members are uncompressed, sorted by name, with one fixed date. A file is read whole, within limits,
and must equal the archive written from its members. This excludes zip bombs, links, duplicate
names, and data between or behind the members.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

from accel_bench.documents.files import read_bytes
from accel_bench.errors import BundleError

MAXIMUM_BYTES = 256 * 1024 * 1024
"""Maximum bytes of a bundle file."""

MAXIMUM_MEMBERS = 32

DATE = (1980, 1, 1, 0, 0, 0)
"""Date of all members: the earliest of the zip format."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}(\.[a-z0-9]{1,8}){1,2}")
_END = struct.Struct("<4s4H2LH")
"""End record of a zip file without a comment."""

_LARGER_END = b"PK\x06\x07"
_LARGEST_DIRECTORY = MAXIMUM_MEMBERS * 128


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return the zip archive of `members`, contents by name. Raises ValueError for a wrong name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name in sorted(members):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name[:80]!r} is no name of a member")
            member = zipfile.ZipInfo(name, DATE)
            member.create_system, member.external_attr = 3, 0o644 << 16  # on every system alike
            file.writestr(member, members[name])
    return buffer.getvalue()


def unpack(path: Path) -> dict[str, bytes]:
    """Return the contents of a bundle file's members by name.

    Nothing is extracted to disk. Raises BundleError with the file and the reason if the file is
    unreadable or changed.
    """
    raw = read_bytes(path, MAXIMUM_BYTES, BundleError, ", more than a bundle may have")
    try:
        return _members(raw)
    except _REFUSED as error:
        raise BundleError(f"{path}: refused, {error}") from error


_REFUSED = (
    *(zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError),
    *(EOFError, OverflowError, struct.error),
)
"""Exceptions that an invalid archive may raise."""


def _members(raw: bytes) -> dict[str, bytes]:
    """Return an archive's members by name. Raises ValueError if `pack` would write other bytes."""
    _check_end(raw)
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        for member in file.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                name = member.filename[:80]
                raise ValueError(f"the member {name!r} is compressed, which none of a bundle is")
        members = {member.filename: file.read(member) for member in file.infolist()}
    if pack(members) != raw:
        raise ValueError("it is not as it was written: bytes of it have changed")
    return members


def _check_end(raw: bytes) -> None:
    """Raise ValueError if a zip archive's end record is invalid, or states too many members."""
    if len(raw) < _END.size or not raw.startswith(b"PK\x03\x04"):
        raise ValueError("it is no bundle")
    signature, _, _, _, count, directory, _, _ = _END.unpack(raw[-_END.size :])
    if signature != b"PK\x05\x06" or raw[-42:-38] == _LARGER_END:
        raise ValueError("it does not end as a bundle does: it was cut off, or has more behind it")
    if count > MAXIMUM_MEMBERS or directory > _LARGEST_DIRECTORY:
        raise ValueError(f"it has {count} members; at most {MAXIMUM_MEMBERS} may be")
