"""Fields that `nvml` samples over time, named as in `nvidia-smi --help-query-gpu`.

The table has the fields that vary while a program runs. Other values are named by NVML's field
number, such as `NVML_FI_DEV_MEMORY_TEMP`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accel_bench import nvml
from accel_bench.errors import did_you_mean

OWN_NUMBER = "NVML_FI_"
"""Prefix of NVML's constants of field numbers."""

BYTES, PERCENT = "bytes", "percent"

OWN_UNIT = "nvml"
"""Unit of a value that is named by its field number; NVML's header documents the unit."""

_GRAPHICS, _SM, _MEMORY, _VIDEO = range(4)
"""NVML's numbers of clock domains: graphics, SM, memory, video."""

_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's union of values, in the order of NVML's numbers of value types."""


@dataclass(frozen=True)
class NVMLField:
    """Rule for reading a field of a device through NVML."""

    question: str
    """Suffix of NVML's function: `nvmlDevice<question>`."""

    unit: str
    arguments: tuple[int, ...] = ()

    part: str | int | None = None
    """Attribute or index in the function's result; None for the whole result."""

    factor: float = 1.0
    """Factor that converts the value to the field's unit."""

    counts: bool = False
    """True for counters and unknown kinds, whose metric is the last reading; for other fields it is
    the mean of the readings."""

    def read(self, device: nvml.NVMLDevice) -> float | None:
        """Return the present value, or None if the device or the driver lacks the field.

        Raises NoReadingError if access is denied or the device does not respond.
        """
        if self.question == "GetFieldValues":
            value = _value_of(device.ask(self.question, list(self.arguments)))
        else:
            value = device.ask(self.question, *self.arguments)
        if value is None:
            return None
        if isinstance(self.part, int):
            value = value[self.part]
        elif self.part is not None:
            value = getattr(value, self.part)
        return float(value) * self.factor


def _clocks() -> dict[str, NVMLField]:
    """Return the fields of device clocks, by nvidia-smi's long and short names."""
    kinds = (
        (_GRAPHICS, "graphics", "gr"),
        (_SM, "sm", "sm"),
        (_MEMORY, "memory", "mem"),
        (_VIDEO, "video", "video"),
    )
    fields: dict[str, NVMLField] = {}
    for number, long, short in kinds:
        present = NVMLField("GetClockInfo", "megahertz", (number,))
        fields |= {f"clocks.current.{long}": present, f"clocks.{short}": present}
        if number != _VIDEO:
            largest = NVMLField("GetMaxClockInfo", "megahertz", (number,))
            fields |= {f"clocks.max.{long}": largest, f"clocks.max.{short}": largest}
    return fields


def _milliwatts(question: str, part: int | None = None) -> NVMLField:
    return NVMLField(question, "watts", part=part, factor=0.001)


