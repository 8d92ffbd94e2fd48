"""Requests and results of the simulation of a training step, and estimates made from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from accel_bench.analysis.schema import Document
from accel_bench.analysis.statistics.verdict import Finding
from accel_bench.analysis.wording import finding_words
from accel_bench.documents.base import Frozen, JsonValue, PositiveInt
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.uses import TOKENS

Part: TypeAlias = Literal[
    "weights",
    "quantized weights",
    "gradients",
    "optimizer state",
    "activations",
    "logits and loss",
    "temporaries",
]
"""Uses of memory. Activations are tensors of the forward pass; temporaries are tensors of the
backward pass and the optimizer, recomputed activations included."""


class BatchShape(Frozen):
    """Shape of one micro-batch: samples x tokens per sample."""

    micro_batch_size: PositiveInt
    sequence_length: PositiveInt

    @classmethod
    def of(cls, scenario: Scenario) -> BatchShape:
        """Return the micro-batch shape of a scenario."""
        return cls(
            micro_batch_size=scenario.train.micro_batch_size,
            sequence_length=scenario.data.sequence_length,
        )


class SimulationRequest(Frozen):
    """A request to the simulating process, one line of JSON."""

    experiment: Experiment
    """Experiment to simulate, as one rank runs it."""

    shape: BatchShape
    """Micro-batch shape to simulate in place of the experiment's."""

    device: Literal["cpu", "cuda"]
    """Device type that libraries choose defaults for, such as the optimizer's implementation."""

    trust_remote_code: bool = False
    """True if the model may execute code from its repository."""


class Operations(Frozen):
    """Operations of a step that are alike: the same kind on the same number of bytes."""

    dtype: str
    """Dtype of a matrix product's operands; empty for other operations."""

    flops: int
    """Floating-point operations of each operation; only matrix products have any."""

    moved_bytes: int
    """Bytes that each operation reads and writes."""

    count: int
    """Number of these operations in an optimizer step."""


class Footprint(Frozen):
    """Memory and work of one optimizer step of a micro-batch shape on one device."""

    parts: dict[Part, int]
    """Bytes of tensors at the peak, by use, in steps after the first."""

    phase: str
    """Phase of the step with the peak: forward, backward or optimizer."""

    operations: tuple[Operations, ...]
    """Operations of an optimizer step, by kind."""

    processed: int
    """Tokens, or another unit that the task counts, of the micro-batch, padding included."""


class Simulation(Frozen):
    """A response of the simulating process, one line of JSON."""

    footprint: Footprint | None = None
    """Footprint of the step; null if it cannot be simulated."""

    parameters: int = 0
    """Number of parameters of the model with its adapter."""

    trained_parameters: int = 0
    """Number of parameters that receive a gradient."""

    longest_learned: int | None = None
    """Longest sequence of learned position embeddings; null for rotary positions."""

    longest_published: int | None = None
    """Longest sequence that the model was published for; null if its configuration has none."""

    problem: str = ""
    """Reason why the step cannot be simulated; empty if it was."""


FITS = finding_words("fits", "does not fit", "may fit")
"""Words for the verdicts on fitting a device, whose memory may lie within the span."""


class Bounds(Frozen):
    """Lower and upper end of an estimated number."""

    low: float
    high: float

    def times(self, factor: float) -> Bounds:
        """Return both ends multiplied by a positive factor."""
        return Bounds(low=self.low * factor, high=self.high * factor)

    def inverted(self, numerator: float = 1.0) -> Bounds:
        """Return `numerator` divided by both ends, the lower quotient first."""
        return Bounds(low=numerator / self.high, high=numerator / self.low)

    def within(self, limit: float | None) -> Finding | None:
        """Return the verdict on whether the number is at most a limit, such as a device's bytes.

        It is `inconclusive` if only the lower end is at most the limit. None if there is no limit.
        """
        if limit is None:
            return None
        if self.high <= limit:
            return "holds"
        return "inconclusive" if self.low <= limit else "does not hold"

    def text(self, form: Callable[[float], str]) -> str:
        """Return text such as `1.2 to 3.4`, or one value if both ends are equal.

        `form` turns a value into text.
        """
        low, high = form(self.low), form(self.high)
        return low if low == high else f"{low} to {high}"


