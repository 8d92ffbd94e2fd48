"""The archive of a bundle is canonical: any other zip file is refused with the reason."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest
from accel_bench_share import archive
from accel_bench_share.archive import MAXIMUM_MEMBERS, pack, unpack

from accel_bench.errors import BundleError

MEMBERS = {"a.json": b"[1, 2]", "b.gz": bytes(range(256)), "empty.md": b""}


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file written by zipfile."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as file:
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


def refused(folder: Path, content: bytes) -> str:
    """Return why a file is refused."""
    path = folder / "bundle.zip"
    path.write_bytes(content)
    with pytest.raises(BundleError) as error:
        unpack(path)
    assert str(error.value).startswith(str(path))
    return str(error.value)


def test_what_is_packed_is_unpacked_and_packed_alike_again(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(pack(MEMBERS))
    assert unpack(path) == MEMBERS
    assert pack(dict(reversed(MEMBERS.items()))) == path.read_bytes()
    with zipfile.ZipFile(path) as file:  # every unzip reads it
        assert file.testzip() is None


def test_every_single_flipped_bit_is_refused(tmp_path: Path) -> None:
    """In the members and in the headers."""
    whole = pack(MEMBERS)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        refused(tmp_path, bytes(changed))


@pytest.mark.parametrize("end", [0, 3, 21, 40, 100, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, end: int) -> None:
    refused(tmp_path, pack(MEMBERS)[:end])


@pytest.mark.parametrize(
    "name",
    [
        "../a.json",
        "/a.json",
        "a/b.json",
        "..",
        "A.json",
        "a\\b.json",
        "a.json/",
        "a\0b.json",
        "con",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    info = zipfile.ZipInfo("x")
    info.filename = name
    refused(tmp_path, zipped((info, b"x")))
    with pytest.raises(ValueError, match="no name of a member"):
        pack({name: b""})


def test_links_bombs_doubles_and_hidden_bytes_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("a.json")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    assert "have changed" in refused(tmp_path, zipped((link, b"/etc/passwd")))
    bomb = zipped(("a.json", bytes(50_000_000)), how=zipfile.ZIP_DEFLATED)
    assert "is compressed" in refused(tmp_path, bomb)
    with pytest.warns(UserWarning, match="Duplicate name"):
        double = zipped(("a.json", b"1"), ("a.json", b"2"))
    assert "have changed" in refused(tmp_path, double)
    assert "have changed" in refused(tmp_path, zipped(("a.json", b"1")))  # another date
    assert "more behind it" in refused(tmp_path, pack(MEMBERS) + b"hidden")
    assert "no bundle" in refused(tmp_path, b"hidden" + pack(MEMBERS))


def test_huge_files_directories_and_members_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = zipped(*((f"m{n}.json", b"") for n in range(MAXIMUM_MEMBERS + 1)))
    assert f"{MAXIMUM_MEMBERS + 1} members" in refused(tmp_path, many)
    whole = bytearray(pack(MEMBERS))
    whole[-22 + 12 : -22 + 16] = struct.pack("<L", 2**31)  # size of the directory
    assert "members" in refused(tmp_path, bytes(whole))
    monkeypatch.setattr(archive, "MAXIMUM_BYTES", 100)
    assert "larger than 100 bytes" in refused(tmp_path, pack(MEMBERS))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"absent\.zip' cannot be read: No such file"):
        unpack(tmp_path / "absent.zip")
