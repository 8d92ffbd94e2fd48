"""The distributions of documentation pages, installed from nothing but what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FILE = re.compile(r"^`([a-z_/]+\.(?:toml|py))`:\n\n```[a-z]+\n(.*?)^```", re.MULTILINE | re.DOTALL)


def files_of(page: str) -> dict[str, str]:
    """The files of the distribution that a page of `docs/` shows, by name."""
    path = Path(__file__).parents[1] / "docs" / page
    return dict(FILE.findall(path.read_text(encoding="utf8")))


def install_page(page: str, folder: Path) -> Path:
    """Install that distribution into a folder, and return what stands on `PYTHONPATH` for it."""
    for name, text in files_of(page).items():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_text(text, encoding="utf8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    pip += ["--no-deps", "--no-build-isolation", "--target", str(folder / "site")]
    subprocess.run([*pip, str(folder / "source")], check=True, capture_output=True)
    return folder / "site"
