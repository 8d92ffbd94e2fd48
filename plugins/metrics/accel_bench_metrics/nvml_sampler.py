"""Sampler of devices through NVML, in a thread of the parent process."""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import mul
from typing import Any, Literal, get_args

from accel_bench import LocalProcess, TimeSeries, nvml
from accel_bench_metrics.nvml_fields import NVMLField, field_of

STOP_SECONDS = 5.0
"""Timeout in seconds for the last reading."""

ENERGY_SECONDS = 0.01
"""Seconds above which reading the energy counter was interrupted, so that its time is uncertain."""

ENERGY_READINGS = 3
"""Maximum number of attempts to read the energy counter without interruption."""

Subject = Literal["energy", "power", "clocks", "memory", "processes"]
"""Kind of quantity that is read from a device."""


class Readings:
    """Time series of a quantity: values, with their times in seconds."""

    def __init__(self, typecode: str = "d") -> None:
        self.times = array("d")
        self.values: array[Any] = array(typecode)
        self.until = 0.0
        """Time of the last reading, in seconds."""

    def add(self, value: float, at: float) -> None:
        """Add a reading taken at the time `at`, in seconds."""
        self.times.append(at)
        self.values.append(value)

    def add_change(self, value: float, at: float) -> None:
        """Add a reading taken at the time `at`, unless it equals the previous one."""
        self.until = at
        if not self.values or self.values[-1] != value:
            self.add(value, at)

    def within(self, started: float, ended: float) -> Sequence[int]:
        """Return the values that were in effect from `started` to `ended`.

        The last value before `started` is included, since it was still in effect.
        """
        first = max(0, bisect_right(self.times, started) - 1)
        return self.values[first : bisect_right(self.times, ended)]

    def mean(self, started: float, ended: float) -> float | None:
        """Return the time-weighted mean from `started` to `ended`; a value holds until the next.

        Returns None if the readings do not cover that time.
        """
        if not self.times or ended <= started or started < self.times[0] or ended > self.until:
            return None
        inside = [at for at in self.times if started < at < ended]
        values = self.within(started, ended)
        lengths = [after - before for before, after in pairwise([started, *inside, ended])]
        return sum(map(mul, values, lengths)) / (ended - started)

    def stored(self) -> TimeSeries | None:
        """Return the series for storage, or None without readings.

        The last reading is included even if its value equals the one before.
        """
        if not self.times:
            return None
        last = [self.until] if self.until > self.times[-1] else []
        times = tuple(round(at, 3) for at in (*self.times, *last))
        return TimeSeries(times=times, values=(*self.values, *self.values[-1:][: len(last)]))


