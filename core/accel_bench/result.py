"""What a run leaves behind: samples, metrics, status. Every number says its unit and scope."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from enum import Enum
from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.effective import EffectiveConfiguration
from accel_bench.flops.workload import Workload
from accel_bench.machine.info import Device, Machine
from accel_bench.machine.process_memory import Stage
from accel_bench.machine.state import MachineState
from accel_bench.scenario.experiment import SCHEMA_VERSION, Experiment

EARLIEST = "1970-01-01T00:00:00Z"
"""Time of an imported run whose file has none."""


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
        """True if the numbers may be used."""
        return self in (Status.OK, Status.DEGRADED)

    @property
    def repeatable(self) -> bool:
        """True if a retry would most likely end the same way."""
        return self in (Status.INVALID, Status.OOM, Status.PLUGIN_ERROR, Status.SKIPPED)


class Sample(Frozen):
    """One optimizer step of one rank; it counts what `TokenCounts` does, on this rank."""

    step: int
    """Step number from 0, warm-up included."""

    seconds: float
    """Seconds since the end of the step before: between device events where the device has them,
    else on the wall clock of the host."""

    device_seconds: float | None = None
    """Seconds between device events; null where the device has none."""

    sequences: int
    processed_tokens: int
    real_tokens: int
    supervised_tokens: int
    real_pairs: int | None = None
    processed_pairs: int | None = None

    loss: float | None
    """This rank's part of the step's loss: the sum over ranks is the loss. Null when not finite."""


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


class TimeSeries(Frozen):
    """Readings of one figure over time; each holds until the next."""

    times: tuple[float, ...]
    """time.monotonic() of the machine in seconds, as `Window.started`."""

    values: tuple[float, ...]
    """In the unit of the metric that it belongs to."""

    @model_validator(mode="after")
    def _check_lengths(self) -> TimeSeries:
        times, values = len(self.times), len(self.values)
        if times != values or not times:
            raise ValueError(f"needs a value for each time, and one at least: {times}, {values}")
        return self


class Metric(Frozen):
    """One number that a plugin measured around the window."""

    name: str
    """Name, with its unit where the unit is not obvious: `peak_memory_bytes`."""

    value: float | int | None
    """The number; null when it could not be measured, never 0 in its place."""

    unit: str
    """`bytes`, `seconds`, `1` ..."""

    scope: Literal["rank", "device", "global"]
    better: Literal["lower", "higher", "neither"] = "neither"

    plugin: str = ""
    """Plugin that measured it, which core fills in."""

    figure: Figure | None = None
    """Which of the figures that analysis knows this is; null for any other."""

    kind: str = ""
    """How it was measured, where there is more than one way."""

    rank: int | None = None
    """The rank that it belongs to, in what was measured from outside; null for all of them."""

    reason: str = ""
    """Why there is no number, or what is wrong with it."""

    degrades: bool = False
    """True if the reason makes a result that is `ok` a `degraded` one."""

    series: TimeSeries | None = None
    """The readings behind the number, where it was read more than once."""


class Window(Frozen):
    """The measured window of one rank, as metrics plugins and the store see it."""

    started: float
    """time.monotonic() after the last warm-up step, in seconds."""

    ended: float
    """time.monotonic() after the last measured step, once its losses have been read and the device
    is idle, in seconds."""

    samples: tuple[Sample, ...] = ()

    discarded: tuple[Sample, ...] = ()
    """Steps of unstable windows, which were measured again."""

    instabilities: tuple[str, ...] = ()
    """What disturbed each discarded window, and the kept one where that was unstable too."""

    warmup: tuple[Sample, ...] = ()
    """Steps before the window; the first holds what happens once."""

    left_out_seconds: float = 0.0
    """Seconds between the steps that the engine left out of them, by `Stopwatch.resume`; 0 where a
    model is trained."""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the window that are those of its steps."""
        return self.ended - self.started - self.left_out_seconds

    @property
    def all_steps(self) -> tuple[Sample, ...]:
        """All steps, those of the warm-up and of discarded windows too: they train the model."""
        return (*self.warmup, *self.discarded, *self.samples)


class PhaseSplit(Frozen):
    """Time of a step by phase, measured in a few steps after the window.

    Marking waits for nothing, but it is work: the window itself is never split. On a device with
    events the seconds are those of the device, in which work overlapping on the host is hidden.
    """

    steps: int

    step_seconds: float
    """Seconds of the step of median duration among them."""

    seconds: dict[str, float]
    """Seconds of that step by `PhaseName`."""


