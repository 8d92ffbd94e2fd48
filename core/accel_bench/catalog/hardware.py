"""Table of devices by name, with their peak FLOP/s and memory bandwidth."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from accel_bench.documents.base import Frozen, PositiveInt
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import find_presets
from accel_bench.documents.validate import validate
from accel_bench.errors import HardwareError, did_you_mean
from accel_bench.scenario.settings import device_words

PeakDtype = Literal["bf16", "fp16", "fp8", "tf32", "fp32"]
"""Dtypes with a column in the table of peak FLOP/s."""

DTYPES: dict[PeakDtype, tuple[str, ...]] = {
    "bf16": ("bfloat16", "bf16"),
    "fp16": ("float16", "half", "fp16"),
    "fp8": ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "fp8"),
    "tf32": ("tf32",),
    "fp32": ("float32", "float", "fp32"),
}
"""Names of dtypes, torch's and the table's own, by column."""


class PeakFlops(Frozen):
    """Dense peak FLOP/s of matrix products, by the dtype of the operands. A multiplication and an
    addition are two operations; sums are accumulated in fp32, as by torch. A peak is null for a
    device without hardware units for the dtype."""

    bf16: float | None = Field(gt=0)
    """Peak for operands in bfloat16."""

    fp16: float | None = Field(gt=0)
    """Peak for operands in float16."""

    fp8: float | None = Field(gt=0)
    """Peak for operands in an 8-bit floating-point format."""

    tf32: float | None = Field(gt=0)
    """Peak for operands in float32 that the device rounds to tf32."""

    fp32: float | None = Field(gt=0)
    """Peak for operands in float32 without rounding."""


class Hardware(Frozen):
    """Device of the shipped table: `sample_configurations/hardware/<name>.yaml`."""

    description: str = Field(min_length=1)
    """Description of the device, in a sentence."""

    vendor: Literal["nvidia", "amd"]
    """Manufacturer of the device."""

    names: tuple[str, ...] = Field(min_length=1)
    """Regular expressions of torch's names for the device: the whole name, in any case."""

    also_called: tuple[str, ...] = ()
    """Names in price catalogs; several devices can share a name."""

    memory_bytes: PositiveInt
    """Memory in bytes: the gigabytes of data sheets are powers of 1024."""

    memory_bandwidth_bytes_per_second: float = Field(gt=0)
    """Peak memory bandwidth, in bytes per second."""

    peak_flops: PeakFlops
    """Peak FLOP/s by dtype."""

    source: str = Field(min_length=1)
    """Address or title of the publication of the figures."""

    date: str = Field(pattern=r"^\d{4}-\d{2}$")
    """Year and month of that publication."""

    note: str = ""
    """Caveats on the figures."""

    @field_validator("names")
    @classmethod
    def _expressions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            try:
                re.compile(name)
            except re.error as error:
                raise ValueError(f"{name!r} is no regular expression: {error}") from error
        return names

    def fits(self, device_name: str) -> bool:
        """Return whether `device_name` is a name that torch uses for this device."""
        name = " ".join(device_name.split())
        return any(re.fullmatch(pattern, name, re.IGNORECASE) for pattern in self.names)

    def is_called(self, name: str) -> bool:
        """Return whether `name` is a price catalog's name for this device, in any spelling."""
        return device_words(name) in map(device_words, self.also_called)

    def peak(self, dtype: str, matmul_precision: str = "highest") -> float | None:
        """Return the peak FLOP/s for operands of a dtype, or None if the table has none. `dtype`
        and `matmul_precision` are as for `peak_flops`."""
        name = dtype.removeprefix("torch.")
        column = next((column for column, names in DTYPES.items() if name in names), None)
        if column is None:
            return None
        rounded = column == "fp32" and self.vendor == "nvidia" and matmul_precision != "highest"
        if rounded and self.peak_flops.tf32 is not None:
            return self.peak_flops.tf32
        peak: float | None = getattr(self.peak_flops, column)
        return peak


