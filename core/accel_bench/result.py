"""Results of a run: samples, metrics, status. Every number has a stated unit and scope."""

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
"""Start time of imported runs whose file states none."""


class Status(str, Enum):
    """Status with which an attempt, or an experiment, ended."""

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
        """True if the attempt completed, so that its figures may be used."""
        return self in (Status.OK, Status.DEGRADED)

    @property
    def repeatable(self) -> bool:
        """True if a retry would most likely end with the same status."""
        return self in (Status.INVALID, Status.OOM, Status.PLUGIN_ERROR, Status.SKIPPED)


class Sample(Frozen):
    """One optimizer step of one rank, with the token counts of `TokenCounts` on this rank."""

    step: int
    """Number of the step from 0, warm-up included."""

    seconds: float
    """Seconds since the end of the step before, by device events if the device has them, else by
    the host's clock."""

    device_seconds: float | None = None
    """Seconds between device events; null for a device without events."""

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
"""Name of a figure that tables and checks use, whichever plugin measures it.

Peaks are those of the window, or with `run_` of the whole run, in bytes: `memory` is the peak that
tables show (of tensors on a GPU, else of the process), `reserved` is held by torch's allocator,
`driver` is counted by the driver, `rss` is resident on the host. `fragmentation` is reserved and
not allocated, `saved_for_backward` is kept by autograd from a forward pass. `matmul_seconds` is the
time of a step's matmuls when nothing else runs.
"""


class TimeSeries(Frozen):
    """Readings of one quantity over time; each value holds until the next reading."""

    times: tuple[float, ...]
    """Times of the readings by time.monotonic() in seconds, like `Window.started`."""

    values: tuple[float, ...]
    """Values of the readings, in the unit of the metric."""

    @model_validator(mode="after")
    def _check_lengths(self) -> TimeSeries:
        times, values = len(self.times), len(self.values)
        if times != values or not times:
            raise ValueError(f"needs a value for each time, and one at least: {times}, {values}")
        return self


class Metric(Frozen):
    """One number that a plugin measured around the window."""

    name: str
    """Name, with its unit unless that is obvious: `peak_memory_bytes`."""

    value: float | int | None
    """Value of the metric; null if it could not be measured, never 0 in its place."""

    unit: str
    """Unit, such as `bytes` or `seconds`; `1` for a plain number."""

    scope: Literal["rank", "device", "global"]
    better: Literal["lower", "higher", "neither"] = "neither"

    plugin: str = ""
    """Plugin that measured the metric, filled in by core."""

    figure: Figure | None = None
    """Figure that the metric measures, for tables and checks; null for any other."""

    kind: str = ""
    """Method of measurement, if a figure has several."""

    rank: int | None = None
    """Rank of a metric that was measured from outside; null for all ranks together."""

    reason: str = ""
    """Reason why there is no number, or defect of the number."""

    degrades: bool = False
    """True if the reason turns the result's status `ok` into `degraded`."""

    series: TimeSeries | None = None
    """Readings behind the number, if there were several."""


class Window(Frozen):
    """Measured window of one rank, which metrics plugins and the store read."""

    started: float
    """time.monotonic() after the last warm-up step, in seconds."""

    ended: float
    """time.monotonic() after the last measured step, once its losses have been read and the device
    is idle, in seconds."""

    samples: tuple[Sample, ...] = ()

    discarded: tuple[Sample, ...] = ()
    """Steps of unstable windows, which were measured again."""

    instabilities: tuple[str, ...] = ()
    """Disturbances of each discarded window, and of the kept window if that was unstable too."""

    warmup: tuple[Sample, ...] = ()
    """Warm-up steps before the window; the first step holds one-time work."""

    left_out_seconds: float = 0.0
    """Seconds between steps that the engine excluded from them by `Stopwatch.resume`; 0 if a model
    is trained."""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the window without `left_out_seconds`."""
        return self.ended - self.started - self.left_out_seconds

    @property
    def all_steps(self) -> tuple[Sample, ...]:
        """All training steps: warm-up, discarded windows and the window."""
        return (*self.warmup, *self.discarded, *self.samples)


class PhaseSplit(Frozen):
    """Time of a step by phase, measured in a few steps after the window. The end of each phase is
    recorded without waiting for the device, but that takes time, so steps of the window are not
    split. On a device with events, only the device's time counts, not the host's work beside it."""

    steps: int

    step_seconds: float
    """Seconds of the split step of median duration."""

    seconds: dict[str, float]
    """Seconds of that median step by `PhaseName`."""


class Failure(Frozen):
    """Exception that ended a rank.

    Numbers of bytes are null unless an out-of-memory error states them.
    """

    type: str
    message: str
    traceback: str

    message_suffices: bool = False
    """True if the message suffices without a traceback, as for errors made for users."""

    step_part: Literal["forward", "backward", "optimizer"] | None = None
    """Part of the step that raised; null outside of steps, and in a hook."""

    plugin: str | None = None
    distribution: str | None = None
    hook: str | None = None
    """Hook that raised; null if core raised."""

    bytes_asked: int | None = None
    """Bytes of the allocation that failed."""

    bytes_free: int | None = None
    bytes_total: int | None = None
    bytes_in_use: int | None = None
    """Bytes in use by this process."""

    bytes_allocated: int | None = None
    bytes_reserved_unallocated: int | None = None
    """Bytes that torch's allocator had reserved and not allocated to a tensor."""