class Failure(Frozen):
    """The exception that ended a rank.

    Bytes are null but for an out-of-memory error whose text, or the allocator, gives them.
    """

    type: str
    message: str
    traceback: str

    message_suffices: bool = False
    """True if the message says all, as that of an error made for users: no traceback adds to it."""

    step_part: Literal["forward", "backward", "optimizer"] | None = None
    """The part of a step in which it was raised; null outside of steps, and in a hook."""

    plugin: str | None = None
    distribution: str | None = None
    hook: str | None = None
    """The hook that raised it; null where core did."""

    bytes_asked: int | None = None
    """Bytes that could not be allocated."""

    bytes_free: int | None = None
    bytes_total: int | None = None
    bytes_in_use: int | None = None
    """Bytes that this process used."""

    bytes_allocated: int | None = None
    bytes_reserved_unallocated: int | None = None
    """Bytes that torch's allocator held for no tensor."""


SKETCH_BUCKETS = 31
"""Numbers of a sketch; the distance of two sketches has a relative standard error of 25 %."""


class TensorUpdate(Frozen):
    """The change of one trained tensor."""

    elements: int

    sketch: tuple[float, ...]
    """Sums of the change's elements in 31 buckets, each element with a random sign: the sum of
    squares estimates the square of its L2 norm, and the differences of two runs' that of their
    distance."""

    norm: float | None = None
    """L2 norm of the change; null where only the sketch was kept."""


class WeightUpdate(Frozen):
    """How training changed the weights, from before the first step to the end of the window."""

    steps: int
    """Optimizer steps in between."""

    trained_tensors: int
    """Tensors that required a gradient before the first step."""

    trained_elements: int

    tensors: dict[str, TensorUpdate] = Field(default_factory=dict)
    """The change of each of them by name; empty but on rank 0."""

    weights: tuple[float, ...]
    """Sketch of all of them together after the last step: that of replicas must agree."""

    weights_before: tuple[float, ...] = ()
    """The same before the first step: ranks that hold parts of a model differ there already."""

    seconds: float
    """What the sketches and the file took, outside of all windows."""

    kept_bytes: int = 0
    """Size of the file with the exact change, until it was compared; 0 where none was kept."""

    kept_reason: str = ""
    """Why none was kept that was asked for."""

    @property
    def norm(self) -> float:
        """L2 norm of the change of all tensors, as their sketches estimate it."""
        return math.hypot(*(value for one in self.tensors.values() for value in one.sketch))


class Answers(Frozen):
    """What a rank has generated for its requests, in their order, warm-up included.

    The k-th request is the same in every run of a round of a scenario.
    """

    tokens: tuple[tuple[int, ...], ...] = ()
    """Token ids of each of the first requests, the prompt left out."""

    digests: tuple[str, ...] = ()
    """SHA-256 of the ids of each of the others, cut to 16 hexadecimal digits: beyond 65,536 ids
    they are not kept."""

    near_ties: tuple[tuple[int, ...], ...] | None = None
    """For each of the first requests, the positions (from 0) where the two likeliest tokens are
    closer than rounding can resolve; null where unknown."""

    first_prompt: str = ""
    """Digest of the first prompt: other requests were answered if it differs; empty if unknown."""

    unit: Literal["tokens", "letters"] = "tokens"
    """What the ids are: those of tokens, or code points where a server told its text alone."""

    @property
    def requests(self) -> int:
        """Requests that were answered."""
        return len(self.tokens) + len(self.digests)

    def digest(self, request: int) -> str:
        """Return the digest of a request's answer, whether its ids were kept or not."""
        if request < len(self.tokens):
            return digest_of(self.tokens[request])
        return self.digests[request - len(self.tokens)]


def digest_of(answer: Sequence[int]) -> str:
    """Return 16 hexadecimal digits that differ for other token ids."""
    return hashlib.sha256(",".join(map(str, answer)).encode()).hexdigest()[:16]


class Collective(Frozen):
    """One kind of collective on one rank in a step: means of counts, medians of seconds."""

    calls: float
    """How often."""

    bytes: float
    """The larger of input and output, summed over the calls: the size that NCCL's tests state."""

    seconds: float
    """From the moment when all ranks of the group are there to its end."""

    waiting_seconds: float
    """Until the last rank of the group was there."""


class Communication(Frozen):
    """Collectives of one rank in a few steps of their own, where nothing overlaps."""

    steps: int
    """Steps that were taken; the first is part of no figure where there are more."""

    step_seconds: float
    """Median; longer than in the window, where collectives overlap with computation."""

    collectives: dict[str, Collective]
    """By kind, such as `all_reduce`."""

    @property
    def seconds(self) -> float:
        """Seconds of all collectives of a step."""
        return sum(one.seconds for one in self.collectives.values())

    @property
    def waiting_seconds(self) -> float:
        """Seconds of a step in which the rank waits for slower ones."""
        return sum(one.waiting_seconds for one in self.collectives.values())


