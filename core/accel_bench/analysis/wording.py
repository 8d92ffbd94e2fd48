"""How numbers and names are worded, the same in sentences, tables and reasons."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import JsonValue


def percent(share: float) -> str:
    """0.052 as `5.2 %`: three digits, no exponent."""
    value = 100 * share
    return f"{value:,.0f} %" if abs(value) >= 100 else f"{value:.3g} %"


def plain_value(value: JsonValue) -> str:
    """A setting's value: text as it stands, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def settings(values: Mapping[str, JsonValue]) -> str:
    """`key=value, key=value`."""
    return ", ".join(f"{key}={plain_value(value)}" for key, value in values.items())


def label(stack: str, sweep: Mapping[str, JsonValue]) -> str:
    """A stack, with the values of its sweep point where something is swept."""
    return f"{stack} ({settings(sweep)})" if sweep else stack


def listing(names: Sequence[str], most: int = 3) -> str:
    """`a, b and c`; what is beyond `most` is counted, not named."""
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def ratio(value: float) -> str:
    """A speed-up with enough digits to see half a percent."""
    return f"{value:.3f}" if value < 100 else f"{value:,.0f}"


def rate(value: float) -> str:
    """Tokens per second: whole ones, three digits below 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def interval_text(interval: Interval, form: Callable[[float], str]) -> str:
    """`95 % interval 1.300 to 1.340`, or that there is none."""
    if interval.low is None or interval.high is None:
        return "no interval"
    return f"95 % interval {form(interval.low)} to {form(interval.high)}"


def flops(value: float) -> str:
    """`46.1 GFLOP`, with three digits and the prefix that fits."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:#.3g} {prefix}FLOP"
    return f"{value:,.0f} FLOP"
