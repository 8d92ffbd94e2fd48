"""Write gettext's catalogues, as `msgfmt` does."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path


def write_catalogue(root: Path, lang: str, domain: str, messages: Mapping[str, str]) -> None:
    """Write the binary catalogue of one domain in one language."""
    ordered = sorted((key.encode(), text.encode()) for key, text in messages.items())
    tables, texts = [], b""
    start = 28 + 16 * len(ordered)
    for side in (0, 1):
        for pair in ordered:
            tables.append(struct.pack("<2I", len(pair[side]), start + len(texts)))
            texts += pair[side] + b"\0"
    count = len(ordered)
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    folder = root / lang / "LC_MESSAGES"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{domain}.mo").write_bytes(head + b"".join(tables) + texts)
