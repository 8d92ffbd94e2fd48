"""Take the pictures of a report for the README: `make pictures RESULTS=DIR`, of its quickstart."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser, open_browser
from PIL import Image

WIDTH = 1080
COLOURS = 256
"""Colours of a picture: few make it small, and the page has few."""


def take_pictures(results: str, selection: str, folder: Path) -> None:
    """Write `report-light.png` and `report-dark.png`: the first screen, and the plots below it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        page = Path(place, "page.html")
        command = [sys.executable, "-m", "accel_bench", "report", selection, "--results", results]
        subprocess.run([*command, "--html", str(page)], check=True)
        with open_browser(Path(place, "profile")) as browser:
            take(browser, page, folder / "report-light.png", "stacks", dark=False)
            take(browser, page, folder / "report-dark.png", "time", dark=True)


def take(browser: Browser, page: Path, file: Path, part: str, dark: bool) -> None:
    """Write a picture that begins at the top, or at a part of the page."""
    browser.look(WIDTH, dark)
    browser.open(page)
    heading = f"document.querySelector('h2[id$=\"-{part}\"]')"
    top = browser.run(f"{heading} ? {heading}.getBoundingClientRect().top + scrollY - 24 : 0")
    ends = {"stacks": "plots", "time": "each"}[part]
    end = f"document.querySelector('h2[id$=\"-{ends}\"]')"
    bottom = browser.run(f"{end}.getBoundingClientRect().top + scrollY - 24")
    start = 0 if part == "stacks" else top
    clip = {"x": 0, "y": start, "width": WIDTH, "height": bottom - start}
    browser.picture(file, clip)
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(
            file, optimize=True
        )


if __name__ == "__main__":
    take_pictures(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
