"""Common form of measured and imported runs for export, with the same names of figures in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from accel_bench.analysis.metrics.throughput import RunThroughput, run_throughput
from accel_bench.result import Figure, Result
from accel_bench.scenario.draft import look_up
from accel_bench.scenario.uses import NO_PLUGIN

MEMORY: Mapping[str, tuple[Sequence[Figure], str]] = {
    "peak_memory_bytes": (("run_peak_memory", "peak_memory"), "allocated"),
    "peak_driver_memory_bytes": (("run_peak_driver", "peak_driver"), ""),
}
"""Memory figures in order of preference, and the kind of memory, by importers' name."""


@dataclass(frozen=True)
class ExportedRun:
    """A run to export, measured or imported; unknown values are None."""

    result: Result

    def setting(self, key: str) -> Any:
        """Return a scenario setting by dotted key; None if an imported file does not state it."""
        if self.result.imported and key not in self.result.provenance.stated:
            return None
        value = look_up(self._scenario, key)[1]
        return None if value == NO_PLUGIN else value

    @cached_property
    def _scenario(self) -> dict[str, Any]:
        scenario: dict[str, Any] = self.result.experiment.scenario.model_dump(mode="json")
        return scenario

    @cached_property
    def speed(self) -> RunThroughput | None:
        """Throughput of a completed measured run; None for other runs."""
        return run_throughput(self.result) if self.result.status.completed else None

    @cached_property
    def seconds(self) -> float | None:
        """Seconds of the measured window, or of the whole run if imported; None if unknown."""
        if self.result.imported:
            return self.result.seconds or None
        if self.speed is None:
            return None
        return self.speed.seconds_per_token * self.speed.real_tokens

    @property
    def devices(self) -> int | None:
        """Number of devices; None if an imported file does not state it."""
        if self.result.imported and self.setting("resources.devices") is None:
            return None
        return self.result.experiment.scenario.world_size

    @property
    def device(self) -> str:
        """Name or type of the first rank's device; for an imported run, the machine."""
        first = self.result.ranks[0].device if self.result.ranks else None
        return first.name or first.type if first else self.result.provenance.machine

    @cached_property
    def figures(self) -> Mapping[str, float | None]:
        """Figures of the run by name, such as `samples_per_second`; imported runs have the same."""
        if self.result.imported:
            return {metric.name: metric.value for metric in self.result.metrics}
        known = {name: self._peaks(*of) for name, of in MEMORY.items()}
        peaks = {name: fmean(values) if values else None for name, values in known.items()}
        if self.speed is None or self.seconds is None:
            return peaks
        windows = [rank.window for rank in self.result.data_ranks if rank.window]
        samples = [sample for window in windows for sample in window.samples]
        tokens, sequences = (
            sum(getattr(sample, name) for sample in samples)
            for name in ("processed_tokens", "sequences")
        )
        devices = self.result.experiment.scenario.world_size
        losses = [loss for loss in self.speed.losses if loss is not None]
        return peaks | {
            "tokens_per_second_per_device": tokens / self.seconds / devices,
            "samples_per_second": sequences / self.seconds,
            "steps_per_second": len(self.speed.step_seconds) / self.seconds,
            "mean_loss": fmean(losses) if losses else None,
        }

    @property
    def largest_peak(self) -> float | None:
        """Largest peak of memory over all devices in bytes; None if unknown."""
        if self.result.imported:
            return self.figures.get("peak_memory_bytes")
        return max(self._peaks(*MEMORY["peak_memory_bytes"]), default=None)

    def _peaks(self, figures: Sequence[Figure], kind: str) -> list[float]:
        """Return all ranks' values of the first of `figures` that has any; empty if none has.

        Only values of the memory kind `kind` count, such as `allocated`; empty means any kind.
        """
        ranks = (metric for rank in self.result.ranks for metric in rank.metrics)
        metrics = [*self.result.metrics, *ranks]
        for wanted in figures:
            values = [
                metric.value
                for metric in metrics
                if metric.figure == wanted and kind in metric.kind
            ]
            if known := [value for value in values if value is not None]:
                return known
        return []