SKETCH_BUCKETS = 31
"""Number of sums in a sketch; the distance of two sketches has a standard error of 25 %."""


class TensorUpdate(Frozen):
    """Change of one trained tensor, from before the first step to the end of the window."""

    elements: int

    sketch: tuple[float, ...]
    """Sums of the change's elements in 31 buckets, each element with a random sign: the sum of
    squares estimates the squared L2 norm of the change, and the difference of two runs' sketches
    estimates their distance."""

    norm: float | None = None
    """Exact L2 norm of the change; null if only the sketch was kept."""


class WeightUpdate(Frozen):
    """Change of the trained weights, from before the first step to the end of the window."""

    steps: int
    """Number of optimizer steps in which the weights changed."""

    trained_tensors: int
    """Number of tensors that required a gradient before the first step."""

    trained_elements: int

    tensors: dict[str, TensorUpdate] = Field(default_factory=dict)
    """Change of each trained tensor by name; empty on all ranks but 0."""

    weights: tuple[float, ...]
    """Sketch of all trained weights after the last step, which must agree among replicas."""

    weights_before: tuple[float, ...] = ()
    """Sketch of all trained weights before the first step; it differs among sharded ranks."""

    seconds: float
    """Seconds spent on the sketches and the file, outside of all windows."""

    kept_bytes: int = 0
    """Bytes of the file with the exact change, kept until it is compared; 0 for no file."""

    kept_reason: str = ""
    """Reason why no file was kept although one was asked for."""

    @property
    def norm(self) -> float:
        """Estimated L2 norm of the change of all tensors together, by their sketches."""
        return math.hypot(*(value for tensor in self.tensors.values() for value in tensor.sketch))


class Answers(Frozen):
    """Answers that a rank generated for its requests, in their order, warm-up included.

    The k-th request is the same in every run of a round of a scenario.
    """

    tokens: tuple[tuple[int, ...], ...] = ()
    """Token ids of the first answers, one tuple for each request, without the prompt."""

    digests: tuple[str, ...] = ()
    """SHA-256 digests of the further answers, cut to 16 hexadecimal digits: only 65,536 ids are
    kept in full."""

    near_ties: tuple[tuple[int, ...], ...] | None = None
    """Positions (from 0) in each of the first answers at which the two likeliest tokens are closer
    than rounding can resolve; null if unknown."""

    first_prompt: str = ""
    """Digest of the first prompt, by which other requests are detected; empty if unknown."""

    unit: Literal["tokens", "letters"] = "tokens"
    """Kind of the ids: token ids, or code points if a server returned text only."""

    @property
    def requests(self) -> int:
        """Number of answered requests."""
        return len(self.tokens) + len(self.digests)

    def digest(self, request: int) -> str:
        """Return the digest of the answer to the request with this number, counted from 0."""
        if request < len(self.tokens):
            return digest_of(self.tokens[request])
        return self.digests[request - len(self.tokens)]


def digest_of(answer: Sequence[int]) -> str:
    """Return the SHA-256 digest of an answer's token ids, cut to 16 hexadecimal digits."""
    return hashlib.sha256(",".join(map(str, answer)).encode()).hexdigest()[:16]


class Collective(Frozen):
    """One kind of collective operation of one rank in a step: mean counts, median seconds."""

    calls: float
    """Number of calls in a step."""

    bytes: float
    """The larger of input and output, summed over the calls: the size that NCCL's tests state."""

    seconds: float
    """Seconds in a step from the arrival of the group's last rank to the collective's end."""

    waiting_seconds: float
    """Seconds in a step that the rank waits for the last rank of the group."""


class Communication(Frozen):
    """Collective operations of one rank, measured in extra steps in which they overlap nothing."""

    steps: int
    """Number of extra steps; the first of several is part of no figure."""

    step_seconds: float
    """Median seconds of an extra step, longer than in the window for lack of overlap."""

    collectives: dict[str, Collective]
    """Collectives by kind, such as `all_reduce`."""

    @property
    def seconds(self) -> float:
        """Seconds of all collectives of a step."""
        return sum(collective.seconds for collective in self.collectives.values())

    @property
    def waiting_seconds(self) -> float:
        """Seconds of a step in which the rank waits for slower ranks."""
        return sum(collective.waiting_seconds for collective in self.collectives.values())