class Evaluation(Frozen):
    """One evaluation of the model on held-out samples, on one rank."""

    step: int
    """Optimizer steps before it."""

    loss: float | None
    """This rank's part of the mean loss of supervised tokens: the sum over ranks is the loss. Null
    when not finite."""

    seconds: float
    """Wall-clock seconds of its forward passes."""

    batches: int
    sequences: int
    real_tokens: int
    supervised_tokens: int


class MemoryReading(Frozen):
    """Memory of one rank at the end of a step."""

    step: int
    """Optimizer steps until then."""

    host_bytes: int | None = None
    """Resident memory of the process; null where it cannot be read."""

    device_allocated_bytes: int | None = None
    """Bytes that tensors hold on the GPU; null where torch uses none."""


class LearningCurve(Frozen):
    """How one rank's model learned, read outside of what is measured."""

    evaluations: tuple[Evaluation, ...] = ()
    """On held-out samples: before training, after the measured window, then between `steps`."""

    steps: tuple[Sample, ...] = ()
    """Steps after the measured window; evaluations are not in their seconds."""

    memory: tuple[MemoryReading, ...] = ()
    """At the end of each of these steps."""


class SeenWindow(Frozen):
    """How long a rank's window can have lasted by the parent's clock, in seconds."""

    rank: int
    """Global rank."""

    at_least: float
    """0 for a window that was over before the parent looked twice."""

    at_most: float | None = None
    """Null where the parent did not look before it or after it."""


class Node(Frozen):
    """The machine of a rank that an agent has started, as the agent describes it."""

    rank: int
    """Global rank."""

    name: str
    """Name by which the launcher, or else the machine, calls it."""

    address: str
    """Address by which it reached the parent."""

    interface: str | None = None
    """Network interface that has the address; null where none has."""

    link_megabits_per_second: int | None = None
    """Speed of that interface's link; null where the system does not say."""

    cores: int
    """Cores that the agent may use."""

    affinity: tuple[int, ...] = ()
    """Numbers of those that the system lets it run on; empty where it does not say."""

    memory_bytes: int
    gpus: tuple[str, ...] = ()
    """Names of its GPUs, by index."""

    port: int | None = None
    """Port at which the ranks of this run have met, on the node of rank 0."""


class RankResult(Frozen):
    """What one rank writes as `rank<N>.json`."""

    schema_version: int = SCHEMA_VERSION

    rank: int
    """Global rank, from 0."""

    status: Status

    reasons: tuple[str, ...] = ()
    """Why the status is not `ok`, each a sentence."""

    phase: str = ""
    """What the rank was doing when it ended badly."""

    error: Failure | None = None

    device: Device | None = None
    """The device that this rank really used; null when it did not get that far."""

    window: Window | None = None
    """What was measured; null when the window was not reached."""

    learning: LearningCurve | None = None
    """Evaluations on held-out data, and steps after the window; null without either."""

    steps_after: tuple[Sample, ...] = ()
    """Whole steps after the window and the learning curve, each waited for, numbered from 0: those
    of the window take about as long. Empty where nothing is trained, and without torch."""

    phases: PhaseSplit | None = None
    """Time of a step by phase; null when the engine marks no phases."""

    communication: Communication | None = None
    """Collectives of a step; null with one rank, and without torch."""

    profiled_steps: int = 0
    """Steps that were taken after all others for what is no part of the experiment, such as a
    profile; no figure here is made of them."""

    checked_steps: int = 0
    """Steps after the window in which the model was read again; no figure here is made of them."""

    observed_steps: int = 0
    """Steps that plugins observed after all others; no figure but their metrics is made of them."""

    workload: Workload | None = None
    """What the model's matmuls and attention compute for a token; null without torch."""

    workload_reason: str = ""
    """Why the workload is not known, or why it is a plugin's declaration."""

    metrics: tuple[Metric, ...] = ()
    effective: EffectiveConfiguration = EffectiveConfiguration()

    update: WeightUpdate | None = None
    """How training changed the weights; null without torch, or when the window was not reached."""

    answers: Answers | None = None
    """What it has generated; null where it was trained."""

    evidence: dict[str, JsonValue] = Field(default_factory=dict)
    """What each plugin shows for having acted, by its name."""

    stages: tuple[Stage, ...] = ()


