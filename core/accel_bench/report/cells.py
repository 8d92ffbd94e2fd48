"""What stands in a cell: numbers rounded for reading, with their units in the column's header."""

from __future__ import annotations

import re
from collections.abc import Sequence

from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import percent, plain_value, rate, ratio

EMPTY = "-"
"""Stands for null: there is no number, which is not 0."""


def plain(text: str) -> str:
    """One line without control characters, so that no name can move the cursor or start a row."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def tokens_per_second(row: ExperimentSummary) -> str:
    """`12,345 ±1.2 %`: the larger half of the 95 % interval."""
    speed = row.tokens_per_second
    if speed is None:
        return EMPTY
    if speed.low is None or speed.high is None:
        return rate(speed.median)
    half = max(speed.high / speed.median - 1, 1 - speed.low / speed.median)
    return f"{rate(speed.median)} ±{percent(float(f'{half:.2g}'))}"


def speed_up(row: ExperimentSummary, baseline: str) -> str:
    """`1.250 [1.249 1.251]`; nothing in the baseline's own row."""
    return EMPTY if row.stack == baseline else interval_cell(row.ratio)


def interval_cell(speed: Interval | None) -> str:
    """`1.250 [1.249 1.251]`, with the ends of the 95 % interval."""
    if speed is None:
        return EMPTY
    if speed.low is None or speed.high is None:
        return ratio(speed.median)
    return f"{ratio(speed.median)} [{ratio(speed.low)} {ratio(speed.high)}]"


def step_milliseconds(row: ExperimentSummary) -> str:
    """`81.2/83.0`: median and 95th percentile."""
    if row.step_seconds is None:
        return EMPTY
    return f"{milliseconds(row.step_seconds.p50)}/{milliseconds(row.step_seconds.p95)}"


def peak_mebibytes(row: ExperimentSummary) -> str:
    """`1,234`."""
    if row.peak_memory_bytes is None:
        return EMPTY
    size = row.peak_memory_bytes / 2**20
    return f"{size:,.0f}" if size >= 100 else f"{size:.1f}"


def last_loss(row: ExperimentSummary) -> str:
    """`2.200`, four digits."""
    if row.loss is None or row.loss.last is None:
        return EMPTY
    return f"{row.loss.last:#.4g}"


def loss_verdict(row: ExperimentSummary, baseline: str) -> str:
    """The verdict on the loss; nothing in the baseline's own row."""
    return "" if row.stack == baseline or row.ratio is None else row.loss_verdict


def verdict(row: ExperimentSummary, baseline: str) -> str:
    """The verdict on the speed; the baseline's row says that it is the baseline."""
    if row.stack == baseline:
        return "baseline"
    return row.verdict if row.ratio else EMPTY


def folded(name: str, width: int) -> str:
    """A name in lines of at most that width, broken behind `-`, `_`, `+` and `.`."""
    lines = [""]
    for part in re.findall(r"[^-_+.]*[-_+.]+|[^-_+.]+", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def sweep_keys(summary: Summary) -> list[str]:
    """Swept keys in the order in which rows bring them."""
    return list(dict.fromkeys(key for row in summary.experiments for key in row.sweep))


def sweep_values(row: ExperimentSummary, keys: Sequence[str]) -> list[str]:
    """The row's value of each swept key."""
    return [plain(plain_value(row.sweep[key])) if key in row.sweep else EMPTY for key in keys]


def sweep_headers(keys: Sequence[str]) -> list[str]:
    """The last word of each dotted key, or the whole key where that is not enough."""
    short = [key.rpartition(".")[2] for key in keys]
    return [word if short.count(word) == 1 else key for key, word in zip(keys, short, strict=True)]


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, with three digits or more: `81.2`."""
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:#.3g}"
