"""Make the cheats and the honest accelerations known as an installed distribution's plugins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from same_training import cheats, honest, mixtures

from accel_bench import Options, Plugin, Run, hookimpl


def plugins_of(module: Any) -> dict[str, type[Plugin[Any]]]:
    """Return the plugins that a module defines, by the name after `use:`, in written order."""
    found = {
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower(): kind
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    }
    return {name: kind for name, kind in found.items() if issubclass(kind, Plugin)}


class SavesWeightsOptions(Options):
    """Where to."""

    folder: str


class SavesWeights(Plugin[SavesWeightsOptions]):
    """Write the trained model to a folder, as Hugging Face does."""

    Options = SavesWeightsOptions

    @hookimpl
    def close_run(self, run: Run) -> None:
        run.model.save_pretrained(self.options.folder)


CHEATS = plugins_of(cheats)
HONEST = plugins_of(honest)
MIXTURES = plugins_of(mixtures)


def install(folder: Path) -> None:
    """Lay out the metadata of `accel-bench-same-training`, whose modules are those of the tests."""
    info = folder / "accel_bench_same_training-1.0.dist-info"
    info.mkdir()
    about = "Metadata-Version: 2.1\nName: accel-bench-same-training\nVersion: 1.0\n"
    (info / "METADATA").write_text(about, encoding="utf8")
    kinds = {**CHEATS, **HONEST, **MIXTURES, "saves-weights": SavesWeights}
    entries = [f"{name} = {kind.__module__}:{kind.__name__}" for name, kind in kinds.items()]
    text = "\n".join(["[accel_bench]", *entries, ""])
    (info / "entry_points.txt").write_text(text, encoding="utf8")
