"""Environments with core and chosen folders of the box.

`python tests/alone.py op -m pytest plugins/op` runs a command in one of them, and an empty name
stands for none of the folders; what all tests need, the kit and the parts that train a model, and
distributions of other folders of `plugins/` stay installed there.
Without arguments it prints the folders.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Collection, Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

OURS = "accel-bench"
"""The distribution of core and of the box; those of other folders begin with its name."""


KIT = "testing"
"""The folder of the kit `accel_bench.testing`."""

TRAINING = ("huggingface", "torch")
"""Folders of the parts with which tests train a model."""


def boxed_folders() -> dict[str, str]:
    """Return the packages of the box by their folders in `plugins/`."""
    folders = sorted(path.parent for path in (ROOT / "plugins").glob("*/accel_bench_*"))
    boxed = [folder for folder in folders if not (folder / "pyproject.toml").exists()]
    return {folder.name: "accel_bench_" + folder.name.replace("-", "_") for folder in boxed}


def make_environment(place: Path, folders: Collection[str] = (), others: bool = False) -> Path:
    """Make an environment with core and these folders of the box; return its Python.

    `others` are our other distributions.
    """
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    # Folders that a .pth file names are not searched for further ones: ours in them are not read.
    paths = [ROOT / "core", *(ROOT / "plugins" / folder for folder in folders)]
    paths += [path for path in map(Path, sys.path) if others and (path / "pyproject.toml").exists()]
    installed = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "checkout.pth").write_text("".join(f"{path}\n" for path in [*paths, *installed]))
    write_metadata(site, folders, others)
    return place / "bin" / "python"


def write_metadata(site: Path, folders: Collection[str], others: bool = False) -> None:
    """Write what our distributions say of themselves, with the entry points of core and of these
    folders, and of `others`. It hides what stands behind it on the path.
    """
    packages = {"accel_bench", *(boxed_folders()[folder] for folder in folders)}
    for found in our_distributions():
        if others and found.name != OURS:
            continue
        info = site / f"{found.name.replace('-', '_')}-{found.version}.dist-info"
        info.mkdir()
        for file in ("METADATA", "direct_url.json"):
            if text := found.read_text(file):
                (info / file).write_text(text, encoding="utf8")
        lines: list[str] = []
        for group in found.entry_points.groups if found.name == OURS else ():
            entries = found.entry_points.select(group=group)
            kept = [entry for entry in entries if entry.module.partition(".")[0] in packages]
            lines += [f"[{group}]", *(f"{entry.name} = {entry.value}" for entry in kept)]
        (info / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf8")


def our_distributions() -> Iterator[metadata.Distribution]:
    """Yield accel-bench and what its folders are installed as."""
    found = {re.sub(r"[-_.]+", "-", one.name): one for one in metadata.distributions()}
    yield from (one for name, one in found.items() if name.startswith(OURS))


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(print(*boxed_folders()))
    named, *arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="alone-") as folder:
        folders = {KIT, *TRAINING, *filter(None, named.split(","))}
        python = make_environment(Path(folder), folders, others=True)
        sys.exit(subprocess.run([python, *arguments], check=False).returncode)