class Evaluation(Frozen):
    """One evaluation of the model on held-out samples, on one rank."""

    step: int
    """Number of optimizer steps before the evaluation."""

    loss: float | None
    """This rank's part of the mean loss of supervised tokens: the sum over ranks is the loss. Null
    when not finite."""

    seconds: float
    """Wall-clock seconds of the evaluation's forward passes."""

    batches: int
    sequences: int
    real_tokens: int
    supervised_tokens: int


class MemoryReading(Frozen):
    """Memory of one rank at the end of a step."""

    step: int
    """Number of optimizer steps before the reading."""

    host_bytes: int | None = None
    """Resident memory of the process in bytes; null if unreadable."""

    device_allocated_bytes: int | None = None
    """Bytes that tensors hold on the GPU; null if torch uses no GPU."""


class LearningCurve(Frozen):
    """Learning curve of one rank, from evaluations and steps outside the measured window."""

    evaluations: tuple[Evaluation, ...] = ()
    """Evaluations on held-out samples: before training, after the window, between `steps`."""

    steps: tuple[Sample, ...] = ()
    """Optimizer steps after the measured window; evaluations are not in their seconds."""

    memory: tuple[MemoryReading, ...] = ()
    """Memory at the end of each step of `steps`."""


class SeenWindow(Frozen):
    """Lower and upper bound, by the parent's clock, of the seconds that a rank's window took."""

    rank: int
    """Global rank."""

    at_least: float
    """Lower bound of the window's duration; 0 if the parent could not time it."""

    at_most: float | None = None
    """Upper bound of the window's duration; null if the parent could not time it."""


class Node(Frozen):
    """Machine of a rank, as the agent that started the rank describes it."""

    rank: int
    """Global rank."""

    name: str
    """Name of the machine given by the launcher, else its own."""

    address: str
    """Address by which the machine reached the parent."""

    interface: str | None = None
    """Network interface with that address; null if there is none."""

    link_megabits_per_second: int | None = None
    """Link speed of that interface in Mbit/s; null if the system does not state it."""

    cores: int
    """Cores that the agent may use."""

    affinity: tuple[int, ...] = ()
    """Numbers of the cores that the agent may use; empty if the system does not state them."""

    memory_bytes: int
    gpus: tuple[str, ...] = ()
    """Names of the machine's GPUs, by index."""

    port: int | None = None
    """Port on rank 0's machine at which the ranks of this run met."""


class RankResult(Frozen):
    """Result of one rank, the content of `rank<N>.json`."""

    schema_version: int = SCHEMA_VERSION

    rank: int
    """Global rank, from 0."""

    status: Status

    reasons: tuple[str, ...] = ()
    """Reasons for a status other than `ok`, a sentence each."""

    phase: str = ""
    """Phase in which the rank ended, if it ended badly."""

    error: Failure | None = None

    device: Device | None = None
    """Device that the rank used; null if the rank ended before it had one."""

    window: Window | None = None
    """Measured window; null if the run ended before it."""

    learning: LearningCurve | None = None
    """Evaluations on held-out data, and steps after the window; null without both."""

    steps_after: tuple[Sample, ...] = ()
    """Whole steps after the window and the learning curve, each synchronized, numbered from 0: a
    check of the window's. Empty if nothing is trained, and without torch."""

    phases: PhaseSplit | None = None
    """Time of a step by phase; null if the engine marks no phases."""

    communication: Communication | None = None
    """Collectives of a step; null with one rank, and without torch."""

    profiled_steps: int = 0
    """Number of final steps for plugins outside the experiment, such as a profile; no figure here
    includes them."""

    checked_steps: int = 0
    """Steps after the window in which the model was read back again, in no figure here."""

    observed_steps: int = 0
    """Number of final steps that plugins observed; only their metrics include them."""

    workload: Workload | None = None
    """Matmuls and attention of the model for a token; null without torch."""

    workload_reason: str = ""
    """Reason why the workload is not known, or why a plugin declared it."""

    metrics: tuple[Metric, ...] = ()
    effective: EffectiveConfiguration = EffectiveConfiguration()

    update: WeightUpdate | None = None
    """Change of the trained weights; null without torch, or if the window was not reached."""

    answers: Answers | None = None
    """Generated answers; null if the model was trained."""

    evidence: dict[str, JsonValue] = Field(default_factory=dict)
    """JSON by which each plugin shows that it acted, by plugin."""

    stages: tuple[Stage, ...] = ()


