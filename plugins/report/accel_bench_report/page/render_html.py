"""A page as one HTML file: nothing in it is fetched, and no text from elsewhere is markup."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_bench.documents.shown import plain, printable
from accel_bench.report.html import html_environment, inline_files
from accel_bench.result import Result
from accel_bench_report.page.model import Page
from accel_bench_report.page.page import page
from accel_bench_report.page.scenario import scenario_page
from accel_bench_report.page.stored_plan import stored_plan

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")
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


def session_page(session: str, document: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the page of a session, dated by its newest run: the same bytes each time.

    It has plots if matplotlib is installed.
    """
    one = scenario_page(session, stored_plan(document, results), results)
    newest = max(run.started_at for run in results)
    return render_html(replace(page([one], ()), written=newest))
