"""What a recommendation is asked, and what it answers."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from accel_bench.analysis.schema import Document, StackRow
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.documents.base import Described, Frozen, JsonValue
from accel_bench_advise.estimates.schema import Fit, LengthSummary, Span

AS_FAST = Interval(median=1.0, low=1.0, high=1.0)
"""How fast the best does the job, over itself."""

Certainty: TypeAlias = Literal["measured", "open", "estimated", "cannot tell"]
"""What an answer rests on; `open` is measured, and not surely better than the runner-up."""

Fate: TypeAlias = Literal[
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
"""What became of a stack: why it was not recommended, if it was not."""

MemoryKind: TypeAlias = Literal["rss", "nvml", "reserved", "allocated"]
"""How memory was measured, as `MemoryFigures` names it."""

Answer: TypeAlias = Literal["yes", "perhaps", "no"]
"""Answer to whether a limit is kept; `perhaps` where it lies within the span."""


Mode: TypeAlias = Literal["train", "inference"]


class RecommendRequest(Described):
    """What `accel-bench recommend --json` reads."""

    model: str = Field(min_length=1)
    """Name of the catalog, local directory, or hub id, as scenarios name it."""

    mode: Mode = "train"
    """What the model is to do; of inference, stored runs alone are looked at."""

    gpu: str | None = None
    """Device of `accel-bench catalog devices`; null looks at all that have stored runs."""

    budget_usd: float | None = Field(None, gt=0, allow_inf_nan=False)
    """US dollars that the job may cost."""

    deadline_hours: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Hours that the job may take."""

    tokens: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Real tokens to train on, padding not counted; null takes those of `lengths`, once."""

    lengths: tuple[int, ...] | None = Field(None, min_length=1)
    """Length of each sample in tokens."""

    at_most: dict[str, float] = Field(default_factory=dict)
    """Largest value of metrics of the engine, by name, such as `request_latency_p99` in
    milliseconds; of the worst run of a stack."""

    scenario: str = "quickstart"
    """Scenario file, or a shipped one: what would be run where nothing is stored."""

    where: tuple[str, ...] = ()
    """Conditions on stored runs, as `accel-bench results list --where` takes them."""


class Evidence(Frozen):
    """Stored runs that a statement rests on."""

    experiment_id: str
    run_ids: tuple[str, ...]
    sessions: tuple[str, ...]

    origin: Literal["measured", "exported"]
    """`exported`: another store's export says that it was measured there."""


class BreakEven(Frozen):
    """After how many optimizer steps what a stack costs once is won back."""

    against: str
    """Stack without that cost."""

    extra_seconds: float
    """What it costs once, beyond the other: mean over rounds."""

    saved_seconds_per_step: float
    """What it saves in each step: mean over rounds; negative where it is slower."""

    steps: float | None
    """Steps after which it pays; 0 where it costs nothing more, null where no step is faster."""

    low: float | None
    """Lower end of the 95 % interval (Fieller's); null where it is not known."""

    high: float | None
    """Upper end; null where it may never pay, or is not known."""

    job_steps: float | None = None
    """Steps of the job; null where its tokens are not known."""

    pays: Answer | None = None
    """Answer to whether it pays in the job; null without its steps."""

    sentence: str = ""


class MemoryUse(Frozen):
    """Memory that the rank that needed most had at its peak."""

    peak_bytes: int
    kind: MemoryKind
    """Resident memory of a process on a CPU; on a GPU what the driver sees, else what torch's
    allocator holds, else what tensors hold."""

    device_bytes: int | None
    """Size of the device; of the host for a process on a CPU."""

    headroom: float | None
    """Fraction of the device that the peak leaves; null where its size is not known."""


class Considered(StackRow):
    """A stack at a sweep point, as it was measured."""

    changes: str
    """What it adds to the scenario and changes in it."""

    device: str
    tokens_per_second: Interval | None = None
    """Real tokens per second of all devices."""

    request_seconds: Interval | None = None
    """Latency of the median request, where requests arrive at a rate."""

    slowest_requests_ms: float | None = None
    """Milliseconds in which 99 of 100 requests were answered, of the worst run."""

    start_seconds: float | None = None
    """Seconds from the start of the process to the first usual step, compilation included."""

    hours: Interval | None = None
    """Hours for the tokens, with the start; null where they are not known."""

    ratio: Interval | None = None
    """Speed over the baseline's at its sweep point, with a 95 % interval."""

    loss: str
    """Verdict on its loss, with the reason."""

    update: str
    """Verdict on the change of its weights, with the reason."""

    output: str = ""
    """Verdict on what it answers, with the reason; empty where it was trained."""

    memory: MemoryUse | None = None
    evidence: Evidence


class Other(Frozen):
    """A stack that is not recommended, and why."""

    fate: Fate
    why: str

    of_the_best: Interval | None = None
    """How fast it does the job, over the recommended one; null where that is not known."""

    row: Considered


class Offer(Frozen):
    """A device that could do the job."""

    kind: Literal["measured", "estimated"]
    device: str
    devices: int
    stack: str

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Changes with which it fits, where an estimate needs some."""

    tokens_per_second: Span | None = None
    request_seconds: Span | None = None
    """Latency of the median request, where requests arrive at a rate."""

    hours: Span | None = None
    usd: Span | None = None
    usd_per_hour: float | None = None
    price: str = ""
    within_budget: Answer | None = None
    within_deadline: Answer | None = None

    fit: str = ""
    """Sentence that says if it fits."""

    problem: str = ""
    """Why it cannot do the job, or why that is not known; empty where it can."""


class NextRun(Frozen):
    """A command that would answer what the store cannot."""

    why: str
    command: str
    minutes: float | None = None
    """By what earlier runs here took; null where not all of it has run before."""

    usd: float | None = None
    """At the cheapest price of such a device; null where none is known."""


class Recommendation(Document):
    """What `accel-bench recommend --format json` prints."""

    request: RecommendRequest
    answer: str
    certainty: Certainty
    recommended: Considered | None = None
    """The stored stack that is recommended; null where nothing stored can be."""

    offer: Offer | None = None
    """The device that is recommended."""

    runner_up: Other | None = None
    others: tuple[Other, ...] = ()
    """Every other stack that was looked at: what is not to be changed, and why."""

    kept: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the training, which the recommendation leaves as they are."""

    break_even: tuple[BreakEven, ...] = ()
    offers: tuple[Offer, ...] = ()
    """Devices, the cheapest first."""

    lengths: LengthSummary | None = None
    tokens: float | None = None
    """Real tokens of the job."""

    advice: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Stored rows of the model that are no evidence here, and why."""

    next_runs: tuple[NextRun, ...] = ()


class FittingModel(Frozen):
    """A model of the catalog on a device, estimated."""

    model: str
    parameters: int
    fit: Fit | None
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Changes to the scenario with which it fits; empty where it fits as it is, or never."""

    needed_bytes: Span | None = None
    tokens_per_second: Span | None = None
    usd_per_million_tokens: Span | None = None
    why: str = ""
    """Why it does not fit, or why that is not known."""


class FittingModels(Document):
    """What `accel-bench recommend --gpu GPU --format json` prints."""

    kind: Literal["estimated"] = "estimated"
    gpu: str
    scenario: str
    """Work that the models are trained with."""

    models: tuple[FittingModel, ...]
    """The largest that fits first, then what does not."""
