"""A rank's log once the rank has ended: without secrets, of bounded size, and its last lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from accel_bench.documents.redaction import Redactor

KEPT_BYTES = 4 * 1024 * 1024
"""How much is kept of the beginning of a log, and of its end."""

TAIL_BYTES = 64 * 1024
"""How much of a failed rank's log goes into the result."""

BLOCK_BYTES = 1024 * 1024
"""How much is looked at at a time, and more where a line is longer."""


def redact_file(path: Path, redactor: Redactor, *, shorten: bool) -> None:
    """Take secrets out of a file; with `shorten` also the middle of a very long one.

    Written aside and renamed: where that fails, the file is emptied, since what may hold a secret
    is not kept. Raises OSError when not even that can be done.
    """
    if not path.is_file():
        return
    aside = path.with_name(f"{path.name}.part")
    try:
        changed = False
        with path.open("rb") as source, aside.open("w", encoding="utf8") as target:
            for block in _blocks(source, shorten):
                text = block.decode("utf8", errors="replace")
                clean = redactor.redact(text)
                changed = changed or clean != text
                target.write(clean)
            changed = changed or (shorten and source.tell() > 2 * KEPT_BYTES)
        aside.replace(path) if changed else aside.unlink()
    except OSError:
        aside.unlink(missing_ok=True)
        path.write_bytes(b"")


def log_tail(path: Path) -> str:
    """The last of a log, as text; empty where there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            return log.read().decode("utf8", errors="replace")
    except OSError:
        return ""


def _blocks(source: BinaryIO, shorten: bool) -> Iterator[bytes]:
    """Blocks that end with a line, so that no secret is cut in two; the middle may be left out."""
    size = source.seek(0, 2)
    source.seek(0)
    left_out = shorten and size > 2 * KEPT_BYTES
    while block := source.read(BLOCK_BYTES):
        yield block + source.readline()
        if left_out and source.tell() >= KEPT_BYTES:
            skipped = source.tell()
            source.seek(max(skipped, size - KEPT_BYTES))
            source.readline()
            yield f"[{source.tell() - skipped} bytes left out]\n".encode()
            left_out = False