class Track:
    """Readings of one device, at times of `time.monotonic()` in seconds."""

    def __init__(self, device: nvml.NVMLDevice, fields: Sequence[str] = ()) -> None:
        self.device = device
        self.fields = {name: (field_of(name), Readings()) for name in fields}
        """Fields that are sampled over time by name, each with the series of its changes."""

        self.problems: dict[str, str] = {}
        """Reasons why readings have failed, by subject or name of a field."""

        self.memory_bytes = Readings("Q")
        """Changes of the memory in use on the whole device, in bytes."""

        self.rank_bytes: dict[int, Readings] = {}
        """Changes in bytes of the memory of each rank's processes, if NVML lists it."""

        self.energy = Readings()
        """Readings of the energy in millijoules since the driver was loaded."""

        self.power = Readings()
        """Readings of the power in watts."""

        self.limits = Readings("Q")
        """Readings of the reasons for throttled clocks, as NVML's bit masks."""

        self.other_processes: dict[int, nvml.GPUProcess] = {}
        """Foreign processes on the device, by pid."""

    def read(self, family: Family) -> None:
        """Read each quantity and field of the device, except those that failed before.

        `family` tells which processes belong to the ranks.
        """
        readers: dict[str, Callable[[], None]] = {
            "energy": self._read_energy,
            "power": self._read_power,
            "clocks": self._read_limits,
            "memory": self._read_memory,
            "processes": lambda: self._read_processes(family),
            **{name: partial(self._read_field, *pair) for name, pair in self.fields.items()},
        }
        for subject, reader in readers.items():
            if subject not in self.problems:
                try:
                    reader()
                except nvml.NoReadingError as error:
                    self.problems[subject] = str(error)

    def _read_field(self, field: NVMLField, series: Readings) -> None:
        if (value := field.read(self.device)) is not None:
            series.add_change(value, at=time.monotonic())

    def _read_energy(self) -> None:
        """Add a reading of the energy counter: the first quick one, else the quickest of three."""
        readings: list[tuple[float, float, float]] = []
        while len(readings) < ENERGY_READINGS:
            before = time.monotonic()
            if (energy := self.device.ask("GetTotalEnergyConsumption")) is None:
                return
            took = time.monotonic() - before
            readings.append((took, before + took / 2, energy))
            if took <= ENERGY_SECONDS:
                break
        _, at, energy = min(readings)
        self.energy.add(energy, at=at)

    def _read_power(self) -> None:
        if (milliwatts := self.device.ask("GetPowerUsage")) is not None:
            self.power.add(milliwatts / 1000, at=time.monotonic())

    def _read_limits(self) -> None:
        if (mask := nvml.clock_limit_mask(self.device)) is not None:
            self.limits.add(mask, at=time.monotonic())

    def _read_memory(self) -> None:
        if (memory := self.device.ask("GetMemoryInfo")) is not None:
            self.memory_bytes.add_change(memory.used, at=time.monotonic())

    def _read_processes(self, family: Family) -> None:
        processes = nvml.compute_processes(self.device) or ()
        owners = {process.pid: family.owner(process.pid) for process in processes}
        for rank in {owner for owner in owners.values() if owner is not None}:
            sizes = [p.memory_bytes for p in processes if owners[p.pid] == rank]
            if None not in sizes:
                used = sum(size for size in sizes if size is not None)
                self.rank_bytes.setdefault(rank, Readings("Q")).add_change(used, time.monotonic())
        if any(owner is not None for owner in owners.values()):
            # In a container NVML may number processes as the host does: only where it lists ours
            # are the others strangers.
            self.other_processes |= {p.pid: p for p in processes if owners[p.pid] is None}


class Family:
    """Assignment of processes to ranks: each rank's process and the processes that it started.

    `pids` are the process ids by rank, None if unknown. `run_id` is in the environment of all
    processes of the run.
    """

    def __init__(self, pids: Mapping[int, int | None], run_id: str) -> None:
        self._ranks = {pid: rank for rank, pid in pids.items() if pid is not None}
        self._run_id = run_id
        self._known: dict[int, int | None] = dict(self._ranks)

    def owner(self, pid: int) -> int | None:
        """Return the rank that a process belongs to; None for a foreign process."""
        if pid not in self._known:
            self._known[pid] = self._find(pid)
        return self._known[pid]

    def _find(self, pid: int) -> int | None:
        import psutil

        try:
            process = psutil.Process(pid)
            for parent in process.parents():
                if parent.pid in self._ranks:
                    return self._ranks[parent.pid]
            run, _, rank = process.environ().get(LocalProcess.MARK, "").rpartition("/")
        except psutil.Error:
            return None
        return int(rank) if run == self._run_id and rank.isdigit() else None


class Sampler:
    """Thread that samples devices at an interval; its first reading precedes the run."""

    def __init__(
        self,
        devices: Iterable[nvml.NVMLDevice],
        pids: Mapping[int, int | None],
        run_id: str,
        interval_seconds: float,
        fields: Sequence[str] = (),
    ) -> None:
        self.tracks = {device.uuid: Track(device, fields) for device in devices}
        self.error: Exception | None = None
        """Exception that ended the sampling thread; None without one."""

        self._family = Family(pids, run_id)
        self._interval = interval_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def start(self) -> None:
        """Take a first reading, then start the sampling thread."""
        self._read()
        self._thread.start()

    def stop(self) -> None:
        """Take a last reading and stop; a device that does not answer in time counts as lost."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            for track in self.tracks.values():
                problem = f"NVML fails: no answer within {STOP_SECONDS:g} s"
                subjects = (*get_args(Subject), *track.fields)
                track.problems = dict.fromkeys(subjects, problem)

    def _run(self) -> None:
        """Sample until `stop` is called, and once more after that."""
        try:
            while not self._stopping.wait(self._interval):
                self._read()
            self._read()
        except Exception as error:
            self.error = error

    def _read(self) -> None:
        for track in self.tracks.values():
            track.read(self._family)
