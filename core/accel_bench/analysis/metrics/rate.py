"""The price of a machine by the hour, and the job that it is paid for."""

from __future__ import annotations

from typing import Literal

from accel_bench.analysis.wording import count
from accel_bench.documents.base import Frozen


class HourlyRate(Frozen):
    """The price that costs are worked out with."""

    usd_per_hour: float
    """US dollars for an hour of one instance."""

    kind: Literal["given", "on demand", "spot"]
    """Kind of the price: given on the command line, or one of a table's."""

    instance: str | None = None
    """Kind of machine; null for a price that was given."""

    provider: str | None = None
    """Who rents it out."""

    region: str | None = None
    """Region in which the price holds."""

    device: str | None = None
    """Its accelerator."""

    devices: int | None = None
    """Accelerators in one instance; null for a price that was given."""

    source: str = "given on the command line"
    """Source of the price."""

    date: str | None = None
    """Day on which it was the price; null for a price that was given."""

    age_days: int | None = None
    """Days since then."""

    stale: bool = False
    """True if it is more than 90 days old."""

    @property
    def note(self) -> str:
        """The price in words, with where it comes from and its age."""
        what = " ".join(filter(None, (self.provider, self.instance, self.region)))
        dated = f", {self.date}" if self.date else ""
        stale = f" STALE: {count(self.age_days or 0, 'day')} old" if self.stale else ""
        named = f", {what}, {self.kind}" if what else ""
        return f"price: {self.usd_per_hour:g} USD per hour{named} ({self.source}{dated}){stale}"


class Terms(Frozen):
    """What hours and money are worked out with."""

    rate: HourlyRate | None = None
    """Price of a machine; without one there is no money."""

    tokens: float | None = None
    """Real tokens of the job; without them there are no hours."""

    instances: int | None = None
    """Machines, where that is known better than from the devices."""
