"""What a run leaves behind: samples, metrics, status. Every number says its unit and scope."""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

from pydantic import Field

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.effective import EffectiveConfiguration
from accel_bench.flops.workload import Workload
from accel_bench.machine.info import Device, Machine
from accel_bench.machine.state import MachineState
from accel_bench.scenario.experiment import SCHEMA_VERSION, Experiment


class Status(str, Enum):
    """How an attempt, or an experiment, ended: exactly one of these."""

    OK = "ok"
    DEGRADED = "degraded"
    INVALID = "invalid"
    OOM = "oom"
    FAILED = "failed"
    PLUGIN_ERROR = "plugin_error"
    TIMEOUT = "timeout"
    HUNG = "hung"
    KILLED = "killed"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"
    INFRA_ERROR = "infra_error"
    SKIPPED = "skipped"

    @property
    def completed(self) -> bool:
        """Whether the numbers may be used."""
        return self in (Status.OK, Status.DEGRADED)

    @property
    def repeatable(self) -> bool:
        """Whether the same attempt would most likely end the same way, so that no retry is worth
        it."""
        return self in (Status.INVALID, Status.OOM, Status.PLUGIN_ERROR, Status.SKIPPED)


class Sample(Frozen):
    """One optimizer step of one rank."""

    step: int
    """Step number from 0, warm-up included."""

    seconds: float
    """Seconds from the end of the step before to the end of this one.

    Between two device events where the device has them, else on the wall clock of the host.
    """

    device_seconds: float | None = None
    """Seconds between device events; null where the device has none."""

    sequences: int
    """Sequences on this rank."""

    processed_tokens: int
    """Tokens with padding, on this rank."""

    real_tokens: int
    """Tokens without padding, on this rank."""

    supervised_tokens: int
    """Tokens with a loss, on this rank."""

    real_pairs: int | None = None
    """Pairs of tokens of one sequence, without padding, on this rank: the sum of the sequences'
    squared lengths. Null where the batches did not say."""

    processed_pairs: int | None = None
    """Pairs that attention computes, padding included, on this rank; null where that is not known.
    """

    loss: float | None
    """This rank's share of the step's loss: the sum over ranks is the loss. Null when not finite.
    """


Figure: TypeAlias = Literal[
    "peak_memory",
    "run_peak_memory",
    "peak_reserved",
    "run_peak_reserved",
    "peak_driver",
    "run_peak_driver",
    "peak_rss",
    "run_peak_rss",
    "fragmentation",
    "saved_for_backward",
    "matmul_seconds",
]
"""Figures that tables and checks are made of, whichever plugin measures them.

Peaks are those of the window, or with `run_` of the whole run, in bytes: `memory` is the one that
tables show (of tensors on a GPU, else of the process), `reserved` is what torch's allocator holds,
`driver` what the driver counts, `rss` what is resident on the host. `fragmentation` is reserved and
not allocated, `saved_for_backward` what autograd keeps of a forward pass. `matmul_seconds` is what
the matmuls of a step take when nothing else runs.
"""


class Metric(Frozen):
    """One number that a plugin measured around the window."""

    name: str
    """Name, with its unit where the unit is not obvious: `peak_memory_bytes`."""

    value: float | int | None
    """The number; null when it could not be measured, never 0 in its place."""

    unit: str
    """`bytes`, `seconds`, `1` ..."""

    scope: Literal["rank", "device", "global"]
    """What it covers."""

    better: Literal["lower", "higher", "neither"] = "neither"
    """Which direction is an improvement."""

    figure: Figure | None = None
    """Which of the figures that analysis knows this is; null for any other."""

    kind: str = ""
    """How it was measured, where there is more than one way."""

    rank: int | None = None
    """The rank that it belongs to, in what was measured from outside; null for all of them."""

    reason: str = ""
    """Why there is no number, or what is wrong with it."""

    degrades: bool = False
    """Whether the reason makes a result that is `ok` a `degraded` one."""


class Window(Frozen):
    """The measured window of one rank, as metrics plugins and the store see it."""

    started: float
    """time.monotonic() after the last warm-up step, in seconds."""

    ended: float
    """time.monotonic() after the last measured step and its synchronisation, in seconds."""

    samples: tuple[Sample, ...] = ()
    """The measured steps."""

    discarded: tuple[Sample, ...] = ()
    """Steps of windows that were disturbed and measured again."""

    instabilities: tuple[str, ...] = ()
    """What disturbed each window that was discarded, and the kept one where it was disturbed too.
    """

    warmup: tuple[Sample, ...] = ()
    """Steps before the window; the first holds what happens once."""


class PhaseSplit(Frozen):
    """Where the time of a step goes, seen in a few steps of their own after the window.

    Marking waits for nothing, but it is work: the window itself is never split. On a device with
    events the seconds are those of the device, in which work overlapping on the host is hidden.
    """

    steps: int
    """Steps that were split."""

    step_seconds: float
    """Seconds of the step of median duration among them."""

    seconds: dict[str, float]
    """Seconds of that step by `PhaseName`."""