class PluginVersion(Frozen):
    """A plugin that was active, and where it came from."""

    name: str
    distribution: str

    version: str
    """The distribution's version; with commit and dirty hash when installed from a checkout."""


class Provenance(Frozen):
    """Origin of a row: measured by this program, or imported from a file of another one."""

    origin: Literal["measured", "exported", "imported"] = "measured"
    """`exported`: it came with an export of another store, which says that it was measured there.
    """

    format: str = ""
    """Format of the file that it was imported from."""

    file: str = ""
    """File of the other program, as it was named; of a measured run the bundle that it repeats."""

    sha256: str = ""
    """Hex digest of the file's content; of a bundle the one that its manifest states."""

    imported_at: str = ""
    """UTC time, ISO 8601."""

    machine: str = ""
    """The machine or device, as the file describes it."""

    stated: tuple[str, ...] = ()
    """Dotted keys of the scenario that the file states; all others are unknown, whatever the
    scenario holds there."""

    corrections: tuple[str, ...] = ()
    """What was changed or computed on the way in, each a sentence."""

    series: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)
    """Raw numbers of the file by name, such as `seconds_per_call` or `loss`."""


class Result(Frozen):
    """One attempt of one run: the row that is stored, and that nothing overwrites."""

    schema_version: int = Field(SCHEMA_VERSION, ge=0, lt=2**31)

    run_id: str
    """Unique name of the attempt."""

    session: str
    """The `accel-bench run` that it belongs to; only runs of one session are paired."""

    experiment: Experiment

    round: int = Field(ge=0, lt=2**63)
    """Round, from 0; runs of one round are pairs. A database holds integers below 2**63."""

    position: int = Field(ge=0, lt=2**63)
    """Place within the round, from 0."""

    attempt: int = Field(0, ge=0, lt=2**63)
    """Retry, from 0; only the last attempt counts."""

    replaces: str = ""
    """Session whose round of this number this run measures again; that one no longer counts."""

    status: Status
    reasons: tuple[str, ...] = ()
    phase: str = ""

    started_at: str
    """UTC time, ISO 8601."""

    seconds: float
    """Wall-clock seconds of the whole attempt."""

    ranks: tuple[RankResult, ...] = ()

    metrics: tuple[Metric, ...] = ()
    """What observers measured from outside, in the parent."""

    seen_windows: tuple[SeenWindow, ...] = ()
    """The parent's clock beside that of each rank; empty for rows of earlier versions."""

    exits: tuple[str, ...] = ()
    """How each rank's process ended: `exit 0`, `SIGKILL` ..."""

    plugins: tuple[PluginVersion, ...] = ()

    loss_tolerances: dict[str, float] = Field(default_factory=dict)
    """Loss difference that each plugin allows by design, of those that declare one."""

    loss_tolerance: float | None = None
    """The largest of them: all that rows of earlier versions have."""

    update_tolerances: dict[str, float] = Field(default_factory=dict)
    """Distance of the weights' change from the baseline's that each plugin allows by design, of
    those that declare one."""

    other_optimizers: tuple[str, ...] = ()
    """Plugins whose optimizer differs from the scenario's by design."""

    output_tolerances: dict[str, float] = Field(default_factory=dict)
    """Share of generated tokens that may differ from the baseline's by each plugin's design, of
    those that declare one."""

    update_distances: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Exact L2 norms of the difference between this run's change of each tensor and that of a run
    of the same round, by that run's id: a stack's from the baseline's, stored with the later one.
    """

    machine: Machine | None = None
    nodes: tuple[Node, ...] = ()
    """Node of each rank that an agent has started; none for ranks of the parent's machine."""

    state_before: MachineState | None = None
    state_after: MachineState | None = None
    """State after the last rank had ended; that before is read just before they start."""

    command: tuple[str, ...] = ()
    """Arguments that repeat this run."""

    folder: str = ""
    """Folder of the attempt, relative to the results folder."""

    log_tail: str = ""
    """Last lines of the guilty rank's log, when it did not end well."""

    provenance: Provenance = Provenance()
    """Program that measured it; figures of an imported row are `metrics`, and it has no ranks."""

    @property
    def imported(self) -> bool:
        """True if another program measured it: such a row is in no verdict, rank or cost."""
        return self.provenance.origin == "imported"

    @property
    def data_ranks(self) -> tuple[RankResult, ...]:
        """The first rank of each group that computes the same batches: their samples, tokens and
        losses add up to those of the run. All ranks, where each takes batches of its own."""
        scenario = self.experiment.scenario
        size = scenario.world_size // scenario.data_parallel
        return tuple(rank for rank in self.ranks if rank.rank % size == 0)
