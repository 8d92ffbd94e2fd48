"""Plots as SVG that takes its colours from the page around it; matplotlib draws them.

Static drawings need no script, print as they look, and take kilobytes where a library in the page
takes megabytes. A plot is drawn twice, for wide and narrow pages: scaled text cannot be read.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

from accel_bench.documents.shown import plain

MISSING = "plots are left out: matplotlib is not installed (pip install 'accel-bench[report]')"
"""Note of a page without plots."""

COLOURS = 8
"""Colours of stacks in the style sheet, `--s0` to `--s7`."""

MARKERS = "osD^vPXd"
"""Shapes of points: another one where the colours begin again."""

MOST_POINTS = 600
"""Points of a series that are drawn: the first and the last, and evenly chosen ones between."""

LABEL_LETTERS = 22
"""Letters of a name that are drawn."""

INK, QUIET, LINE = "#b00000", "#b00001", "#b00002"
"""Placeholders of colours that the page defines."""

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
"""What all plots share. Dollars in a name are no formula."""

WIDTHS = {"wide": 7.6, "narrow": 3.5}
"""Widths in inches of 96 pixels."""

Point = tuple[float, float]


class Series(NamedTuple):
    """Points of one stack."""

    name: str

    number: int
    """Place of the stack on the page, which gives it colour and shape."""

    points: Sequence[Point]

    band: tuple[float, float, float] | None = None
    """An estimate with both ends of its interval."""

    steps: Sequence[float] = ()
    """Values of x at which its level changes."""

    shape: int = 0
    """Number that gives its points another shape, where a stack has several series."""

    @property
    def colour(self) -> str:
        """Placeholder of its colour."""
        return f"#c0000{self.number % COLOURS}"

    @property
    def marker(self) -> str:
        """Shape of its points."""
        return MARKERS[(self.number // COLOURS + self.shape) % len(MARKERS)]


class Plot(NamedTuple):
    """One plot in both widths."""

    title: str
    caption: str
    wide: str
    narrow: str


def plots_available() -> bool:
    """Return whether matplotlib is installed; it is not imported."""
    return find_spec("matplotlib") is not None


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """Return at most so many points, evenly chosen, the first and the last among them."""
    if len(points) <= most:
        return points
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


def strips(
    title: str, caption: str, series: Sequence[Series], axis: str, line: float | None = None
) -> Plot:
    """Draw a strip for each series: a dot for each value, its estimate and interval as a bar.

    `line` is a value that all are read against.
    """

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for place, one in enumerate(reversed(series)):
            values = [value for value, _ in thinned(one.points)]
            spread = [place + 0.16 + 0.1 * (number % 2) for number in range(len(values))]
            axes.plot(values, spread, one.marker, color=one.colour, markersize=4, alpha=0.55,
                      markeredgewidth=0)  # fmt: skip
            if one.band:
                middle, low, high = one.band
                axes.plot([low, high], [place, place], color=one.colour, linewidth=3.2, alpha=0.9)
                axes.plot([middle], [place], "|", color=INK, markersize=11, markeredgewidth=2)
        if line is not None:
            axes.axvline(line, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(series)), [_short(one.name) for one in reversed(series)])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(-0.6, len(series) - 0.35)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(axis)

    return _plot(title, caption, draw, lambda narrow: 0.75 + 0.5 * len(series))


def curves(
    title: str,
    caption: str,
    series: Sequence[Series],
    axes_names: tuple[str, str],
    dots: bool = False,
) -> Plot:
    """Draw a line for each series; with `dots`, each of its points too."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        # The first one, whose line is solid, comes first: dashes over it leave it visible.
        for one in sorted(series, key=lambda one: one.number):
            x, y = zip(*thinned(one.points), strict=True)
            style = one.number + one.shape
            gaps = style % 3 + 1
            dashes = (0, (2 * gaps, gaps)) if style else "solid"
            axes.plot(
                x, y, one.marker if dots else "", color=one.colour, linewidth=1.7,
                linestyle=dashes, markersize=5, markeredgewidth=0, label=_short(one.name),
            )  # fmt: skip
        _name_axes(axes, axes_names)
        _legend(figure, len(series))

    return _plot(title, caption, draw, lambda narrow: 3.0)


