"""A page as one HTML file: nothing in it is fetched, and no text from elsewhere is markup."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from accel_bench.documents.shown import plain, printable
from accel_bench.report.views.page import Page

TEMPLATES = Path(__file__).with_name("page")
"""The template, the style sheet and the script."""


def render_html(page: Page) -> str:
    """Return the page; all its text is escaped, and the browser runs our script alone."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Messages and names are not ours: what would act or hide in them is shown as an escape.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["plain"] = plain
    script = (TEMPLATES / "page.js").read_text(encoding="utf8")
    digest = hashlib.sha256(script.encode()).digest()
    return environment.get_template("page.html").render(
        page=page,
        style=(TEMPLATES / "style.css").read_text(encoding="utf8"),
        script=script,
        script_hash=f"sha256-{base64.b64encode(digest).decode()}",
    )
