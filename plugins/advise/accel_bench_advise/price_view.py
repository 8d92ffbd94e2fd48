"""Columns of `catalog prices`."""

from __future__ import annotations

from accel_bench.report.table import entry

PRICES = (
    entry("provider", kind="word"),
    entry("instance", kind="name"),
    entry("region", kind="word", rank=2),
    entry("device", kind="word"),
    entry("devices", kind="number"),
    entry("usd_per_hour", "price", unit="USD/hour", form="{:,.2f}".format, kind="number"),
    entry(
        "spot_usd_per_hour", "spot", unit="USD/hour", form="{:,.2f}".format, kind="number", rank=3
    ),
    entry("date", kind="word", rank=1),
    entry("stale", form=lambda stale: "stale" if stale else "-", kind="word", rank=1),
    entry("table", kind="word", rank=4),
    entry("source", rank=5),
)
"""Columns of prices."""