FIELDS: dict[str, NVMLField] = {
    "utilization.gpu": NVMLField("GetUtilizationRates", PERCENT, part="gpu"),
    "utilization.memory": NVMLField("GetUtilizationRates", PERCENT, part="memory"),
    "utilization.encoder": NVMLField("GetEncoderUtilization", PERCENT, part=0),
    "utilization.decoder": NVMLField("GetDecoderUtilization", PERCENT, part=0),
    "utilization.jpeg": NVMLField("GetJpgUtilization", PERCENT, part=0),
    "utilization.ofa": NVMLField("GetOfaUtilization", PERCENT, part=0),
    "memory.total": NVMLField("GetMemoryInfo", BYTES, part="total"),
    "memory.used": NVMLField("GetMemoryInfo", BYTES, part="used"),
    "memory.free": NVMLField("GetMemoryInfo", BYTES, part="free"),
    "temperature.gpu": NVMLField("GetTemperature", "celsius", (0,)),
    "temperature.memory": NVMLField("GetFieldValues", "celsius", (82,)),
    "power.draw": _milliwatts("GetPowerUsage"),
    "power.draw.average": NVMLField("GetFieldValues", "watts", (185,), factor=0.001),
    "power.draw.instant": NVMLField("GetFieldValues", "watts", (186,), factor=0.001),
    "power.limit": _milliwatts("GetPowerManagementLimit"),
    "enforced.power.limit": _milliwatts("GetEnforcedPowerLimit"),
    "power.default_limit": _milliwatts("GetPowerManagementDefaultLimit"),
    "power.min_limit": _milliwatts("GetPowerManagementLimitConstraints", 0),
    "power.max_limit": _milliwatts("GetPowerManagementLimitConstraints", 1),
    **_clocks(),
    "fan.speed": NVMLField("GetFanSpeed", PERCENT),
    "pstate": NVMLField("GetPerformanceState", "1"),
    "pcie.link.gen.gpucurrent": NVMLField("GetCurrPcieLinkGeneration", "1"),
    "pcie.link.width.current": NVMLField("GetCurrPcieLinkWidth", "1"),
    # nvidia-smi shows these two in `dmon` alone; NVML gives KB/s.
    "pcie.tx": NVMLField("GetPcieThroughput", "bytes_per_second", (0,), factor=1000.0),
    "pcie.rx": NVMLField("GetPcieThroughput", "bytes_per_second", (1,), factor=1000.0),
    "ecc.errors.corrected.volatile.total": NVMLField("GetTotalEccErrors", "1", (0, 0), counts=True),
    "ecc.errors.uncorrected.volatile.total": NVMLField(
        "GetTotalEccErrors", "1", (1, 0), counts=True
    ),
}
"""Fields by name, in the units of all metrics: bytes and bytes/s, not MiB."""


def field_of(name: str) -> NVMLField:
    """Return the rule for reading the field `name`.

    Raises ValueError for an unknown name; the error suggests a similar name.
    """
    if name in FIELDS:
        return FIELDS[name]
    numbers = _numbers() if name.upper().startswith(OWN_NUMBER) else {}
    if name in numbers:
        return NVMLField("GetFieldValues", OWN_UNIT, (numbers[name],), counts=True)
    raise ValueError(f"NVML has no field {name!r}{did_you_mean(name, numbers or FIELDS)}")


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """Return field names without repetitions.

    Raises ValueError for an unknown name.
    """
    fields = tuple(dict.fromkeys(names))
    for name in fields:
        field_of(name)
    return fields


def metric_name(name: str) -> str:
    """Return the metric name of the field `name`, which ends in the field's unit if it has one."""
    words = name.lower().replace(".", "_").removeprefix("nvml_")
    unit = field_of(name).unit
    return "_".join(("nvml", words, *(() if unit in ("1", OWN_UNIT) else (unit,))))


def shown(name: str, values: Iterable[float]) -> str:
    """Return a field's readings as text for the progress line, such as `power.draw 312 W`.

    `values` has one reading for each device; of several the text has the smallest and the largest.
    """
    word, factor, decimals = _SHOWN.get(field_of(name).unit, ("", 1.0, 0))
    least_and_most = sorted(value * factor for value in values)
    ends = (f"{value:.{decimals}f}" for value in (least_and_most[0], least_and_most[-1]))
    return f"{name} {'-'.join(dict.fromkeys(ends))} {word}".rstrip()


_SHOWN = {
    PERCENT: ("%", 1.0, 0),
    BYTES: ("GiB", 2.0**-30, 1),
    "bytes_per_second": ("GiB/s", 2.0**-30, 2),
    "watts": ("W", 1.0, 0),
    "megahertz": ("MHz", 1.0, 0),
    "celsius": ("C", 1.0, 0),
}
"""Word, factor and number of decimals with which a unit is printed."""


def _numbers() -> dict[str, int]:
    """Return NVML's field numbers by their names."""
    import pynvml

    names = (name for name in vars(pynvml) if name.startswith(OWN_NUMBER))
    return {name: getattr(pynvml, name) for name in names}


def _value_of(answers: Any) -> Any:
    """Return the value in NVML's response for one field; None if the device lacks the field."""
    if not answers or answers[0].nvmlReturn != 0:
        return None
    return getattr(answers[0].value, _VALUES[answers[0].valueType])
