"""Wording of numbers, names and verdicts in sentences, tables and reasons."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import ONE_SIDED_ALPHA, Finding
from accel_bench.documents.base import JsonValue
from accel_bench.result import EARLIEST, Status
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Stack
from accel_bench.scenario.sweep import is_chosen

JUDGED = f"[{100 * (1 - 2 * ONE_SIDED_ALPHA):g} % interval]"
"""Unit of ratios with a verdict; all stacks and looks together share the error rate."""

WITHIN = "within what"
"""Beginning of the words for a difference that a plugin declares."""

FAR_OFF = 100
"""Factor of a ratio beyond which an interval's end is shown as `>100` or `<0.01`."""

Tone: TypeAlias = Literal["good", "warn", "bad", "quiet", ""]

TONES: Mapping[str, Tone] = {
    **dict.fromkeys(("faster", "better", "passed", "equivalent", "bitwise equal"), "good"),
    **dict.fromkeys(("inconclusive", "not tested", "not comparable", WITHIN), "warn"),
    **dict.fromkeys(("degraded", "unfinished"), "warn"),
    **dict.fromkeys(("slower", "worse", "regression", "different", "by design", "corrupt"), "bad"),
    **dict.fromkeys(("different training", "different output"), "bad"),
    **{status.value: "bad" for status in Status if not status.completed},
    "skipped": "quiet",
    **dict.fromkeys(("baseline", "same"), ""),
}
"""Tone of verdicts, outcomes and statuses in terminals and on pages."""


def percent(fraction: float) -> str:
    """Return a fraction as a percentage with three digits: `5.2 %` for 0.052."""
    value = 100 * fraction
    return f"{value:,.0f} %" if abs(value) >= 100 else f"{value:.3g} %"


def shares(parts: Mapping[str, float], whole: float) -> str:
    """Return shares of `whole` as percents that sum to 100: `forward 33 %, other 67 %`.

    The rest of the whole is `other`; the largest remainders are rounded up.
    """
    named = {**parts, "other": max(0.0, whole - sum(parts.values()))}
    total = sum(named.values())
    exact = {name: 100 * part / total for name, part in named.items()} if total else {}
    whole_ones = {name: int(value) for name, value in exact.items()}
    missing = round(100 - sum(whole_ones.values())) if exact else 0
    for name in sorted(exact, key=lambda name: whole_ones[name] - exact[name])[:missing]:
        whole_ones[name] += 1
    shown = {name: value for name, value in whole_ones.items() if value or name in parts}
    return ", ".join(f"{name} {value} %" for name, value in shown.items())


