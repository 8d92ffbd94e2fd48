"""Pages replace older pages of ours, and no other file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_bench.errors import AccelBenchError
from accel_bench.report.page_file import write_markdown, write_page
from accel_bench.report.plain_html import render_plain_html
from accel_bench.report.table import Section


def test_a_page_of_ours_is_replaced(tmp_path: Path) -> None:
    page = render_plain_html([Section(title="x")])
    for text in (page, page):
        write_page(tmp_path / "index.html", text)
        assert (tmp_path / "index.html").read_text("utf8") == text
    for text in ("# one", "# two"):
        write_markdown(tmp_path / "page.md", text)
        assert (tmp_path / "page.md").read_text("utf8").endswith(text)


@pytest.mark.parametrize("write", [write_page, write_markdown])
def test_any_other_file_is_left(write: Callable[[Path, str], None], tmp_path: Path) -> None:
    own = tmp_path / "index.html"
    own.write_text("<!doctype html><title>written by hand</title>")
    data = tmp_path / "data"
    with sqlite3.connect(data) as connection:
        connection.execute("create table runs (id)")
    connection.close()
    (tmp_path / "link.html").symlink_to("nothing")
    for path in (own, data, tmp_path / "link.html", tmp_path):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(AccelBenchError, match="is no page of accel-bench; it is left as it is"):
            write(path, "new")
        assert before == (path.read_bytes() if path.is_file() else b"")
    for name in ("results.sqlite", "results.sqlite-wal"):
        with pytest.raises(AccelBenchError, match="a database of results; name another file"):
            write(tmp_path / name, "new")
        assert not (tmp_path / name).exists()
