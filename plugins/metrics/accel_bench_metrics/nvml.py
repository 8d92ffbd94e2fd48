"""The metrics plugin `nvml`: memory, energy, power and throttling, read by the parent process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator

from accel_bench import (
    Device,
    Job,
    Metric,
    Options,
    Plugin,
    RankProcess,
    RankResult,
    hookimpl,
    nvml,
)
from accel_bench_metrics.nvml_fields import checked, shown
from accel_bench_metrics.nvml_metrics import (
    DeviceRank,
    NoFigureError,
    field_metrics,
    metrics_of,
)
from accel_bench_metrics.nvml_sampler import Sampler, Track


class NVMLOptions(Options):
    """Options of `nvml`: the interval of readings, and the quantities to read."""

    interval_seconds: float = Field(0.1, ge=0.05, le=1.0)
    """Interval between readings in seconds."""

    memory: Annotated[tuple[Literal["process", "device"], ...], Field(strict=False)] = (
        "process",
        "device",
    )
    """Memory to sample: of the ranks' processes, and of the device above its first reading."""

    fields: Annotated[tuple[str, ...], Field(strict=False)] = ("utilization.gpu", "memory.used")
    """Fields to store over time and show while ranks run: names of `nvidia-smi --help-query-gpu`,
    or of NVML's field numbers, such as NVML_FI_DEV_MEMORY_TEMP."""

    @field_validator("fields")
    @classmethod
    def _check_fields(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return checked(names)


class Watcher:
    """Watcher of the devices of one run, which turns their readings into metrics.

    `job` is the run's job, and `ranks` are its processes.
    """

    def __init__(self, job: Job, ranks: Sequence[RankProcess], options: NVMLOptions) -> None:
        self._options = options
        self._ranks = range(job.world_size)
        self._listed = nvml.Devices()
        self._problem = ""
        try:
            self._listed = nvml.devices()
        except nvml.NoReadingError as error:
            self._problem = str(error)
        environment = {**os.environ, **job.experiment.scenario.environment}
        # The order that core gives to all ranks, unless the user has chosen one.
        environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        shown = nvml.visible_devices(self._listed, environment)
        self._expected = shown[: job.world_size] if shown is not None else None
        # A launcher's handle may be older than `pid`; a rank elsewhere has none.
        pids = {rank.rank: getattr(rank, "pid", None) for rank in ranks}
        watched = self._listed.found if self._expected is None else self._expected
        interval = options.interval_seconds
        self._sampler = Sampler(watched, pids, job.run_id, interval, options.fields)
        self._sampler.start()

    @property
    def live(self) -> str:
        """Latest readings of the sampled fields as text; empty before the first reading."""
        parts = []
        for name in self._options.fields:
            readings = [track.fields[name][1].values for track in self._sampler.tracks.values()]
            if last := [values[-1] for values in readings if values]:
                parts.append(shown(name, last))
        return "  ".join(parts)

    def finish(self, results: Mapping[int, RankResult]) -> Iterable[Metric]:
        """Stop sampling, and yield the metrics of every rank.

        `results` are the ranks' results by rank, with their windows. Raises the sampler's error, if
        any.
        """
        self._sampler.stop()
        if self._sampler.error is not None:
            raise self._sampler.error
        for rank in self._ranks:
            used = self._of_rank(rank, results.get(rank))
            yield from metrics_of(used, self._options.memory)
            yield from field_metrics(used, self._options.fields)

    def _of_rank(self, rank: int, result: RankResult | None) -> DeviceRank:
        window = result.window if result else None
        try:
            return DeviceRank(rank, window, self._track(rank, result.device if result else None))
        except NoFigureError as error:
            return DeviceRank(rank, window, error)

    def _track(self, rank: int, used: Device | None) -> Track:
        """Return the readings of the device of `rank`. Raises NoFigureError without readings.

        `used` is the device that the rank reports; None if it reports none.
        """
        if used is not None and used.type != "cuda":
            raise NoFigureError(f"rank {rank} used no GPU")
        if self._problem:
            raise NoFigureError(f"nvml: {self._problem}", degrades=True)
        problem = "; ".join(self._listed.problems)
        if uuid := used.uuid if used else "":
            device = nvml.find_device(self._listed.found, uuid)
            problem = f"device {uuid}: {problem or 'NVML does not list it'}"
        else:
            expected = self._expected or ()
            device = expected[rank] if rank < len(expected) else None
            problem = problem or "NVML cannot tell which device it used"
        if device is not None:
            problem = f"{device.uuid} was not expected to be used"
        track = self._sampler.tracks.get(device.uuid) if device else None
        if track is None:
            raise NoFigureError(f"nvml: {problem}", degrades=True)
        return track


class NVML(Plugin[NVMLOptions]):
    """Samples the devices from the parent process, which disturbs no step."""

    Options = NVMLOptions

    @hookimpl
    def observe_ranks(self, job: Job, ranks: Sequence[RankProcess]) -> Watcher | None:
        """Start and return the watcher of a measured run's devices; return None for other jobs."""
        return Watcher(job, ranks, self.options) if job.purpose == "measure" else None