def plain_value(value: JsonValue) -> str:
    """Return a setting's value as text: a string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def settings(values: Mapping[str, JsonValue]) -> str:
    """Return settings as text: `key=value, key=value`."""
    return ", ".join(f"{key}={plain_value(value)}" for key, value in values.items())


def assignments(changed: Mapping[str, JsonValue]) -> list[str]:
    """Return settings as arguments of the command line: `--set`, `key=value` for each."""
    words: list[str] = []
    for key, value in changed.items():
        text = value if isinstance(value, str) else json.dumps(value)
        words += ["--set", f"{key}={text}"]
    return words


class SweepPoint(Protocol):
    """Interface of objects of one sweep point, such as a run: they have the swept values."""

    @property
    def sweep(self) -> Mapping[str, JsonValue]:
        """Swept values, by dotted key."""

    @property
    def tag(self) -> str:
        """Tag of the sweep point; empty without one."""


class AtPoint(SweepPoint, Protocol):
    """Interface of objects with a stack at a sweep point, such as rows of a document."""

    @property
    def stack(self) -> str:
        """Name of the stack."""


class StackAtPoint(NamedTuple):
    """Stack at a sweep point, for labels without a row."""

    stack: str
    sweep: Mapping[str, JsonValue]
    tag: str
    apart: Mapping[str, JsonValue] = MappingProxyType({})


def point_name(point: SweepPoint) -> str:
    """Return the name of a sweep point: the tag if the scenario chose it, else the swept values."""
    return point.tag if is_chosen(point.tag, point.sweep) else settings(point.sweep)


def label(row: AtPoint) -> str:
    """Return the label of a stack, with its sweep point if it has one.

    The settings in a row's `apart` are added, which distinguish it from rows of equal names.
    """
    names = [point_name(row)] if row.sweep else []
    names += [settings(apart)] if (apart := getattr(row, "apart", None)) else []
    return f"{row.stack} ({', '.join(names)})" if names else row.stack


def group_label(stack: str, shared: Mapping[str, JsonValue]) -> str:
    """Return the label of a stack over several sweep points, with the swept values they share."""
    return label(StackAtPoint(stack, shared, ""))


def label_of(experiment: Experiment, apart: Mapping[str, JsonValue] | None = None) -> str:
    """Return the label of an experiment, with the distinguishing settings `apart`."""
    name = experiment.stack.name
    return label(StackAtPoint(name, experiment.sweep, experiment.tag, apart or {}))


def differs(stack: Stack) -> str:
    """Return the plugins and settings of a stack: `name(option=value), key=value`."""
    uses = [f"{use.use}({settings(use.options)})" if use.options else use.use for use in stack.uses]
    changed = [settings(stack.settings)] if stack.settings else []
    return ", ".join([*uses, *changed]) or "as the scenario says"


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Return names as `a, b and c`; names beyond `most` are only counted."""
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def grouped_by_reason(reasons: Sequence[tuple[str, str]]) -> list[str]:
    """Return texts `a and b: reason` from pairs of name and reason, one for each reason."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    return [f"{join_names(same)}: {reason}" for reason, same in names.items()]


def with_reason(verdict: str, reason: str) -> str:
    """Return a verdict with its reason: `verdict (reason)`, or the verdict alone without one."""
    return f"{verdict} ({reason})" if reason else verdict


def finding_words(
    holds: str, fails: str, unsure: str = "inconclusive", untested: str = "not tested"
) -> dict[Finding, str]:
    """Return the given word for each verdict on a statement, such as `fits` for `holds`."""
    return {"holds": holds, "inconclusive": unsure, "does not hold": fails, "not tested": untested}


def training_word(verdict: str, declared_by: Sequence[str]) -> str:
    """Return a training verdict in words: `within what NAME declares` for declared differences."""
    if verdict != "different by design" or not declared_by:
        return verdict
    declare = "declares" if len(declared_by) == 1 else "declare"
    return f"{WITHIN} {join_names(declared_by)} {declare}"


def alike_words(verdicts: Mapping[str, str]) -> list[str]:
    """Return one text like `with a bitwise equal loss and update`; none if nothing is equal."""
    phrases: list[str] = []
    for word, article in (("bitwise equal", "a"), ("equivalent", "an")):
        if named := [what for what, verdict in verdicts.items() if verdict == word]:
            phrases.append(f"{article} {word} {' and '.join(named)}")
    return [f"with {' and '.join(phrases)}"] if phrases else []


def count(number: int, what: str) -> str:
    """Return a number with its noun: `1 run` or `5 runs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def significant(value: float, digits: int) -> str:
    """Return a value with the given number of significant digits, trailing zeros included."""
    return f"{value:#.{digits}g}".removesuffix(".")


def figure_text(value: float) -> str:
    """Return a figure as text with four significant digits, or as a large integer."""
    return significant(value, 4) if abs(value) < 1e4 else f"{value:,.0f}"


def ratio(value: float) -> str:
    """Return a speed-up as text, precise to half a percent; from a million on as `2e+08`."""
    return f"{value:.3f}" if value < 100 else f"{value:,.0f}" if value < 1e6 else f"{value:.0e}"


def ratio_texts(speed_up: Interval) -> tuple[str, ...]:
    """Return median, low and high as texts, with digits that suit the interval's width.

    Without an interval, it is the median alone. Ends beyond a factor of 100 are `<0.01` or `>100`.
    """
    median, low, high = speed_up.median, speed_up.low, speed_up.high
    if low is None or high is None:
        return (f"{median:.2f}",)
    digits = 3 if high - low < 0.04 else 2 if median < 100 else 0
    least, most = median / FAR_OFF, median * FAR_OFF
    return (
        f"{median:,.{digits}f}",
        f"{low:,.{digits}f}" if low >= least else f"<{least:.1g}",
        f"{high:,.{digits}f}" if high <= most else f">{most:,.0f}",
    )


def ratio_interval(speed_up: Interval) -> str:
    """Return a speed-up with its interval: `2.41 [2.10, 2.70]`."""
    median, *ends = ratio_texts(speed_up)
    return f"{median} [{', '.join(ends)}]" if ends else median


def rate(value: float) -> str:
    """Return tokens per second as text: an integer, or three digits below 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rate_unit(counts: Iterable[str], unit: str = "tokens/s") -> str:
    """Return the unit of a rate for the counted elements: `tokens/s`, `images/s`, `calls/s`."""
    units = {unit.replace("tokens", noun): None for noun in sorted({*counts}, reverse=True)}
    return " or ".join(units) or unit


def rate_interval(speed: Interval) -> str:
    """Return tokens per second with the larger half of the 95 % interval: `10,503 ±6 %`."""
    return with_spread(speed, rate)


def with_spread(interval: Interval, form: Callable[[float], str]) -> str:
    """Return an estimate, as text by `form`, with the larger half of its interval: `0.402 ±6 %`.

    A half that reaches the estimate itself is `±>100 %`.
    """
    if interval.low is None or interval.high is None or interval.median == 0:
        return form(interval.median)
    if too_wide(interval):
        return f"{form(interval.median)} ±>100 %"
    half = 100 * max(interval.high / interval.median - 1, 1 - interval.low / interval.median)
    return f"{form(interval.median)} ±{half:{',.0f' if half >= 1 else '.1g'}} %"


def too_wide(interval: Interval) -> bool:
    """Return whether an interval reaches twice its estimate, so that it is not informative."""
    return interval.high is not None and interval.high >= 2 * interval.median


def usd(value: float) -> str:
    """Return US dollars as text, with cents from 100 dollars on and with four digits below."""
    return f"{value:,.2f}" if value >= 100 else f"{value:.4g}"


def interval_text(interval: Interval, form: Callable[[float], str]) -> str:
    """Return an interval with ends as text by `form`: `95 % interval 1.300 to 1.340`."""
    if interval.low is None or interval.high is None:
        return "no interval"
    return f"{confidence(interval)} interval {form(interval.low)} to {form(interval.high)}"


def confidence(interval: Interval) -> str:
    """Return the confidence of an interval as text, such as `99.5 %`."""
    error = float(f"{100 * (1 - interval.confidence):.2g}")
    return f"{100 - error:.8g} %"


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with three digits or more: `81.2`."""
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else significant(value, 3)


def time_text(time: str) -> str:
    """Return an ISO 8601 time as text: `2026-11-22 13:18`."""
    return "time not recorded" if time == EARLIEST else time[:16].replace("T", " ")


def mebibytes(size: float) -> str:
    """Return bytes as MiB: `1,234`, below 100 with one decimal."""
    value = size / 2**20
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def size(value: float) -> str:
    """Return bytes with a unit and three digits or more: `696 GiB`, `20.1 MiB`, `512 bytes`."""
    if value < 2**10:
        return f"{value:,.0f} bytes"
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    factor, unit = next(pair for pair in units if value >= pair[0])
    scaled = value / factor
    return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{significant(scaled, 3)} {unit}"


def flops(value: float) -> str:
    """Return FLOPs with a prefix and three digits: `46.1 GFLOP`."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{significant(value / factor, 3)} {prefix}FLOP"
    return f"{value:,.0f} FLOP"


def parameters(number: float) -> str:
    """Return a number of parameters with three digits or more: `8.03 B`, `124 M`, `26,474`."""
    for factor, unit in ((1e9, "B"), (1e6, "M")):
        if number >= factor:
            return f"{rate(number / factor)} {unit}"
    return f"{number:,.0f}"


def duration(seconds: float) -> str:
    """Return seconds as text: `45 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
