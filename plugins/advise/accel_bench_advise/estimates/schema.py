"""What a simulation of a training step is asked, and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from accel_bench.analysis.schema import Document
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
"""What memory is used for. Activations are what the forward pass made, temporaries what the
backward pass and the optimizer made for themselves, recomputed activations included."""


class BatchShape(Frozen):
    """One micro-batch: samples x tokens of each."""

    micro_batch_size: PositiveInt
    sequence_length: PositiveInt

    @classmethod
    def of(cls, scenario: Scenario) -> BatchShape:
        """Return the micro-batch of a scenario."""
        return cls(
            micro_batch_size=scenario.train.micro_batch_size,
            sequence_length=scenario.data.sequence_length,
        )


class SimulationRequest(Frozen):
    """One line to the simulating process."""

    experiment: Experiment
    """What to simulate, as one rank of it runs."""

    shape: BatchShape
    """Micro-batch to simulate in place of the experiment's own."""

    device: Literal["cpu", "cuda"]
    """Device whose defaults the libraries take, such as the optimizer's implementation."""

    trust_remote_code: bool = False
    """True if the model may bring code of its own."""


class Operations(Frozen):
    """Equal operations of a step: the same work on the same number of bytes."""

    dtype: str
    """Dtype of the operands of a matrix product; empty for what is no product."""

    flops: int
    """Floating-point operations of each, in matrix products alone."""

    moved_bytes: int
    """Bytes that each reads and writes."""

    count: int
    """How many there are in an optimizer step."""


class Footprint(Frozen):
    """What one optimizer step of a micro-batch shape takes on one device."""

    parts: dict[Part, int]
    """Most bytes of tensors that are alive at once, in steps after the first, by their use."""

    phase: str
    """Part of the step in which that moment is: forward, backward or optimizer."""

    operations: tuple[Operations, ...]
    """Work of an optimizer step, by kind."""

    processed: int
    """Tokens, or what else the task counts, of the micro-batch, padding included."""


class Simulation(Frozen):
    """One line from the simulating process."""

    footprint: Footprint | None = None
    """What the step takes; null where it cannot be simulated."""

    parameters: int = 0
    """Parameters of the model with its adapter."""

    trained_parameters: int = 0
    """Parameters that receive a gradient."""

    longest_learned: int | None = None
    """Longest sequence that learned positions allow; null where they are rotary."""

    longest_published: int | None = None
    """Longest sequence that the model was made for; null where its configuration has none."""

    problem: str = ""
    """Why it cannot be simulated; empty where it was."""


Fit: TypeAlias = Literal["fits", "may fit", "does not fit"]
"""Answer to whether a device holds it; `may fit` where the device's size lies within the span."""


class Span(Frozen):
    """An estimate between two ends."""

    low: float
    high: float

    def times(self, factor: float) -> Span:
        """Return both ends multiplied by a positive factor."""
        return Span(low=self.low * factor, high=self.high * factor)

    def inverted(self, numerator: float = 1.0) -> Span:
        """Return `numerator` divided by both ends, in order."""
        return Span(low=numerator / self.high, high=numerator / self.low)

    def fit(self, device_bytes: int | None) -> Fit | None:
        """Return whether a device holds so many bytes; None where its size is unknown."""
        if device_bytes is None:
            return None
        if self.high <= device_bytes:
            return "fits"
        return "may fit" if self.low <= device_bytes else "does not fit"

    def text(self, form: Callable[[float], str]) -> str:
        """Return `1.2 to 3.4` in a form, and a span of one value as that value."""
        low, high = form(self.low), form(self.high)
        return low if low == high else f"{low} to {high}"


class MemoryEstimate(Frozen):
    """What one device has to hold."""

    parts: dict[Part, float]
    """Bytes of tensors at the peak of a step, by what they are for."""

    tensor_bytes: float
    """Their sum: what torch calls allocated."""

    phase: str
    """Part of the step in which the peak is."""

    needed_bytes: Span
    """With what a simulation does not see: the device's context, kernels' workspaces, gaps."""

    device_bytes: int | None
    """Memory of the device; null where it is not known."""

    fit: Fit | None
    """Answer to whether that suffices; null where it is not known."""


class Limit(Frozen):
    """The largest value of a setting that surely fits, all else as it is."""

    value: int
    """The largest value; 0 where none fits."""

    bounded_by: Literal["memory", "model", "search"]
    """What ends there: memory, the model's learned positions, or the search."""


class SpeedEstimate(Frozen):
    """How fast steps are, as a span."""

    tokens_per_second: Span
    """Processed tokens, or what else the task counts, of all devices, padding included; links
    between devices cost nothing."""

    step_seconds: Span

    basis: str
    """What the span comes from."""

    calibrated_by: tuple[str, ...] = ()
    """Stored experiments that the span was measured with; empty for the roofline alone."""


class CostEstimate(Frozen):
    """What training costs at a price of the table."""

    usd_per_hour: float
    """Dollars for an hour of all machines."""

    price: str
    """Whose price it is, and of when."""

    usd_per_million_tokens: Span
    usd: Span | None
    """Dollars for the tokens that were given; null where none were."""


class Alternative(Frozen):
    """A change with which it fits."""

    settings: dict[str, JsonValue]
    """Dotted keys and values; empty for another device."""

    gpu: str
    """Device that it fits on."""

    needed_bytes: Span


class LengthSummary(Frozen):
    """What a file of sample lengths says."""

    samples: int

    tokens: int
    """Of all samples, without padding and before any is cut."""

    median: int
    longest: int

    percentile_95: int
    """Context length that 95 % of the samples do not exceed."""

    sequence_length: int
    """What was taken for `data.sequence_length`."""

    truncated_fraction: float
    """Samples that are longer."""

    padding_fraction: float
    """Of tokens, where every sample is padded to that length."""


class Estimate(Frozen):
    """One experiment, estimated: nothing in it was measured."""

    kind: Literal["estimated"] = "estimated"
    """Rows of this kind never stand among measured ones."""

    scenario: str
    experiment_id: str
    stack: str
    sweep: dict[str, JsonValue]

    tag: str = ""
    """Name of the sweep point; empty where nothing is swept."""

    gpu: str
    """Device that it is estimated for."""

    devices: int

    shape: BatchShape
    """Micro-batch of one device."""

    counts: str = TOKENS
    """What the speed is of, and what is paid for: what the task counts."""

    parameters: int = 0
    trained_parameters: int = 0
    memory: MemoryEstimate | None = None
    largest_micro_batch_size: Limit | None = None
    longest_sequence_length: Limit | None = None
    speed: SpeedEstimate | None = None

    for_tokens: float | None = None
    """Tokens to train on, padding included: those that were given, or those of the lengths."""

    hours: Span | None = None
    """Hours for those tokens."""

    cost: CostEstimate | None = None
    nearest: Alternative | None = None
    """The nearest thing that fits, where this does not."""

    answer: str = ""
    """Answer in a sentence."""

    notes: tuple[str, ...] = ()

    problem: str = ""
    """Why there is no estimate."""


class EstimateDocument(Document):
    """What `accel-bench estimate --format json` prints."""

    for_tokens: float | None
    """Tokens to train on that were given, padding included; null without."""

    lengths: LengthSummary | None
    estimates: tuple[Estimate, ...]
