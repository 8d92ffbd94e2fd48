"""Make an installed distribution in a folder: a module, and the metadata that pip would write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FAULTY = {
    "faulty": "Faulty",
    "faulty-preparation": "FaultyPreparation",
    "witness": "Witness",
}
"""Plugins of the faulty distribution, and their classes."""

SOUND = """
from accel_bench import Options, Plugin, hookimpl

class Sound(Plugin[Options]):
    @hookimpl
    def accelerate_model(self, run):
        return None
"""
"""Source of a plugin that does nothing, and nothing wrong."""

DOCTORED = {"sleepy": "Sleepy", "frozen": "Frozen"}
"""Plugins of the doctored distribution, and their classes."""


def install(
    folder: Path,
    distribution: str,
    plugins: Mapping[str, str],
    source: str,
    requires: tuple[str, ...] = (),
) -> None:
    """Lay out `distribution` 1.0 with one module; `plugins` maps names to classes in it."""
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(source, encoding="utf8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {distribution}", "Version: 1.0"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join([*lines, ""]), encoding="utf8")
    entries = [f"{name} = {module}:{kind}" for name, kind in plugins.items()]
    text = "\n".join(["[accel_bench]", *entries, ""])
    (info / "entry_points.txt").write_text(text, encoding="utf8")


def install_faulty(folder: Path) -> None:
    """Lay out the distribution `accel-bench-faulty`."""
    source = Path(__file__).with_name("faulty.py").read_text(encoding="utf8")
    install(folder, "accel-bench-faulty", FAULTY, source)


def install_doctored(folder: Path) -> None:
    """Lay out the distribution `accel-bench-doctored`."""
    source = Path(__file__).with_name("doctored.py").read_text(encoding="utf8")
    install(folder, "accel-bench-doctored", DOCTORED, source)
