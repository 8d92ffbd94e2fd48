"""What `history` returns: the points of a series, and its steps."""

from __future__ import annotations

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.schema import Document, StackRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.tables.point_schema import Better
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench_ci.figures import Change


class HistoryPoint(Frozen):
    """What one command measured."""

    session: str
    """Id of its first session."""

    started_at: str
    """Start of its first run: UTC time, ISO 8601."""

    runs: int
    """Runs whose values count."""

    value: Interval | None
    """Their median with a 95 % interval; null without any."""

    values: tuple[float, ...]
    """The value of each run, in the order of rounds."""

    run_ids: tuple[str, ...]
    """Ids of these runs."""

    statuses: tuple[str, ...]
    """How its runs ended; each once."""

    saturated: bool = False
    """Whether requests piled up in a run, so that no latency counts."""

    versions: dict[str, JsonValue]
    """Versions of libraries and plugins, with the commit of a checkout, by dotted key."""


class HistoryStep(Frozen):
    """A change of the level."""

    point: int
    """Place of the first point at the new level."""

    session: str
    """Its session."""

    started_at: str
    """Its start."""

    before: float
    """Median of the points since the step before."""

    after: float
    """Median of the points until the step after."""

    relative_change: float
    """The new level over the old one, less 1; 0.05 is 5 % more."""

    change: Change
    """Whether that is better or worse."""

    p_value: float
    """Chance of so large a difference anywhere in a series without a step."""

    points_since: int
    """Points at the new level."""

    differing: tuple[Difference, ...]
    """Versions and facts of the machine that changed there."""


class History(StackRow, Document):
    """One series, oldest point first."""

    scenario: str
    experiment_id: str
    """Id of the newest experiment."""

    series: str
    """Key of the series: its work, stack, sweep point and kind of machine."""

    devices: tuple[str, ...]
    """Names of the devices."""

    figure: str
    """Name of the figure."""

    unit: str
    better: Better
    """Which of two values is the better one."""

    points: tuple[HistoryPoint, ...]
    steps: tuple[HistoryStep, ...]

    saturated_since: str = ""
    """Session since which requests pile up in all, though before they did not: that is worse. Empty
    without one."""

    conclusion: str
    """What it shows, in a sentence."""

    @property
    def newest_step(self) -> HistoryStep | None:
        """The last one."""
        return self.steps[-1] if self.steps else None