class MemoryEstimate(Frozen):
    """Estimated memory of one device."""

    parts: dict[Part, float]
    """Bytes of tensors at the peak of a step, by use."""

    tensor_bytes: float
    """Sum of `parts`: the allocated memory of torch."""

    phase: str
    """Phase of the step with the peak."""

    needed_bytes: Bounds
    """Bytes needed, including the device's context, kernels' workspaces and fragmentation."""

    device_bytes: int | None
    """Memory of the device; null if unknown."""

    fit: Finding | None
    """Verdict on fitting the device; null if its memory is unknown."""


class Limit(Frozen):
    """Largest value of a setting that surely fits, with all other settings unchanged."""

    value: int
    """Largest value; 0 if none fits."""

    bounded_by: Literal["memory", "model", "search"]
    """Bound of the value: memory, the model's learned positions, or the end of the search."""


class SpeedEstimate(Frozen):
    """Estimated speed of training, with a lower and an upper end."""

    tokens_per_second: Bounds
    """Processed tokens per second, or another unit that the task counts, of all devices, padding
    included; communication between devices costs nothing."""

    step_seconds: Bounds

    basis: str
    """Method of the speed estimate: roofline, or roofline calibrated by stored runs."""

    calibrated_by: tuple[str, ...] = ()
    """Stored experiments that calibrate the span; empty for the roofline alone."""


class CostEstimate(Frozen):
    """Estimated cost of training at a price of the table."""

    usd_per_hour: float
    """Dollars per hour of all machines."""

    price: str
    """Provider, instance and date of the price."""

    usd_per_million_tokens: Bounds
    usd: Bounds | None
    """Dollars for the given tokens; null if none were given."""


class Alternative(Frozen):
    """A change of settings or device with which an experiment fits in memory."""

    settings: dict[str, JsonValue]
    """Changed settings by dotted key; empty for another device."""

    gpu: str
    """Device on which the changed experiment fits."""

    needed_bytes: Bounds


class LengthSummary(Frozen):
    """Summary of a file of sample lengths."""

    samples: int

    tokens: int
    """Tokens of all samples, before truncation and padding."""

    median: int
    longest: int

    percentile_95: int
    """95th percentile of the lengths."""

    sequence_length: int
    """Sequence length chosen for `data.sequence_length`."""

    truncated_fraction: float
    """Fraction of samples that are truncated."""

    padding_fraction: float
    """Fraction of padding tokens if every sample is padded to that length."""


class Estimate(Frozen):
    """Estimate of one experiment, without any measurement."""

    kind: Literal["estimated"] = "estimated"
    """Marker that separates estimated rows from measured ones."""

    scenario: str
    experiment_id: str
    stack: str
    sweep: dict[str, JsonValue]

    tag: str = ""
    """Name of the sweep point; empty without a sweep."""

    gpu: str
    """Device that the estimate is for."""

    devices: int

    shape: BatchShape
    """Micro-batch shape of one device."""

    counts: str = TOKENS
    """Unit of speed and cost: the unit that the task counts."""

    parameters: int = 0
    trained_parameters: int = 0
    memory: MemoryEstimate | None = None
    largest_micro_batch_size: Limit | None = None
    longest_sequence_length: Limit | None = None
    speed: SpeedEstimate | None = None

    for_tokens: float | None = None
    """Number of tokens to train on, padding included, as given or from the lengths."""

    hours: Bounds | None = None
    """Hours of training for `for_tokens` tokens."""

    cost: CostEstimate | None = None
    nearest: Alternative | None = None
    """Nearest change that fits; null if the experiment fits."""

    answer: str = ""
    """The estimate in a sentence."""

    notes: tuple[str, ...] = ()

    problem: str = ""
    """Reason why there is no estimate; empty if there is one."""


class EstimateDocument(Document):
    """The JSON document of `accel-bench estimate`."""

    for_tokens: float | None
    """Tokens to train on that were given, padding included; null without."""

    lengths: LengthSummary | None
    estimates: tuple[Estimate, ...]
