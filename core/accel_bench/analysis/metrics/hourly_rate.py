"""Price of a machine per hour, and the number of machines needed for a number of devices."""

from __future__ import annotations

import math
from typing import Literal

from accel_bench.analysis.wording import count
from accel_bench.documents.base import Frozen


class HourlyRate(Frozen):
    """Price of an instance per hour."""

    usd_per_hour: float
    """US dollars per hour of one instance."""

    kind: Literal["given", "on demand", "spot"]
    """Kind of the price: given on the command line, or by a kind of the price table."""

    instance: str | None = None
    """Instance type; null for a price given by the user."""

    provider: str | None = None
    """Name of the provider."""

    region: str | None = None
    """Region of the price."""

    device: str | None = None
    """Name of the instance's accelerator."""

    devices: int | None = None
    """Number of accelerators per instance; null for a price given by the user."""

    source: str = "given on the command line"
    """Source of the price."""

    date: str | None = None
    """Day on which the price was valid; null for a price given by the user."""

    age_days: int | None = None
    """Age of the price in days."""

    stale: bool = False
    """True if the price is more than 90 days old."""

    @property
    def note(self) -> str:
        """Description of the price, with source and age."""
        what = " ".join(filter(None, (self.provider, self.instance, self.region)))
        dated = f", {self.date}" if self.date else ""
        stale = f" STALE: {count(self.age_days or 0, 'day')} old" if self.stale else ""
        named = f", {what}, {self.kind}" if what else ""
        return f"price: {self.usd_per_hour:g} USD per hour{named} ({self.source}{dated}){stale}"

    @property
    def warning(self) -> str:
        """Warning of an old price, with the source of newer prices; empty for a recent price."""
        return (
            f"warning: the price is {count(self.age_days or 0, 'day')} old ({self.date}); "
            "`accel-bench catalog prices import` brings newer ones, --price gives one"
            if self.stale
            else ""
        )


def instances_needed(devices: int, nodes: int, devices_per_instance: int | None) -> int:
    """Return the number of machines that hold the given devices; some devices may stay idle.

    If the number of devices per machine is unknown, each node counts as one machine.
    """
    if devices_per_instance is None:
        return nodes
    return max(nodes, math.ceil(devices / devices_per_instance))
