"""A file is whole or not there, and a write that fails says why."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_bench.documents.files import open_regular, read_bytes, refuse_growth, write_atomically
from accel_bench.errors import ImportFileError, StoreError


def test_a_file_is_written_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_atomically(path, "first\r\nsecond ü\n")
    assert path.read_bytes() == "first\r\nsecond ü\n".encode()
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]


def test_a_file_that_replaces_a_link_does_not_follow_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("theirs")
    (tmp_path / "report.txt").symlink_to(outside)
    write_atomically(tmp_path / "report.txt", "ours")
    assert outside.read_text() == "theirs"
    assert (tmp_path / "report.txt").read_text() == "ours"


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """The system lets this process write files of at most 20,000 bytes.

    No fixture: the test runner's own output may go to a file that is longer by now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text("old")
    problem = r"export\.json: File too large"
    with pytest.raises(StoreError, match=problem) as caught, small_files():
        write_atomically(path, "x" * 100_000)
    assert caught.value.exit_code == 1
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["export.json"]


def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        write_atomically(tmp_path / "nowhere" / "export.json", "{}")


def test_a_name_that_is_not_utf8_is_written_as_the_bytes_that_it_is(tmp_path: Path) -> None:
    write_atomically(tmp_path / "command.txt", "cd /some/\udcff\n")
    assert (tmp_path / "command.txt").read_bytes() == b"cd /some/\xff\n"


@pytest.mark.parametrize("place", [".", "/", "..", "folder", "pipe", "/dev/null"])
def test_what_is_no_file_is_not_replaced_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("pipe")
    with pytest.raises(StoreError, match=r"is a (folder|named pipe|device); name a file") as caught:
        write_atomically(Path(place), "text")
    assert caught.value.exit_code == 2
    assert sorted(os.listdir()) == ["folder", "pipe"]


@pytest.mark.parametrize("place", ["pipe", "/dev/zero", "/dev/stdin", "."])
def test_a_file_that_never_ends_or_begins_is_refused_at_once_and_by_name(
    tmp_path: Path, place: str
) -> None:
    """Reading a pipe to which nobody writes would wait for ever."""
    reading, writing = os.pipe()
    os.mkfifo(tmp_path / "pipe")
    path = Path(f"/dev/fd/{reading}") if place == "/dev/stdin" else tmp_path / place
    with pytest.raises(ImportFileError, match=f"{path}' cannot be read: it is a .*; (save|name)"):
        read_bytes(path, 100, ImportFileError, "")
    os.close(reading)
    os.close(writing)


def test_a_file_that_grows_while_it_is_read_or_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5, ImportFileError, "") == b"12345"
    with pytest.raises(ImportFileError, match="log: larger than 4 bytes, the limit"):
        read_bytes(path, 4, ImportFileError, ", the limit")
    with open_regular(path, ImportFileError) as opened:
        opened.read()
        refuse_growth(opened, path, ImportFileError, 5)
        with path.open("ab") as writer:
            writer.write(b"6")
        with pytest.raises(ImportFileError, match="log: grows while it is read"):
            refuse_growth(opened, path, ImportFileError, 5)