class Stage(Frozen):
    """A point in a worker's life, in the order in which they were passed."""

    name: str
    """What had just been finished: `imports`, `load_model`, `first_step` ..."""

    seconds: float
    """Seconds since the process started."""

    host_bytes: int | None = None
    """Resident memory of the process in bytes at that point."""

    host_peak_bytes: int | None = None
    """Largest resident memory since the stage before; null where that cannot be told apart."""

    device_allocated_bytes: int | None = None
    """Bytes that tensors hold on the rank's GPU at that point; null where torch uses none."""

    device_peak_allocated_bytes: int | None = None
    """The largest of that since the stage before."""

    device_reserved_bytes: int | None = None
    """Bytes that torch's allocator holds there, whether tensors use them or not."""

    device_peak_reserved_bytes: int | None = None
    """The largest of that since the stage before."""

    device_peak_inactive_split_bytes: int | None = None
    """Largest sum of free pieces of blocks that are in use, which cannot be given back."""


class Failure(Frozen):
    """The exception that ended a rank. Bytes are known of an out-of-memory error alone, and null
    where neither its text nor the allocator says them."""

    type: str
    """Its class."""

    message: str
    """Its text."""

    traceback: str
    """Its traceback, with those of its causes."""

    step_part: Literal["forward", "backward", "optimizer"] | None = None
    """The part of a step in which it was raised; null outside of steps, and in a hook."""

    plugin: str | None = None
    """The plugin whose hook raised it."""

    distribution: str | None = None
    """That plugin's distribution."""

    hook: str | None = None
    """The hook."""

    bytes_asked: int | None = None
    """Bytes that could not be allocated."""

    bytes_free: int | None = None
    """Bytes that were free."""

    bytes_total: int | None = None
    """Bytes that there are."""

    bytes_in_use: int | None = None
    """Bytes that this process used."""

    bytes_allocated: int | None = None
    """Bytes that tensors held."""

    bytes_reserved_unallocated: int | None = None
    """Bytes that torch's allocator held for no tensor."""


class RankResult(Frozen):
    """What one rank writes as `rank<N>.json`."""

    schema_version: int = SCHEMA_VERSION
    """Version of this file's form."""

    rank: int
    """Global rank, from 0."""

    status: Status
    """How this rank ended, as it saw it."""

    reasons: tuple[str, ...] = ()
    """Why the status is not `ok`, each a sentence."""

    phase: str = ""
    """What the rank was doing when it ended badly."""

    error: Failure | None = None
    """The exception that ended it; null when none did."""

    device: Device | None = None
    """The device that this rank really used; null when it did not get that far."""

    window: Window | None = None
    """What was measured; null when the window was not reached."""

    phases: PhaseSplit | None = None
    """Where the time of a step goes; null when the engine marks no phases."""

    workload: Workload | None = None
    """What the model's matmuls and attention compute for a token; null without torch."""

    metrics: tuple[Metric, ...] = ()
    """What metrics plugins measured."""

    effective: EffectiveConfiguration = EffectiveConfiguration()
    """What really held when the clock started."""

    evidence: dict[str, JsonValue] = Field(default_factory=dict)
    """What each plugin shows for having acted, by its name."""

    stages: tuple[Stage, ...] = ()
    """Where the time before the window went."""


class PluginVersion(Frozen):
    """A plugin that was active, and where it came from."""

    name: str
    """Name, as in `use`."""

    distribution: str
    """Distribution that brought it."""

    version: str
    """That distribution's version; with commit and dirty hash when it is installed from a checkout.
    """


class Result(Frozen):
    """One attempt of one run: the row that is stored, and that nothing overwrites."""

    schema_version: int = SCHEMA_VERSION
    """Version of this row's form."""

    run_id: str
    """Unique name of the attempt."""

    session: str
    """The `accel-bench run` that it belongs to; only runs of one session are paired."""

    experiment: Experiment
    """What was run."""

    round: int
    """Round, from 0; runs of one round are pairs."""

    position: int
    """Place within the round, from 0."""

    attempt: int = 0
    """Retry, from 0; only the last attempt counts."""

    status: Status
    """How it ended."""

    reasons: tuple[str, ...] = ()
    """Why the status is not `ok`."""

    phase: str = ""
    """What was going on when it ended badly."""

    started_at: str
    """UTC time, ISO 8601."""

    seconds: float
    """Wall-clock seconds of the whole attempt."""

    ranks: tuple[RankResult, ...] = ()
    """What each rank measured, by rank."""

    metrics: tuple[Metric, ...] = ()
    """What observers measured from outside, in the parent."""

    exits: tuple[str, ...] = ()
    """How each rank's process ended: `exit 0`, `SIGKILL` ..."""

    plugins: tuple[PluginVersion, ...] = ()
    """Plugins that were active, in order."""

    loss_tolerance: float | None = None
    """Largest `loss_tolerance` that the stack's plugins declare; null where none does."""

    machine: Machine | None = None
    """The machine and the versions on it."""

    state_before: MachineState | None = None
    """What the machine was doing just before the ranks were started."""

    state_after: MachineState | None = None
    """The same after the last of them had gone."""

    command: tuple[str, ...] = ()
    """Arguments that repeat this run."""

    folder: str = ""
    """Folder of the attempt, relative to the results folder."""

    log_tail: str = ""
    """Last lines of the guilty rank's log, when it did not end well."""
