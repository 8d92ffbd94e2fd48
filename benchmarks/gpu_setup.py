"""Make a checkout importable, entry points included, where nothing can be installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import tomllib

CHECKOUT = Path(__file__).resolve().parent.parent
"""Root of the checkout."""

PLUGINS = ("bitsandbytes", "compile", "fused-kernels", "gptq", "moe", "padding-free", "torchao")
"""Folders of `plugins/` whose distributions take part."""


def set_up(wheels: Path, site: Path | None) -> None:
    """Make the checkout importable for child processes, as if installed in `site` unless None.

    Raises CalledProcessError when pip refuses a wheel.
    """
    folders = [str(CHECKOUT)]
    if site is not None:
        unpack_wheels(wheels, site)
        in_the_box = {package.parent for package in CHECKOUT.glob("plugins/*/accel_bench_*")}
        in_the_box -= {file.parent for file in CHECKOUT.glob("plugins/*/pyproject.toml")}
        roots = [site, CHECKOUT / "core", *sorted(in_the_box), CHECKOUT]
        folders = list(map(str, roots))
        write_distribution(CHECKOUT, site)
        for name in PLUGINS:
            write_distribution(CHECKOUT / "plugins" / name, site)
            folders.append(str(CHECKOUT / "plugins" / name))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *([inherited] if inherited else [])])


def is_installed(distribution: str) -> bool:
    """Return whether this Python has a distribution."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def unpack_wheels(wheels: Path, site: Path) -> None:
    """Install the wheels of a folder into another one, without an index."""
    found = sorted(str(path) for path in wheels.glob("*.whl"))
    if not found:
        return
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    install += ["--no-compile", "--disable-pip-version-check", "--upgrade", "--target", str(site)]
    subprocess.run([*install, *found], check=True)


def write_distribution(folder: Path, site: Path) -> None:
    """Write the files of an editable install: entry points and presets are found through them."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf8"))["project"]
    version = project.get("version") or core_version()
    info = site / f"{project['name'].replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    for extra, requirements in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {of_extra(text, extra)}" for text in requirements]
    (info / "METADATA").write_text("\n".join(lines) + "\n", "utf8")
    groups = []
    for group, entries in project.get("entry-points", {}).items():
        groups += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n", "utf8")
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin), "utf8")


def of_extra(requirement: str, extra: str) -> str:
    """Return a requirement as metadata have it where an extra brings it."""
    name, _, marker = requirement.partition(";")
    condition = f"({marker.strip()}) and " if marker else ""
    return f"{name.strip()}; {condition}extra == '{extra}'"


def core_version() -> str:
    """Return the version of accel-bench, as its package defines it."""
    lines = (CHECKOUT / "core/accel_bench/documents/program.py").read_text("utf8").splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("__version__"))
