"""What runs measured, by the names of other programs: measured and imported rows alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.analysis.tables.listing import provenance_of
from accel_bench.result import Figure, Metric, Result, Sample
from accel_bench.scenario.layers import look_up
from accel_bench.scenario.uses import NO_PLUGIN


@dataclass(frozen=True)
class ExportedRun:
    """One run, read in the same way wherever it comes from; what is not known is None."""

    result: Result

    @property
    def provenance(self) -> str:
        """`measured`, or `imported` with the format."""
        return provenance_of(self.result)

    def setting(self, key: str) -> Any:
        """Return a setting of the scenario by dotted key, as far as it is stated."""
        if self.result.imported and key not in self.result.provenance.stated:
            return None
        found = look_up(self._scenario, key)[1]
        return None if found == NO_PLUGIN else found

    @cached_property
    def _scenario(self) -> dict[str, Any]:
        scenario: dict[str, Any] = self.result.experiment.scenario.model_dump(mode="json")
        return scenario

    @cached_property
    def speed(self) -> RunThroughput | None:
        """Speed of a completed measured run."""
        return run_throughput(self.result) if self.result.status.completed else None

    @cached_property
    def seconds(self) -> float | None:
        """Seconds of the measured window; of an imported run those of the whole run."""
        if self.result.imported:
            return self.result.seconds or None
        if self.speed is None:
            return None
        return self.speed.seconds_per_token * self.speed.real_tokens

    @property
    def devices(self) -> int | None:
        """Number of devices."""
        if self.result.imported and self.setting("resources.devices") is None:
            return None
        return self.result.experiment.scenario.world_size

    @property
    def device(self) -> str:
        """Name of the device."""
        first = self.result.ranks[0].device if self.result.ranks else None
        return first.name or first.type if first else self.result.provenance.machine

    def rate(self, name: str, count: Callable[[Sample], int]) -> float | None:
        """Return an imported figure, else counts of all samples of the window per second."""
        if self.result.imported:
            return self.figure(name)
        if self.seconds is None:
            return None
        windows = [rank.window for rank in self.result.data_ranks if rank.window]
        return sum(count(one) for window in windows for one in window.samples) / self.seconds

    @property
    def steps_per_second(self) -> float | None:
        """Optimizer steps per second."""
        if self.result.imported:
            return self.figure("steps_per_second")
        if self.speed is None or self.seconds is None:
            return None
        return len(self.speed.step_seconds) / self.seconds

    @property
    def mean_loss(self) -> float | None:
        """Mean over all steps, those before the window included."""
        if self.result.imported:
            return self.figure("mean_loss")
        losses = [loss for loss in (self.speed.losses if self.speed else ()) if loss is not None]
        return fmean(losses) if losses else None

    def figure(self, name: str) -> float | None:
        """Return a figure of an imported run."""
        return next((one.value for one in self.result.metrics if one.name == name), None)

    def memory(self, name: str, figures: Sequence[Figure], kind: str) -> float | None:
        """Return an imported figure, else the mean over devices of the first figure there is."""
        if self.result.imported:
            return self.figure(name)
        for wanted in figures:
            values = [
                one.value for one in self._metrics if one.figure == wanted and kind in one.kind
            ]
            known = [value for value in values if value is not None]
            if known:
                return fmean(known)
        return None

    @cached_property
    def _metrics(self) -> list[Metric]:
        return [
            *self.result.metrics,
            *(one for rank in self.result.ranks for one in rank.metrics),
        ]