class PluginVersion(Frozen):
    """An active plugin, with its distribution and version."""

    name: str
    distribution: str

    version: str
    """Version of the plugin's distribution; with commit and dirty hash in a checkout."""


class Provenance(Frozen):
    """Origin of a row: measured by this program, or imported from a file of another one."""

    origin: Literal["measured", "exported", "imported"] = "measured"
    """Origin of the row; `exported` rows come from another store's export, which states that they
    were measured."""

    format: str = ""
    """Format of the imported file."""

    file: str = ""
    """Name of the imported file; for a measured run, the bundle that it repeats."""

    sha256: str = ""
    """SHA-256 of the file's content in hex; for a bundle, the digest in its manifest."""

    imported_at: str = ""
    """Time of the import: UTC, ISO 8601."""

    machine: str = ""
    """Description of the machine or device in the file."""

    stated: tuple[str, ...] = ()
    """Dotted scenario keys that the file states; the other settings of the stored scenario are
    unknown."""

    corrections: tuple[str, ...] = ()
    """Values that the import changed or computed, a sentence each."""

    series: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)
    """Raw numbers of the file by name, such as `seconds_per_call` or `loss`."""


class Result(Frozen):
    """Result of one attempt of one run: the stored row, which is never overwritten."""

    schema_version: int = Field(SCHEMA_VERSION, ge=0, lt=2**31)

    run_id: str
    """Unique name of the attempt."""

    session: str
    """Id of the session, one `accel-bench run`; only runs of one session are paired."""

    experiment: Experiment

    round: int = Field(ge=0, lt=2**63)
    """Round, from 0; runs of one round are paired. A database holds integers below 2**63."""

    position: int = Field(ge=0, lt=2**63)
    """Position within the round, from 0."""

    attempt: int = Field(0, ge=0, lt=2**63)
    """Number of the attempt, from 0; only the last attempt counts."""

    replaces: str = ""
    """Session whose run of the same round no longer counts, because this run replaces it."""

    status: Status
    reasons: tuple[str, ...] = ()
    phase: str = ""

    started_at: str
    """Start time: UTC, ISO 8601."""

    seconds: float
    """Wall-clock seconds of the whole attempt."""

    ranks: tuple[RankResult, ...] = ()

    metrics: tuple[Metric, ...] = ()
    """Metrics that observers measured from outside, in the parent."""

    seen_windows: tuple[SeenWindow, ...] = ()
    """Bounds of each rank's window by the parent's clock; empty for rows of earlier versions."""

    exits: tuple[str, ...] = ()
    """Ending of each rank's process: `exit 0`, `SIGKILL` ..."""

    plugins: tuple[PluginVersion, ...] = ()

    loss_tolerances: dict[str, float] = Field(default_factory=dict)
    """Loss difference that each plugin of the stack declares to allow by design."""

    loss_tolerance: float | None = None
    """Largest value of `loss_tolerances`; rows of earlier versions have it alone."""

    update_tolerances: dict[str, float] = Field(default_factory=dict)
    """Distance from the baseline's update that each plugin allows by design, without plugins that
    declare none."""

    other_optimizers: tuple[str, ...] = ()
    """Plugins whose optimizer differs from the scenario's by design."""

    output_tolerances: dict[str, float] = Field(default_factory=dict)
    """Share of generated tokens that each plugin lets differ from the baseline's by design, without
    plugins that declare none."""

    update_distances: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Exact L2 norms of the difference between each tensor's change in this run and in another run
    of the round, by that run's id; stored with the later of stack and baseline."""

    machine: Machine | None = None
    nodes: tuple[Node, ...] = ()
    """Node of each rank that an agent started; empty for ranks on the parent's machine."""

    state_before: MachineState | None = None
    state_after: MachineState | None = None
    """State of the machine after the last rank had ended."""

    command: tuple[str, ...] = ()
    """Command line that repeats this run."""

    folder: str = ""
    """Folder of the attempt, relative to the results folder."""

    log_tail: str = ""
    """Last lines of the log of the rank that failed."""

    provenance: Provenance = Provenance()
    """Origin of the row; an imported row has its figures in `metrics`, and no ranks."""

    @property
    def imported(self) -> bool:
        """True if another program measured the row; no verdict, ranking or cost uses it."""
        return self.provenance.origin == "imported"

    @property
    def data_ranks(self) -> tuple[RankResult, ...]:
        """First rank of each group that computes the same batches; all ranks if each takes its own
        batches. The samples, tokens and losses of these ranks add up to the figures of the run."""
        scenario = self.experiment.scenario
        size = scenario.world_size // scenario.data_parallel
        return tuple(rank for rank in self.ranks if rank.rank % size == 0)
