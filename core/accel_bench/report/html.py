"""Common parts of HTML files: templates that escape text, with inline style and script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def html_environment(folder: Path, shown: Callable[[str], str]) -> Environment:
    """Return the templates of a folder; all text in them is escaped, and passed to `shown`.

    Messages and names come from others: control and invisible characters in them must be escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Markup is a text too, and stays as it is.
        finalize=lambda value: shown(value) if type(value) is str else value,
    )


def inline_files(style: Path, script: Path) -> dict[str, Markup | str]:
    """Return our style and script for a template, with their hashes for the browser."""
    from markupsafe import Markup

    files = {"style": style.read_text("utf8"), "script": script.read_text("utf8")}
    texts = {name: Markup(text) for name, text in files.items()}
    return {**texts, **{f"{name}_hash": _policy_source(text) for name, text in files.items()}}


def _policy_source(text: str) -> str:
    """Return the source expression with which a content security policy allows an inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
