"""Columns of the tables of devices, models, stacks and scenarios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accel_bench.analysis.wording import flops, parameters, rate, size
from accel_bench.errors import install_command
from accel_bench.report.table import Column, entry, text_of

PEAKS = ("bf16", "fp16", "fp8", "tf32", "fp32")
"""Dtypes whose peak FLOP/s are listed for a device."""


def figure_of_device(key: str, value: Any) -> str:
    """Return the value of a device's property as text: `312 TFLOP/s`, `80.0 GiB`, `2,039 GB/s`.

    `key` names the property, such as `memory_bytes` or `peak_flops.bf16`.
    """
    forms: dict[str, Callable[[Any], str]] = {
        "memory_bytes": size,
        "memory_bandwidth_bytes_per_second": lambda value: f"{_billions(value)} GB/s",
        **{f"peak_flops.{name}": lambda value: f"{flops(value)}/s" for name in PEAKS},
    }
    return text_of(value) if value is None else forms.get(key, text_of)(value)


def _billions(value: float) -> str:
    return rate(value / 1e9)


def _peak(value: float) -> str:
    return rate(value / 1e12)


def _uses(row: Mapping[str, Any]) -> list[str]:
    return [*row["uses"], *row["set"]]


def _needs(row: Mapping[str, Any]) -> list[str]:
    missing = install_command(row["extra"]) if row["extra"] else "a plugin that is not installed"
    return [*row["needs"], *([] if row["installed"] else [missing])]


HARDWARE = (
    entry("name", kind="word"),
    *(
        entry(name, unit="TFLOP/s", form=_peak, kind="number", rank=rank)
        for name, rank in zip(PEAKS, (0, 0, 0, 2, 3), strict=True)
    ),
    entry("memory_bytes", "memory", form=size, kind="number"),
    entry(
        "memory_bandwidth_bytes_per_second",
        "bandwidth",
        unit="GB/s",
        form=_billions,
        kind="number",
        rank=1,
    ),
    entry("date", kind="word", rank=4),
)
"""Columns of the table of devices."""

MODELS = (
    entry("name", kind="word"),
    entry("family", kind="word", rank=3),
    entry("task", kind="word", rank=1),
    entry("architecture", kind="word", rank=2),
    entry("parameters", form=parameters, kind="number"),
    entry("description"),
)
"""Columns of the table of models."""

STACKS = (
    entry("name", kind="name"),
    entry("description"),
    Column("uses", _uses),
    Column("needs", _needs),
)
"""Columns of the table of named stacks."""

SCENARIOS = (
    entry("name", kind="word"),
    entry("slow", form=lambda slow: "slow" if slow else "-", kind="word", rank=2),
    entry("needs", rank=1),
    entry("stacks", form=", ".join, rank=3),
    entry("description"),
)
"""Columns of scenarios."""
