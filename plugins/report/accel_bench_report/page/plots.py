"""Plots as static SVG drawn by matplotlib, in the colours of the page around it.

Static drawings need no script, print as they look, and take kilobytes, not a library's megabytes. A
plot is drawn twice, for wide and narrow pages: scaled text is unreadable.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from accel_bench.documents.escaping import plain
from accel_bench_report.page.plot_svg import COLOURS, INK, QUIET, draw_svg, show_on_hover

MISSING = "plots are left out: matplotlib is not installed (pip install 'accel-bench[report]')"
"""Note on a page without plots."""

MARKERS = "osD^vPXd"
"""Marker shapes; the next one is used each time the colours repeat."""

MOST_POINTS = 600
"""Maximum number of drawn points of a series: first, last, and evenly spaced ones between."""

MOST_HOVERED = 40
"""Maximum number of points of a line that have a tooltip."""

NAME_LETTERS = 72
"""Maximum number of drawn characters of a name; longer names lose their middle."""

LABEL_LETTERS = {"wide": 26, "narrow": 15}
"""Maximum number of characters in a line of a name next to its strip."""

WIDTHS = {"wide": 8.9, "narrow": 3.5}
"""Widths of drawings in inches (96 pixels); the page scales them to its own width."""

LETTER, TEXT_LINE = 0.078, 0.16
"""Width of a character, and height of a line of text, in inches."""

HANDLE = 0.6
"""Width of the legend handle with its gap, in inches."""

TICK = 0.65
"""Width of one number of the horizontal axis, in inches."""

TICKS = range(3, 11)
"""Allowed counts of numbers on the horizontal axis."""

Point = tuple[float, float]


class Series(NamedTuple):
    """Points of one stack in a plot."""

    name: str

    number: int
    """Index of the stack on the page, which gives its colour and marker."""

    points: Sequence[Point]

    band: tuple[float, float, float] | None = None
    """Estimate with the lower and upper end of its interval."""

    shape: int = 0
    """Offset of the marker, for stacks with several series."""

    @property
    def colour(self) -> str:
        """Placeholder colour of the series."""
        return f"#c0000{self.number % COLOURS}"

    @property
    def marker(self) -> str:
        """Marker shape of the series."""
        return MARKERS[(self.number // COLOURS + self.shape) % len(MARKERS)]


class Plot(NamedTuple):
    """A plot as SVG, in a wide and a narrow version."""

    title: str
    caption: str
    wide: str
    narrow: str


def plots_available() -> bool:
    """Return whether matplotlib is installed, without importing it."""
    return find_spec("matplotlib") is not None


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """Return at most `most` points: the first, the last, and evenly spaced ones between."""
    if len(points) <= most:
        return points
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


def strips(
    title: str, caption: str, series: Sequence[Series], axis: str, line: float | None = None
) -> Plot:
    """Return a plot with a horizontal strip for each series: values as dots, the interval as a bar.

    `axis` is the label of the horizontal axis; `line` is a reference value drawn across all strips.
    """
    names = {
        width: [_lines(strip.name, letters) for strip in reversed(series)]
        for width, letters in LABEL_LETTERS.items()
    }

    def draw(figure: Any, width: str) -> None:
        axes = figure.add_subplot()
        for place, strip in enumerate(reversed(series)):
            _strip(axes, place, strip, axis)
        if line is not None:
            axes.axvline(line, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(series)), ["\n".join(lines) for lines in names[width]])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(-0.6, len(series) - 0.35)
        axes.grid(axis="y", visible=False)
        _name_axes(axes, (axis, ""), WIDTHS[width] - LETTER * LABEL_LETTERS[width])

    def height(width: str) -> float:
        most = max(map(len, names[width]), default=1)
        return 0.75 + max(0.5, TEXT_LINE * (most + 1)) * len(series)

    return _plot(title, caption, draw, height)


def _strip(axes: Any, place: int, one: Series, axis: str) -> None:
    name = _shortened(one.name)
    values = [value for value, _ in thinned(one.points)]
    spread = [place + 0.16 + 0.1 * (number % 2) for number in range(len(values))]
    (dots,) = axes.plot(values, spread, one.marker, color=one.colour, markersize=4, alpha=0.55,
                        markeredgewidth=0)  # fmt: skip
    show_on_hover(dots, name, [f"{name}: {_value(value)} {axis}" for value in values])
    if one.band:
        middle, low, high = one.band
        (bar,) = axes.plot([low, high], [place, place], color=one.colour, linewidth=3.2, alpha=0.9)
        (mark,) = axes.plot([middle], [place], "|", color=INK, markersize=11, markeredgewidth=2)
        interval = f"interval {_value(low)} to {_value(high)}"
        for artist in (bar, mark):
            show_on_hover(artist, f"{name}: {_value(middle)} {axis}, {interval}")


def curves(
    title: str,
    caption: str,
    series: Sequence[Series],
    axes_names: tuple[str, str],
    dots: bool = False,
) -> Plot:
    """Return a plot with a line for each series, and with `dots` a dot for each point.

    `axes_names` are the names of the horizontal and the vertical axis.
    """

    def draw(figure: Any, width: str) -> None:
        axes = figure.add_subplot()
        # The first one, whose line is solid, comes first: dashes over it leave it visible.
        for curve in sorted(series, key=lambda curve: curve.number):
            x, y = zip(*thinned(curve.points), strict=True)
            style = curve.number + curve.shape
            gaps = style % 3 + 1
            dashes = (0, (2 * gaps, gaps)) if style else "solid"
            (drawn,) = axes.plot(
                x, y, curve.marker if dots else "", color=curve.colour, linewidth=1.7,
                linestyle=dashes, markersize=5, markeredgewidth=0, label=_label(curve),
            )  # fmt: skip
            show_on_hover(drawn, _shortened(curve.name))
        _hovered(axes, series, axes_names)
        whole = all(float(x).is_integer() for curve in series for x, _ in curve.points)
        _name_axes(axes, axes_names, WIDTHS[width], whole)
        _legend(figure, series, width)

    return _plot(title, caption, draw, lambda width: 2.6 + _legend_height(series, width))


def _hovered(axes: Any, series: Sequence[Series], axes_names: tuple[str, str]) -> None:
    """Draw invisible marks with tooltips over the points of lines."""
    for curve in series:
        points = thinned(curve.points, MOST_HOVERED)
        x, y = zip(*points, strict=True)
        (marks,) = axes.plot(x, y, "o", color=curve.colour, alpha=0, markersize=8, zorder=5)
        texts = [_pair(curve, point, axes_names) for point in points]
        show_on_hover(marks, _shortened(curve.name), texts)


def dated(title: str, caption: str, series: Sequence[Series], axis: str) -> Plot:
    """Return a plot of points over time; x is in seconds since 1970, `axis` is the label of y."""

    def draw(figure: Any, width: str) -> None:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        axes = figure.add_subplot()
        for curve in series:
            points = thinned(curve.points)
            x, y = zip(*points, strict=True)
            (drawn,) = axes.plot(
                [second / 86400 for second in x], y, curve.marker, linestyle="-", linewidth=0.8,
                color=curve.colour, markersize=4, label=_label(curve),
            )  # fmt: skip
            show_on_hover(
                drawn, _shortened(curve.name), [_on_a_day(curve, *at, axis) for at in points]
            )
        _name_axes(axes, ("", axis), WIDTHS[width])
        locator = AutoDateLocator(maxticks=5)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        _legend(figure, series, width)

    return _plot(title, caption, draw, lambda width: 2.6 + _legend_height(series, width))


def scatter(
    title: str,
    caption: str,
    series: Sequence[Series],
    axes_names: tuple[str, str],
    frontier: Sequence[Point] = (),
) -> Plot:
    """Return a plot of the first point of each series with its name, and the line `frontier`.

    `axes_names` are the names of the horizontal and the vertical axis.
    """

    def draw(figure: Any, width: str) -> None:
        axes = figure.add_subplot()
        if len(frontier) > 1:
            axes.step(*zip(*frontier, strict=True), where="post", color=QUIET, linewidth=1,
                      linestyle=(0, (4, 3)))  # fmt: skip
        for stack in series:
            (mark,) = axes.plot(*stack.points[0], stack.marker, color=stack.colour, markersize=9,
                                markeredgewidth=0, label=_label(stack))  # fmt: skip
            show_on_hover(mark, _pair(stack, stack.points[0], axes_names))
        axes.margins(0.12)
        _name_axes(axes, axes_names, WIDTHS[width])
        _legend(figure, series, width)

    return _plot(title, caption, draw, lambda width: 2.6 + _legend_height(series, width))


def _plot(
    title: str, caption: str, draw: Callable[..., None], height: Callable[[str], float]
) -> Plot:
    texts = {
        name: draw_svg(title, partial(draw, width=name), inches, height(name))
        for name, inches in WIDTHS.items()
    }
    return Plot(title, caption, **texts)


def _name_axes(axes: Any, names: tuple[str, str], inches: float, whole: bool = False) -> None:
    """Label both axes with `names`, and put as many numbers on the horizontal axis as fit `inches`.

    `whole` allows whole numbers only, as for steps, devices and batch sizes.
    """
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("\n".join(_lines(names[0], round(0.8 * inches / LETTER))))
    axes.set_ylabel("\n".join(_lines(names[1], 28)))
    room = min(max(int(inches / TICK), TICKS[0]), TICKS[-1])
    steps = [1, 2, 2.5, 5, 10]
    axes.xaxis.set_major_locator(MaxNLocator(room, steps=steps, integer=whole))


def _legend(figure: Any, series: Sequence[Series], width: str) -> None:
    columns = _legend_columns(series, width)
    figure.legend(loc="outside lower left", ncols=columns, fontsize=9, handlelength=1.6)


def _legend_columns(series: Sequence[Series], width: str) -> int:
    longest = max((len(line) for curve in series for line in _label(curve).split("\n")), default=0)
    return max(1, min(len(series), int(WIDTHS[width] / (HANDLE + LETTER * longest))))


def _legend_height(series: Sequence[Series], width: str) -> float:
    """Return the height in inches of the legend below a plot; `width` is `wide` or `narrow`."""
    rows = math.ceil(len(series) / _legend_columns(series, width))
    most = max((_label(curve).count("\n") + 1 for curve in series), default=1)
    return (TEXT_LINE * most + 0.04) * rows


def _label(one: Series) -> str:
    return "\n".join(_lines(one.name, 36))


def _lines(name: str, letters: int) -> list[str]:
    """Return a name wrapped into lines of at most `letters` characters, at blanks and hyphens."""
    return textwrap.wrap(_shortened(name), letters)


def _shortened(name: str) -> str:
    """Return the name; a long one loses its middle, since its end distinguishes sweep points."""
    shown, half = plain(name), NAME_LETTERS // 2
    return shown if len(shown) <= NAME_LETTERS else f"{shown[: half - 1]}…{shown[-half:]}"


def _pair(one: Series, point: Point, names: tuple[str, str]) -> str:
    values = (f"{name} {_value(value)}" for name, value in zip(names, point, strict=True))
    return f"{_shortened(one.name)}: {', '.join(values)}"


def _on_a_day(one: Series, second: float, value: float, axis: str) -> str:
    when = datetime.fromtimestamp(second, timezone.utc)
    return f"{_shortened(one.name)}: {_value(value)} {axis}, {when:%Y-%m-%d %H:%M} UTC"


def _value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the Pareto frontier of points, for low x and high y."""
    best: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if math.isfinite(x) and (not best or y > best[-1][1]):
            best.append((x, y))
    return best
