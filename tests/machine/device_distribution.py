"""Make an installed distribution in a folder that describes a type of device."""

from __future__ import annotations

from pathlib import Path

STANDIN = Path(__file__).parents[1] / "data" / "acme_standin.py"
"""Describes torch's own device for backends from outside, under the name `standin`."""


def install(folder: Path, name: str, kind: str, source: str) -> None:
    """Lay out the distribution `acme-NAME`, with one device type."""
    (folder / f"acme_{name}.py").write_text(source, encoding="utf8")
    info = folder / f"acme_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{name}\nVersion: 1.0\n")
    entry = f"[accel_bench.devices]\n{name} = acme_{name}:{kind}\n"
    (info / "entry_points.txt").write_text(entry)


def install_standin(folder: Path) -> None:
    """Lay out the distribution of the device type `standin`."""
    install(folder, "standin", "Standin", STANDIN.read_text(encoding="utf8"))
