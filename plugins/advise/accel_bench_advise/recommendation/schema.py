"""Request and answer of a recommendation, as JSON documents."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, model_serializer

from accel_bench.analysis.schema import Document, StackRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import Finding
from accel_bench.documents.base import Described, Frozen, JsonValue
from accel_bench_advise.estimates.schema import Bounds, LengthSummary

AS_FAST = Interval(median=1.0, low=1.0, high=1.0)
"""Speed ratio of the best stack to itself."""

Certainty: TypeAlias = Literal["measured", "inconclusive", "estimated", "not tested"]
"""Basis of a recommendation; `inconclusive` is measured, but maybe no better than the runner-up."""

CandidateOutcome: TypeAlias = Literal[
    "recommended",
    "best, over the limits",
    "best, price not known",
    "runner-up",
    "no difference",
    "slower",
    "does not pay",
    "changes the training",
    "training not compared",
    "degraded",
    "does not fit",
    "saturated",
    "over a limit",
    "not usable",
]
"""Reason why a stack was not recommended, in a few words."""

MemoryKind: TypeAlias = Literal["rss", "nvml", "reserved", "allocated"]
"""Method of a memory measurement, as in `MemoryFigures`."""

Mode: TypeAlias = Literal["train", "inference"]


class RecommendRequest(Described):
    """A request, as `accel-bench recommend --json` reads it."""

    model: str = Field(min_length=1)
    """Name in the catalog, local directory, or hub id, as in scenarios."""

    mode: Mode = "train"
    """Use of the model; for inference, only stored runs are considered."""

    gpu: str | None = None
    """Device of `accel-bench catalog devices`; null considers all with stored runs."""

    budget_usd: float | None = Field(None, gt=0, allow_inf_nan=False)
    """US dollars that the job may cost."""

    deadline_hours: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Hours that the job may take."""

    tokens: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Real tokens to train on, padding not counted; null takes those of `lengths`, once."""

    lengths: tuple[int, ...] | None = Field(None, min_length=1)
    """Length of each sample in tokens."""

    at_most: dict[str, float] = Field(default_factory=dict)
    """Maximum of engine metrics by name, such as `request_latency_p99` in milliseconds, in the
    worst run of a stack."""

    scenario: str = "quickstart"
    """Scenario file, or name of a shipped one, to estimate if nothing is stored."""

    where: tuple[str, ...] = ()
    """Conditions on stored runs, as in `accel-bench results list --where`."""


class Evidence(Frozen):
    """Stored runs that support a statement."""

    experiment_id: str
    run_ids: tuple[str, ...]
    sessions: tuple[str, ...]

    origin: Literal["measured", "exported"]
    """Source of the runs; `exported` ones were imported from another store's export."""


class BreakEven(Frozen):
    """Number of optimizer steps after which a stack's longer start has paid off."""

    against: str
    """Name of the other stack, which starts sooner."""

    extra_seconds: float
    """Mean additional seconds of start over rounds."""

    saved_seconds_per_step: float
    """Mean seconds saved per step over rounds; negative if the stack is slower."""

    steps: float | None
    """Step of the break-even; 0 without additional start, null if no step is faster."""

    low: float | None
    """Lower end of the 95 % interval (Fieller's); null if unknown."""

    high: float | None
    """Upper end of the interval; null if unknown, or if the stack may never pay off."""

    job_steps: float | None = None
    """Steps of the job; null without a number of tokens."""

    pays: Finding | None = None
    """Verdict on whether the stack pays off within the job; null without the job's steps."""

    sentence: str = ""


class MemoryUse(Frozen):
    """Peak memory of the rank that needed the most."""

    peak_bytes: int
    kind: MemoryKind
    """Kind of memory: resident memory of a process on a CPU; on a GPU, in this order, the driver's
    figure, torch's reserved or allocated memory."""

    device_bytes: int | None
    """Memory of the device; of the host for a process on a CPU."""

    headroom: float | None
    """Free fraction of the device at the peak; null if its memory is unknown."""


