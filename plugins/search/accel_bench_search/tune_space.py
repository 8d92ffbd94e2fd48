"""What is tuned: a key with a range or a list of values, as `--vary KEY=SPEC` gives it."""

from __future__ import annotations

import math
from typing import NamedTuple

from accel_bench.documents.base import JsonValue
from accel_bench.documents.load import parse_value
from accel_bench.errors import ScenarioError

LOG = ":log"


class Axis(NamedTuple):
    """A key and its values: `choices`, or all from `low` to `high`."""

    key: str
    low: float = 0
    high: float = 0
    log: bool = False
    choices: tuple[JsonValue, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the range is one of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[JsonValue, JsonValue]:
        """The first and the last value."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.low, self.high)

    def holds(self, value: JsonValue) -> bool:
        """Return whether a value is one of it."""
        if self.choices:
            return any(value == one and type(value) is type(one) for one in self.choices)
        number = isinstance(value, int if self.whole else int | float)
        return number and not isinstance(value, bool) and self.low <= value <= self.high  # type: ignore[operator]


def parse_axis(text: str) -> Axis:
    """Parse `KEY=1..64`, `KEY=1e-5..1e-1:log` or `KEY=a,b,c`. Raises ScenarioError."""
    key, equals, spec = (part.strip() for part in text.partition("="))
    if not key or not equals or not spec:
        raise ScenarioError(
            f"--vary {text}: expected KEY=SPEC, such as train.learning_rate=1e-5..1e-2:log, "
            "train.micro_batch_size=1..64 or model.attention=sdpa,eager"
        )
    where = f"--vary {key}"
    if ".." not in spec:
        values = tuple(parse_value(one.strip(), where) for one in spec.split(","))
        if not all(isinstance(one, str | int | float | bool) or one is None for one in values):
            raise ScenarioError(f"{where}: {spec}: each of the values is a number, a text or null")
        return Axis(key, choices=values)
    log = spec.endswith(LOG)
    low, high = (_number(end, where) for end in spec.removesuffix(LOG).split("..", 1))
    if low >= high or (log and low <= 0):
        above = " above 0" if log else ""
        raise ScenarioError(f"{where}: {spec} is no range{above} from a smaller to a larger number")
    return Axis(key, low, high, log)


def _number(text: str, where: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ScenarioError(f"{where}: {text!r} is no number")
    return number
