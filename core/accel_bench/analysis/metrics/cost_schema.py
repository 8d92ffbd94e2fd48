"""The document that `accel-bench cost` makes: the price, and a row for each experiment."""

from __future__ import annotations

from typing import Literal

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.result import Status
from accel_bench.scenario.experiment import SCHEMA_VERSION

EXCLUDED = (
    "the measured window alone: start-up, model loading, compilation and checkpointing are not in "
    "the cost"
)
"""What every cost here leaves out."""


class HourlyRate(Frozen):
    """The price that costs are worked out with."""

    usd_per_hour: float
    """US dollars for an hour of one instance."""

    kind: Literal["given", "on demand", "spot"]
    """Whether it was given on the command line, or which of a table's prices it is."""

    instance: str | None = None
    """Kind of machine; null for a price that was given."""

    provider: str | None = None
    """Who rents it out."""

    region: str | None = None
    """Where the price holds."""

    device: str | None = None
    """Its accelerator."""

    devices: int | None = None
    """Accelerators in one instance; null for a price that was given."""

    source: str = "given on the command line"
    """Where the price was read."""

    date: str | None = None
    """Day on which it was the price; null for a price that was given."""

    age_days: int | None = None
    """Days since then."""

    stale: bool = False
    """Whether it is more than 90 days old."""


class Sensitivity(Frozen):
    """Dollars per million tokens if one of the two figures were off by a factor."""

    factor: float
    """The factor; 1 is what was measured."""

    throughput: float
    """Cost if the throughput were that many times what was measured."""

    price: float
    """Cost if the price were that many times what it is."""


class ExperimentCost(Frozen):
    """One experiment. Null where there is no completed run, never 0."""

    experiment_id: str
    """Identity of the experiment."""

    scenario: str
    """Name of the scenario."""

    stack: str
    """Name of the stack."""

    sweep: dict[str, JsonValue]
    """Values of the swept keys."""

    status: Status
    """How the experiment ended."""

    runs: int
    """Completed runs: those that the numbers come from."""

    device: str | None
    """Device that the runs used, as it names itself."""

    devices_used: int | None
    """Distinct devices that ranks really used; on a CPU the number of ranks."""

    instances: int
    """Machines that are paid for."""

    usd_per_hour: float
    """Dollars for an hour of all of them."""

    tokens_per_second: Interval | None
    """Real tokens per second, global, with a 95 % interval over runs."""

    usd_per_million_tokens: Interval | None
    """Cost per million real tokens; the interval is that of the throughput, the price is exact."""

    usd_for_tokens: Interval | None
    """Cost of as many tokens as were asked for; null when none were."""

    sensitivity: tuple[Sensitivity, ...]
    """Cost per million tokens if throughput or price were off; empty without a cost."""

    notes: tuple[str, ...]
    """What one must know about this cost, a sentence each."""


class CostDocument(Frozen):
    """What `accel-bench cost --format json` prints."""

    schema_version: int = SCHEMA_VERSION
    """Version of this document's form."""

    tariff: HourlyRate
    """The price."""

    for_tokens: float | None
    """Tokens to train on, as asked for."""

    excluded: str = EXCLUDED
    """What no cost here contains."""

    experiments: tuple[ExperimentCost, ...]
    """A row for each experiment, in the order of their first runs."""