class CandidateRow(StackRow):
    """A candidate as measured: a stack at a sweep point."""

    changes: str
    """Plugins and settings that the stack adds to the scenario."""

    device: str
    tokens_per_second: Interval | None = None
    """Real tokens per second of all devices."""

    request_seconds: Interval | None = None
    """Median latency in seconds of requests that arrive at a rate."""

    slowest_requests_ms: float | None = None
    """99th percentile of the request latency in milliseconds, in the worst run."""

    start_seconds: float | None = None
    """Seconds from the process's start to the first usual step, compilation included."""

    hours: Interval | None = None
    """Hours for the job's tokens, start included; null without a number of tokens."""

    ratio: Interval | None = None
    """Speed ratio to the baseline of its sweep point, with its verdict's interval."""

    loss: str
    """Verdict on the loss, with the reason."""

    update: str
    """Verdict on the update of the weights, with the reason."""

    output: str = ""
    """Verdict on generated output, with the reason; empty for training."""

    memory: MemoryUse | None = None
    evidence: Evidence


class OtherCandidate(Frozen):
    """A stack that is not recommended, with the reason."""

    outcome: CandidateOutcome
    why: str

    of_the_best: Interval | None = None
    """Speed ratio to the recommended stack; null if unknown."""

    row: CandidateRow


class Offer(Frozen):
    """A device that could do the job."""

    kind: Literal["measured", "estimated"]
    device: str
    devices: int
    stack: str

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Changed settings with which an estimate fits."""

    tokens_per_second: Bounds | None = None
    request_seconds: Bounds | None = None
    """Median latency in seconds of requests that arrive at a rate."""

    hours: Bounds | None = None
    usd: Bounds | None = None
    usd_per_hour: float | None = None
    price: str = ""
    within_budget: Finding | None = None
    within_deadline: Finding | None = None

    fit: str = ""
    """Sentence on whether the work fits the device."""

    problem: str = ""
    """Reason why the device cannot do the job, or why that is unknown; empty if it can."""


class NextRun(Frozen):
    """A command that would measure missing evidence."""

    why: str
    command: str
    minutes: float | None = None
    """Minutes by the duration of earlier runs; null without all of them."""

    usd: float | None = None
    """Dollars at the cheapest price of the device; null if unknown."""


class LeftOut(Frozen):
    """Stored rows that are no evidence for a request; `rows: reason` in JSON."""

    rows: str
    reason: str

    @model_serializer
    def text(self) -> str:
        """Return `rows: reason`, as it stands in JSON."""
        return f"{self.rows}: {self.reason}"


class Recommendation(Document):
    """The JSON document of `accel-bench recommend`."""

    request: RecommendRequest
    answer: str
    certainty: Certainty
    recommended: CandidateRow | None = None
    """Recommended stack; null if no stored stack can be recommended."""

    offer: Offer | None = None
    """Recommended device, with hours and dollars of the job."""

    runner_up: OtherCandidate | None = None
    others: tuple[OtherCandidate, ...] = ()
    """All other stacks, with the reasons."""

    kept: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings that the recommendation leaves unchanged."""

    break_even: tuple[BreakEven, ...] = ()
    offers: tuple[Offer, ...] = ()
    """Devices that could do the job, the cheapest first."""

    lengths: LengthSummary | None = None
    tokens: float | None = None
    """Real tokens of the job."""

    advice: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    """Stored rows of the model that are no evidence for the request."""

    next_runs: tuple[NextRun, ...] = ()


class FittingModel(Frozen):
    """Estimate of whether a catalog model fits a device, with its speed and cost."""

    model: str
    parameters: int
    fit: Finding | None
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Changed settings with which the model fits; empty if unchanged, or if it never fits."""

    needed_bytes: Bounds | None = None
    tokens_per_second: Bounds | None = None
    usd_per_million_tokens: Bounds | None = None
    why: str = ""
    """Reason why the model does not fit or cannot be estimated."""


class FittingModels(Document):
    """The JSON document of `accel-bench recommend --gpu GPU`."""

    kind: Literal["estimated"] = "estimated"
    gpu: str
    scenario: str
    """Scenario that the models are estimated with."""

    models: tuple[FittingModel, ...]
    """Models that fit, the largest first, then models that do not fit."""
