"""Make a distribution that consists of its metadata alone, with any version and requirements."""

from __future__ import annotations

from pathlib import Path


def lay_out(folder: Path, distribution: str, version: str, requires: tuple[str, ...] = ()) -> None:
    """Lay out what pip would have written of `distribution` at that version."""
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join([*lines, ""]), encoding="utf8")
