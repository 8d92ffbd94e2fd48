"""Make an installed distribution in a folder, with entry points of several groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, groups: Mapping[str, Mapping[str, str]], source: str) -> None:
    """Lay out `stranger-micro` 1.0 with one module, `stranger_micro`."""
    (folder / "stranger_micro.py").write_text(source, encoding="utf8")
    info = folder / "stranger_micro-1.0.dist-info"
    info.mkdir()
    head = "Metadata-Version: 2.1\nName: stranger-micro\nVersion: 1.0\n"
    (info / "METADATA").write_text(head, encoding="utf8")
    lines: list[str] = []
    for group, entries in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf8")
