"""The page in a real browser: three widths, light, dark and print, and hostile names in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from accel_bench_report.page.render_html import render_html
from browser import Browser

from .page_factory import HOSTILE, page_of_a_sweep, page_of_endings

WIDTHS = (375, 800, 1400)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of every ending, with names that would act if they could."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_html(page_of_endings(HOSTILE, plots=True)), encoding="utf8")
    return path


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows_acts_or_is_fetched(browser: Browser, file: Path, width: int) -> None:
    for dark in (False, True):
        browser.look(width, dark)
        browser.open(file)
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.title") == "unnamed · accel-bench"
        assert browser.run("document.querySelectorAll('img, iframe, object').length") == 0
        # The plot that is drawn for this width is shown, and the other one is not.
        shown = browser.run(
            "[...document.querySelectorAll('figure svg')].filter((one) => one.clientWidth).length"
        )
        assert shown == browser.run("document.querySelectorAll('figure').length") > 3
        assert browser.complaints() == []


def test_the_field_recomputes_time_and_money(browser: Browser, file: Path) -> None:
    browser.look(800)
    browser.open(file)
    cells = "[...document.querySelectorAll('tr[data-speed]')][0].querySelector"
    speed = float(browser.run("document.querySelector('tr[data-speed]').dataset.speed"))
    browser.run(
        "for (const [name, value] of [['tokens', '2e9'], ['price', '3']]) {"
        " const input = document.querySelector('input.' + name); input.value = value;"
        " input.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    hours = 2e9 / speed / 3600
    assert browser.run(f"{cells}('.hours').firstChild.textContent") == f"{hours:,.0f} h"
    assert browser.run(f"{cells}('.money').firstChild.textContent") == f"{3 * hours:,.0f}"
    browser.run(
        "{ const input = document.querySelector('input.tokens'); input.value = '-5';"
        " input.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    assert browser.run(f"{cells}('.hours').textContent") == "-"
    assert browser.run("document.querySelector('input.tokens').ariaInvalid") == "true"
    for field, text, read in (
        ("price", "2,50", None),
        ("tokens", "1,5e9", None),
        ("price", "1,000.50", 1000.5),
        ("tokens", "1,000,000,000", 1e9),
    ):
        browser.run(
            f"{{ const input = document.querySelector('input.{field}'); input.value = '{text}';"
            " input.dispatchEvent(new Event('input', { bubbles: true })); }"
        )
        wrong = browser.run(f"document.querySelector('input.{field}').ariaInvalid") == "true"
        said = browser.run(f"document.querySelector('input.{field} + .problem').textContent")
        assert wrong == (read is None) == said.startswith("not a number"), text
    assert browser.run(f"{cells}('.money').firstChild.textContent") == (
        f"{1000.5 * 1e9 / speed / 3600:,.0f}"
    )
    assert browser.complaints() == []


def test_plots_keep_the_size_of_their_letters(browser: Browser, file: Path) -> None:
    for width in WIDTHS:
        browser.look(width)
        browser.open(file)
        sizes = browser.run(
            "[...document.querySelectorAll('figure svg')].filter((one) => one.clientWidth)"
            ".map((one) => 9 * one.clientWidth / one.viewBox.baseVal.width)"
        )
        assert min(sizes) > 10, width


PLOTS = """
[...document.querySelectorAll('figure svg')].filter((one) => one.clientWidth).map((one) => {
  const box = (part) => { const { left, right, top, bottom } = part.getBoundingClientRect();
                          return [left, right, top, bottom]; };
  return { width: one.clientWidth, room: one.closest('figure').clientWidth, box: box(one),
           texts: [...one.querySelectorAll('text')].map((text) => [text.textContent, box(text)]) };
})
"""
"""Widths, room and places of the plots that are shown, and of their texts."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep with long names."""
    path = tmp_path_factory.mktemp("sweep") / "page.html"
    path.write_text(render_html(page_of_a_sweep()), encoding="utf8")
    return path


@pytest.mark.parametrize("width", [375, 800, 1280])
def test_plots_use_the_width_of_the_page_and_their_labels_are_whole(
    browser: Browser, sweep: Path, width: int
) -> None:
    browser.look(width)
    browser.open(sweep)
    plots = browser.run(PLOTS)
    assert len(plots) == 6
    for plot in plots:
        assert plot["width"] == plot["room"] > 0.8 * width
        left, right, top, bottom = plot["box"]
        texts = plot["texts"]
        for text, (begin, end, above, below) in texts:
            inside = left <= begin and end <= right and top <= above and below <= bottom
            assert inside, (width, text)
        # Texts of one line follow one another: none covers the next one.
        for one, (text, (begin, end, above, below)) in enumerate(texts):
            for other, (left_of, right_of, top_of, bottom_of) in texts[one + 1 :]:
                beside = end <= left_of or right_of <= begin
                shared = min(below, bottom_of) - max(above, top_of)
                assert beside or shared < (below - above) / 2, (width, text, other)
        whole = "".join(text for text, _ in texts)
        assert "…" not in whole and "every-second-layer" in whole


def test_a_link_opens_what_it_means_and_keys_reach_everything(browser: Browser, file: Path) -> None:
    browser.look(1400)
    browser.open(file, "#details-row-unnamed-fast")
    assert browser.run("document.getElementById('details-row-unnamed-fast').open") is True
    browser.open(file)
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", windowsVirtualKeyCode=9)
    assert browser.run("document.activeElement.className") == "skip"


def test_schemes_differ_and_print_is_dark_on_light(browser: Browser, file: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = []
    for dark, media in ((False, "screen"), (True, "screen"), (True, "print")):
        browser.look(800, dark, media)
        browser.open(file)
        colours.append(browser.run(paper))
    light, dark_paper, printed = colours
    assert light != dark_paper and printed == "rgb(255, 255, 255)"
