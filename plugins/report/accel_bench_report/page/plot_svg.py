"""SVG drawings by matplotlib to embed in a page: small, in its colours, with tooltips."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accel_bench.documents.escaping import plain

COLOURS = 8
"""Number of stack colours in the style sheet, `--s0` to `--s7`."""

INK, QUIET, LINE = "#b00000", "#b00001", "#b00002"
"""Placeholder colours, replaced by the colours of the style sheet."""

_COLOURS_OF_PAGE = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    LINE: "var(--line)",
    **{f"#c0000{number}": f"var(--s{number})" for number in range(COLOURS)},
}

STYLE: dict[Any, Any] = {
    "axes.edgecolor": LINE,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.formatter.useoffset": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": LINE,
    "xtick.labelcolor": QUIET,
    "ytick.color": LINE,
    "ytick.labelcolor": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
"""matplotlib settings of all plots. Dollar signs in names start no formula."""

HOVER = re.compile(r'<g id="hover\n([^"]*)">')
"""Pattern of the SVG group of an artist with tooltips; its id holds them, one per line."""

MARK = re.compile(r"(<use [^>]*)/>")
"""Pattern of the SVG mark of one point."""


def draw_svg(title: str, draw: Callable[[Any], None], width: float, height: float) -> str:
    """Return the SVG of a titled figure of `width` x `height` inches, which `draw` fills."""
    with _matplotlib() as matplotlib:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, ScalarFormatter

        matplotlib.rcParams["svg.hashsalt"] = f"{title} {width}"
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
            if isinstance(axis.get_major_formatter(), ScalarFormatter):
                axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
        output = io.StringIO()
        FigureCanvasSVG(figure).print_svg(output, metadata={"Date": None})
    return _for_page(output.getvalue(), title)


def tick_text(value: float) -> str:
    """Return the text of an axis number, with a letter for large ones, such as `20k` or `3G`."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:.6g}"


def show_on_hover(artist: Any, text: str, points: Sequence[str] = ()) -> None:
    """Give a matplotlib artist the tooltip `text`, and its points the tooltips `points`."""
    artist.set_gid("\n".join(("hover", *map(plain, (text, *points)))))


@contextmanager
def _matplotlib() -> Iterator[Any]:
    """Yield matplotlib in this module's style; it does not warn of characters its font lacks."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context(dict(STYLE)):
        warnings.simplefilter("ignore", UserWarning)
        yield matplotlib


LEFT_OUT = re.compile(
    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style[^>]*>.*?</style>\s*</defs>"
    r"| xmlns(:xlink)?=\"[^\"]*\"|font-family: [^;\"]*; |(?<=\n)\s+",
    re.S,
)
"""Pattern of SVG headers, comments and fonts that an embedded drawing does not need."""


def _for_page(svg: str, title: str) -> str:
    """Return a drawing for embedding in a page: small, and in the page's colours.

    Ids without references are dropped. All other ids are hashes of the plot's title and width.
    """
    svg = _with_titles(LEFT_OUT.sub("", svg).replace("xlink:href", "href"))
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', rest))
    rest = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", rest)
    rest = re.sub(r"#[bc]0000\d", lambda match: _COLOURS_OF_PAGE.get(match[0], match[0]), rest)
    return f'<svg role="img" aria-label="{_attribute(title)}" {box[0] if box else ""}>{rest}'


def _with_titles(svg: str) -> str:
    """Return a drawing whose tooltips are SVG titles of its lines and points."""
    start, *groups = HOVER.split(svg)
    return start + "".join(map(_titled, groups[::2], groups[1::2]))


def _titled(texts: str, inside: str) -> str:
    whole, *points = texts.split("\n")
    titles = iter(points)

    def titled(mark: re.Match[str]) -> str:
        title = next(titles, None)
        return mark[0] if title is None else f"{mark[1]}><title>{title}</title></use>"

    return f"<g><title>{whole}</title>{MARK.sub(titled, inside)}"


def _attribute(text: str) -> str:
    from markupsafe import escape

    return str(escape(plain(text)))
