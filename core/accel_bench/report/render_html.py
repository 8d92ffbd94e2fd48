"""A page as one HTML file: nothing in it is fetched, and no text from elsewhere is markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from accel_bench.documents.shown import plain, printable
from accel_bench.report.html import html_environment, inline_files
from accel_bench.report.views.page_model import Page

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("page")
"""The template, the style sheet and the script."""


OPTIONS = re.compile(r"--[a-z][\w-]{0,20}(?: --[a-z][\w-]{0,20}| \d{1,6}){0,2}(?![\w-])")
"""Options of a command in a sentence, with the numbers that follow them."""


def _options(text: str) -> Markup:
    """Return a sentence in which no line ends within an option or before its number."""
    from markupsafe import Markup, escape

    def kept(match: re.Match[str]) -> str:
        return f'<code class="option">{match.group()}</code>'

    return Markup(OPTIONS.sub(kept, str(escape(printable(text)))))


def render_html(page: Page) -> str:
    """Return the page; all its text is escaped, and the browser runs our script alone."""
    environment = html_environment(TEMPLATES, printable)
    environment.filters["plain"] = plain
    environment.filters["options"] = _options
    inline = inline_files(TEMPLATES / "style.css", TEMPLATES / "page.js")
    return environment.get_template("page.html").render(page=page, **inline)