def dated(title: str, caption: str, series: Sequence[Series], axis: str) -> Plot:
    """Draw points over time, whose x are seconds since 1970."""

    def draw(figure: Any) -> None:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        axes = figure.add_subplot()
        for one in series:
            x, y = zip(*thinned(one.points), strict=True)
            axes.plot([second / 86400 for second in x], y, one.marker, linestyle="-", linewidth=0.8,
                      color=one.colour, markersize=4, label=_short(one.name))  # fmt: skip
            for second in one.steps:
                axes.axvline(second / 86400, color=one.colour, linewidth=1.2, linestyle="--")
        locator = AutoDateLocator(maxticks=5)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        _name_axes(axes, ("", axis))
        _legend(figure, len(series))

    return _plot(title, caption, draw, lambda narrow: 3.0)


def scatter(
    title: str,
    caption: str,
    series: Sequence[Series],
    axes_names: tuple[str, str],
    frontier: Sequence[Point] = (),
) -> Plot:
    """Draw the first point of each series with its name, and a line of those that are best."""

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        if len(frontier) > 1:
            axes.step(*zip(*frontier, strict=True), where="post", color=QUIET, linewidth=1,
                      linestyle=(0, (4, 3)))  # fmt: skip
        for one in series:
            axes.plot(*one.points[0], one.marker, color=one.colour, markersize=9,
                      markeredgewidth=0, label=_short(one.name))  # fmt: skip
        axes.margins(0.12)
        _name_axes(axes, axes_names)
        _legend(figure, len(series))

    return _plot(title, caption, draw, lambda narrow: 3.0)


def _plot(
    title: str, caption: str, draw: Callable[[Any], None], height: Callable[[bool], float]
) -> Plot:
    texts = {name: _svg(title, draw, width, height(name == "narrow")) for name, width in
             WIDTHS.items()}  # fmt: skip
    return Plot(title, caption, **texts)


def _svg(title: str, draw: Callable[[Any], None], width: float, height: float) -> str:
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
    """Return a number of an axis, whole: matplotlib would put a common factor at its end."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:.6g}"


@contextmanager
def _matplotlib() -> Iterator[Any]:
    """Yield matplotlib with our style; letters that its font lacks are drawn by the browser's."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context(dict(STYLE)):
        warnings.simplefilter("ignore", UserWarning)
        yield matplotlib


LEFT_OUT = re.compile(
    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style[^>]*>.*?</style>\s*</defs>"
    r"| xmlns(:xlink)?=\"[^\"]*\"|font-family: [^;\"]*; |(?<=\n)\s+",
    re.S,
)
"""What a drawing that stands in a page does without: headers, comments, fonts."""


def _for_page(svg: str, title: str) -> str:
    """Return a drawing as a part of a page: small, and in the page's colours.

    Its ids are hashes of the plot's title and width, and stay where they are referred to.
    """
    svg = LEFT_OUT.sub("", svg).replace("xlink:href", "href")
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', rest))
    rest = re.sub(r' id="([^"]*)"', lambda one: one[0] if one[1] in used else "", rest)
    rest = re.sub(r"#[bc]0000\d", lambda one: _COLOURS_OF_PAGE.get(one[0], one[0]), rest)
    return f'<svg role="img" aria-label="{_attribute(title)}" {box[0] if box else ""}>{rest}'


def _attribute(text: str) -> str:
    from markupsafe import escape

    return str(escape(plain(text)))


def _name_axes(axes: Any, names: tuple[str, str]) -> None:
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])


def _legend(figure: Any, entries: int) -> None:
    columns = max(1, min(entries, round(figure.get_figwidth() / 1.7)))
    figure.legend(loc="outside lower left", ncols=columns, fontsize=9, handlelength=1.6)


def _short(name: str) -> str:
    """Return a name that a plot has room for."""
    shown = plain(name)
    return shown if len(shown) <= LABEL_LETTERS else f"{shown[: LABEL_LETTERS - 1]}…"


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the points of least x for their y: none is both left of and above them."""
    best: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if math.isfinite(x) and (not best or y > best[-1][1]):
            best.append((x, y))
    return best