class NamedHardware(NamedTuple):
    """Device of the hardware table, with its short name, which is the name of its file."""

    name: str
    hardware: Hardware


@cache
def list_hardware() -> dict[str, Hardware]:
    """Return all devices of the table by short name, also from the files of plugins. Raises
    HardwareError for a wrong file, with file, line and key, or ScenarioError for invalid YAML."""
    devices = {}
    for name, path in sorted(find_presets("hardware").items()):
        document = load_file(path)
        devices[name] = validate(Hardware, document.data, document.where, HardwareError)
    return devices


def find_hardware(device_name: str) -> NamedHardware | None:
    """Return the device with this torch, NVML or short name; None if no device or several match.
    The table has no entry for a part of a device (MIG), a variant with other clocks, or a name
    that two products share."""
    table = list_hardware()
    fitting = [name for name, row in table.items() if name == device_name or row.fits(device_name)]
    return NamedHardware(fitting[0], table[fitting[0]]) if len(fitting) == 1 else None


def named_hardware(name: str) -> NamedHardware:
    """Return the device with a short name, torch's name or a price catalog's name.

    Raises HardwareError for a name of no device or of several.
    """
    devices = next(filter(None, _meanings(name)), None) or devices_called(name)
    if len(devices) > 1:
        raise HardwareError(f"{name!r} is a name of several devices: {', '.join(sorted(devices))}")
    return NamedHardware(*devices.popitem())


def devices_called(name: str) -> dict[str, Hardware]:
    """Return the devices that `name` may mean, by short name.

    A device's short name or torch's name means devices with exactly that name. Any other name means
    all devices with that name in price catalogs, and all whose short names contain its words.
    Raises HardwareError for an unknown name.
    """
    short, torch, catalog, words = _meanings(name)
    if devices := short or torch or {**catalog, **words}:
        return dict(sorted(devices.items()))
    near = did_you_mean(name.lower(), _relatives(name, list_hardware()))
    raise HardwareError(
        f"{name!r} fits no device of the table (`accel-bench catalog devices`), so that its peak "
        f"FLOP/s and MFU are unknown{near}; a plugin can bring sample_configurations/hardware/"
        "NAME.yaml"
    )


def _meanings(name: str) -> list[dict[str, Hardware]]:
    """Return four dicts of devices by short name: those with the short name `name`, those with this
    name in torch, those with this name in price catalogs, those whose short name has its words."""
    words = {*device_words(name)}
    tests: tuple[Callable[[str, Hardware], bool], ...] = (
        lambda short, _: short == name.lower(),
        lambda _, hardware: hardware.fits(name),
        lambda _, hardware: hardware.is_called(name),
        lambda short, _: bool(words) and words <= {*device_words(short)},
    )
    table = list_hardware().items()
    return [
        {short: hardware for short, hardware in table if test(short, hardware)} for test in tests
    ]


def _relatives(name: str, table: Mapping[str, Hardware]) -> list[str]:
    """Return known names to suggest for the unknown `name`: the nearest name in price catalogs, or
    else the short names in `table` that contain a word of `name` with a digit, or else all short
    names."""
    aliases = {alias.lower() for hardware in table.values() for alias in hardware.also_called}
    if near := get_close_matches(name.lower(), aliases - {*table}, n=1, cutoff=0.9):
        return near
    words = [word for word in name.lower().split() if any(char.isdigit() for char in word)]
    return [short for short in table if any(word in short for word in words)] or list(table)


def peak_flops(device_name: str, dtype: str, matmul_precision: str = "highest") -> float | None:
    """Return the dense peak of a device in FLOP/s for operands of a dtype, or None if unknown.

    `dtype` is torch's name (`bfloat16`) or the table's (`bf16`). Unless `matmul_precision`, a
    setting of torch, is `highest`, float32 operands are rounded to tf32 on NVIDIA devices that have
    tf32. The result is None for a device without the dtype, never a default.
    """
    named = find_hardware(device_name)
    return named.hardware.peak(dtype, matmul_precision) if named else None
