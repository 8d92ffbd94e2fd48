"""The page of bundles: escaped, without outside requests, filtered in a real browser."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from accel_bench_share.site import ShownBundle, render_site
from accel_bench_share.stack_reproduction import row_key, summarize_results
from analysis_factory import STEADY, make_experiment, make_failures, make_rank, make_rounds, scaled
from browser import Browser

from accel_bench.analysis.quantity import compared_by
from accel_bench.result import Status

HOSTILE = "<script>document.title='owned'</script><img src=http://evil.test/x onerror=alert(1)>\"'&"


def shown(file: str = "a.zip", date: str = "2026-01-05", **changes: Any) -> ShownBundle:
    """A bundle with a baseline, a faster stack, and one that failed."""
    base, fast, bad = (make_experiment(name) for name in ("lora", "fast", "bad"))
    runs = [
        *make_rounds(base, STEADY),
        *make_rounds(fast, scaled(0.8)),
        *make_failures(bad, Status.OOM, reasons=[HOSTILE]),
    ]
    fields: dict[str, Any] = {
        "file": file,
        "identity": "0123456789abcdef" * 4,
        "date": date,
        "summary": summarize_results(runs, "lora"),
        "models": {one.id: "tiny-llama" for one in (base, fast, bad)},
        "devices": "a CPU",
        "versions": ["torch 2.13.0", "lora: accel-bench 0.1.0"],
    }
    return ShownBundle(**{**fields, **changes})


class Page(HTMLParser):
    """Parsed page: tags with attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.inline: dict[str, str] = {}
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._in = tag

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style"):
            self.inline[self._in] = self.inline.get(self._in, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def values(self, name: str) -> list[str]:
        return [value for _, known, value in self.attributes if known == name]


def hostile_page() -> str:
    """A page with hostile text in every foreign field."""
    bundle = shown(
        file=f"a/{HOSTILE}.zip",
        models=dict.fromkeys(shown().models, HOSTILE),
        devices=f"{HOSTILE}\u202e\x1b[31m",
        versions=[HOSTILE],
        repeats=HOSTILE,
    )
    return render_site(HOSTILE, [bundle], [(f"{HOSTILE}.zip", HOSTILE)])


def test_texts_from_elsewhere_are_escaped() -> None:
    page = Page(text := hostile_page())
    assert page.tags["script"] == page.tags["style"] == 1
    assert page.tags["img"] == 0
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE not in text
    assert "\u202e" not in text and "\x1b" not in text
    assert "\\u202e" in text
    # A link leads to a file below the page, whatever its name is.
    assert all(value.startswith("./") and ":" not in value for value in page.values("href"))


def test_nothing_is_requested_and_no_other_script_may_run() -> None:
    page = Page(render_site("Results", [shown()], []))
    assert not page.values("src") and page.tags["link"] == 0
    assert "url(" not in page.inline["style"] and "@import" not in page.inline["style"]
    (policy,) = [value for value in page.values("content") if "default-src" in value]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.inline[kind].encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert "prefers-color-scheme: dark" in page.inline["style"]


def test_a_row_has_its_figures_and_a_failed_one_its_status_alone() -> None:
    row = shown().summary.experiments[2]
    key = row_key(row.stack, row.sweep)
    assert key[0] == "fast"
    counts = {key: Counter({"reproduced": 2, "inconclusive": 1})}
    text = render_site("Results", [shown(repetitions=counts)], [])
    rows = {
        re.search(r'data-stack="([^"]+)"', row)[1]: re.sub(r"<[^>]+>", "", row)  # type: ignore[index]
        for row in text.split("<tr ")[1:]
    }
    assert "1.250 [1.248, 1.252]" in rows["fast"] and "[99 % interval]" in text
    assert "3 times: 1 inconclusive, 2 reproduced" in rows["fast"]
    assert "1.000" not in rows["lora"]
    assert "oom" in rows["bad"] and "±" not in rows["bad"]
    assert (
        "1 of 2 stacks is faster than the baseline, most of all fast of unnamed: 1.250 "
        "[1.248, 1.252] times as fast; 1 oom. 1 bundle; repetitions"
    ) in text
    assert "1 bundle; repetitions of stacks: 1 inconclusive, 2 reproduced." in text


def test_a_browser_filters_it_and_runs_nothing_else(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    bundles = [shown(), shown("b.zip", "2026-03-01", devices="NVIDIA L4")]
    page.write_text(render_site("Results", bundles, []), "utf8")
    (tmp_path / "bad.html").write_text(hostile_page(), "utf8")
    browser.look(1400)
    browser.open(page, "#stack=fast&from=2026-02-01")
    assert browser.run("document.getElementById('shown').textContent") == "1 of 6 rows"
    assert browser.run("document.querySelectorAll('tr[hidden]').length") == 5
    assert browser.complaints() == []
    browser.open(tmp_path / "bad.html")
    # Our own script has run, and no other.
    assert browser.run("document.getElementById('shown').textContent") == "3 of 3 rows"
    assert browser.run("document.title") != "owned"
    assert browser.complaints() == []


def test_a_table_of_long_names_fits_a_screen(browser: Browser, tmp_path: Path) -> None:
    names = ("baseline", "activation-checkpointing", "fused-linear-cross-entropy", "absent")
    base, *others, absent = (
        make_experiment(name, sweep={"train.micro_batch_size": 16}) for name in names
    )
    runs = [
        *make_rounds(base, STEADY),
        *(run for n, one in enumerate(others) for run in make_rounds(one, scaled(0.8 + n))),
        *make_failures(absent, Status.SKIPPED, reasons=["no CUDA device"]),
    ]
    bundle = shown(
        file="team/a/full-fine-tuning-8b.zip",
        summary=summarize_results(runs, "baseline"),
        models={one.id: "meta-llama/Llama-3.1-8B" for one in (base, *others, absent)},
        devices="NVIDIA H100 80GB HBM3",
    )
    keys = [row_key(row.stack, row.sweep) for row in bundle.summary.experiments]
    repeated = {key: Counter({"reproduced": 2, "inconclusive": 1}) for key in keys}
    page = tmp_path / "index.html"
    page.write_text(render_site("Results", [replace(bundle, repetitions=repeated)], []), "utf8")
    browser.look(1280)
    browser.open(page)
    table = "document.querySelector('.wide')"
    assert browser.run(f"{table}.scrollWidth") <= browser.run(f"{table}.clientWidth") <= 1280
    colour = "getComputedStyle(document.querySelector('tr[data-stack=absent] td.{}')).color"
    dim = browser.run("getComputedStyle(document.querySelector('summary')).color")
    assert browser.run(colour.format("quiet")) == dim


@pytest.mark.parametrize("width", [375, 800, 1400])
def test_stack_ratio_and_verdict_are_on_the_screen(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    for text in (render_site("Results", [shown()], []), hostile_page()):
        (tmp_path / "index.html").write_text(text, "utf8")
        browser.look(width)
        browser.open(tmp_path / "index.html")
        assert browser.run("document.documentElement.scrollWidth") <= width
        right, first = browser.run(
            "(() => { const cells = [...document.querySelectorAll('tbody tr')]"
            ".flatMap((row) => [...row.children].slice(0, 3));"
            " return [Math.max(...cells.map((one) => one.getBoundingClientRect().right)),"
            " cells.map((one) => one.textContent.trim())]; })()"
        )
        assert right <= width
        if text != hostile_page():
            assert first[:3] == ["lora", "-", "baseline"]
            assert first[-3:] == ["fast", "1.250 [1.248, 1.252]", "faster"]


def test_a_verdict_on_another_quantity_names_it_and_counts_as_no_speed() -> None:
    runs = [make_rounds(make_experiment(name), STEADY) for name in ("lora", "fast")]
    less = (make_rank(step_seconds=(0.1, 0.1), peak=500),)
    runs[1] = [run.model_copy(update={"ranks": less}) for run in runs[1]]
    judged = [compared_by(run, "peak_memory_bytes") for own in runs for run in own]
    page = render_site("Results", [shown(summary=summarize_results(judged, "lora"))], [])
    assert "better by peak_memory_bytes" in page
    assert "0 of 1 stack are faster than the baseline; 1 better by peak_memory_bytes" in page
