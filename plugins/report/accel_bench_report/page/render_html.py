"""Rendering of a page as one HTML file without external requests, all foreign text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_bench.documents.escaping import plain, printable
from accel_bench.report.page_file import html_environment, inline_files
from accel_bench.result import Result
from accel_bench_report.page.model import Page
from accel_bench_report.page.page import page
from accel_bench_report.page.scenario import scenario_page
from accel_bench_report.page.stored_plan import stored_plan

TEMPLATES = Path(__file__).with_name("templates")
"""Folder of the template, the style sheet and the script."""


def render_html(page: Page) -> str:
    """Return the page as HTML, with all text escaped, and with no script but its own."""
    environment = html_environment(TEMPLATES, printable)
    environment.filters["plain"] = plain
    inline = inline_files(TEMPLATES / "style.css", TEMPLATES / "page.js")
    return environment.get_template("page.html").render(page=page, **inline)


def session_page(session: str, document: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the HTML page of a session, dated by its newest run.

    `session` is its id, `document` its record in the store, and `results` are its runs. Equal
    arguments give equal pages. The page has plots if matplotlib is installed.
    """
    scenario = scenario_page(session, stored_plan(document, results), results)
    newest = max(run.started_at for run in results)
    return render_html(replace(page([scenario], ()), written=newest))
