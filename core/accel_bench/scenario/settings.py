"""Settings of a scenario: training, resources, measurement and tags."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from accel_bench.documents.base import Described

MAXIMUM_SAMPLES = 100_000
"""Measured steps times ranks, warm-up and discarded windows included: a stored run holds no more.
"""

LONGEST_WARMUP = 30
"""Steps after which `auto` stops looking for a plateau: on a noisy machine there is none to find.
"""

PACE_STEPS = 2
"""Whole steps that a run takes after its window at least, to compare them with those in it."""

MOST_DISCARDED = 2
"""Unstable windows that are measured again; the one after them is kept as it is."""

MAXIMUM_THREADS = 4096
"""Threads of a process; no machine has as many cores."""


REPORTED_MEMORY = 0.93
"""Fraction of its nominal memory that a device reports at least: error correction takes up to a
sixteenth of it, the driver a little more."""

MASTER_WEIGHTS = "bf16-master-weights"
"""The precision that computes with copies of the weights."""


Samples: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
"""Samples of a micro-batch."""


class Train(Described):
    """Settings of training, per device where a size is meant."""

    micro_batch_size: Samples | Literal["auto"] = 1
    """Samples in one forward pass, per device; `auto`: the largest power of two with which every
    stack fits in memory, by an estimate and a trial step before round 1."""

    gradient_accumulation: int = Field(1, ge=1, le=1_000_000)
    """Forward passes in one optimizer step."""

    global_batch_size: int = Field(1, ge=1, le=1_000_000_000)
    """Samples in one optimizer step over all devices: any two of the three give the third. Devices
    that compute one batch together (`resources.data_parallel`) count once."""

    precision: Literal["as-is", "bf16-autocast", "fp16-autocast", "bf16-master-weights"] = "as-is"
    """How matmuls compute; `as-is` means in the dtype of the weights.

    `bf16-master-weights` computes with bfloat16 copies of weights that are kept, and updated, in
    `model.dtype`; that takes a plugin which makes the copies."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them (non-reentrant)."""

    max_grad_norm: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Clip gradients to this total norm; null does not clip."""

    learning_rate: float = Field(1e-3, ge=0, allow_inf_nan=False)
    """Constant learning rate."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of random weights, adapters and dropout; the same for every stack."""

    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """torch.set_float32_matmul_precision: whether float32 matmuls may use tf32 or bf16."""

    @property
    def keeps_master_weights(self) -> bool:
        """True if it computes with bfloat16 copies of the weights that are updated."""
        return self.precision == MASTER_WEIGHTS

    @property
    def work_dtype(self) -> Literal["bfloat16", "float16"] | None:
        """Dtype of matmuls where it is not that of the weights that are kept."""
        return "bfloat16" if self.keeps_master_weights else self.autocast_dtype

    @property
    def autocast_dtype(self) -> Literal["bfloat16", "float16"] | None:
        """Dtype of matmuls under autocast; None without it, when they compute in the weights'."""
        if self.precision in ("as-is", MASTER_WEIGHTS):
            return None
        return "bfloat16" if self.precision == "bf16-autocast" else "float16"


class SizedTrain(Train):
    """Settings of training with all sizes worked out."""

    micro_batch_size: Samples = 1
    """Samples in one forward pass, per device."""


class Resources(Described):
    """What one run may use."""

    device: str = Field("auto", pattern=r"^[a-z][a-z0-9_]{0,31}$")
    """`cpu`, `cuda`, `rocm`, `mps`, or a type that another distribution brings. `auto` is a GPU
    where there is one; the resolved scenario says which it was."""

    device_type: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9 .+-]{0,63}$")
    """Words of the name of every device, such as `l4`; null takes any. A launcher that submits asks
    for devices of that type."""

    device_memory_gib: int | None = Field(None, ge=1, le=100_000)
    """Memory that every device needs, as makers name it: 24, 48, 80. A device counts as one of 24
    when it reports at least 93 % of that. Null takes any."""

    devices: int = Field(1, ge=1, le=1024)
    """Devices on each node; one process each."""

    nodes: int = Field(1, ge=1, le=10_000)
    """Machines."""

    host_memory_gib: int | None = Field(None, ge=1, le=1_000_000)
    """Memory that each node needs beside that of its devices; null takes any."""

    first_node_host_memory_gib: int | None = Field(None, ge=1, le=1_000_000)
    """The same of the first node, whose rank 0 gathers checkpoints, where it differs from the
    others; null: as much as they."""

    environment: str = ""
    """Name of one of `environments`; empty runs with the packages of this program."""

    data_parallel: int | None = Field(None, ge=1, le=10_240_000)
    """Groups of devices that each take batches of their own; null: each device is one. The plugin
    that parallelizes sets it, where devices compute one batch together, as by tensor parallelism.
    """

    threads: int | None = Field(None, ge=1, le=MAXIMUM_THREADS)
    """CPU threads of each process; null divides the cores among the processes of a node."""

    @model_validator(mode="after")
    def _others_have_memory(self) -> Resources:
        if self.first_node_host_memory_gib is not None and self.host_memory_gib is None:
            raise ValueError("first_node_host_memory_gib needs host_memory_gib, of the other nodes")
        return self

    def host_memory_of(self, node: int) -> int | None:
        """Return the GiB of host memory that a node needs, by its number from 0."""
        first = None if node else self.first_node_host_memory_gib
        return first or self.host_memory_gib

    def lacks_memory(self, node: int, memory_bytes: int) -> str:
        """Return what is wrong with a node that has less host memory than it needs; else empty."""
        needed = self.host_memory_of(node)
        if needed is None or memory_bytes >= needed * 2**30:
            return ""
        key = "host_memory_gib" if needed == self.host_memory_gib else "first_node_host_memory_gib"
        return f"has {memory_bytes / 2**30:.1f} GiB of host memory, and resources.{key} is {needed}"

    @property
    def device_memory_bytes(self) -> int | None:
        """Bytes that a device of `device_memory_gib` reports at least; None where it takes any."""
        if self.device_memory_gib is None:
            return None
        return int(self.device_memory_gib * 2**30 * REPORTED_MEMORY)

    def is_device(self, name: str) -> bool:
        """Return whether a device of this name is of `device_type`: `NVIDIA L4` is an `l4`, and
        `NVIDIA L40S` is none."""
        words = name.lower().replace("-", " ").split()
        return set((self.device_type or "").lower().replace("-", " ").split()) <= set(words)


class PythonEnvironment(Described):
    """Python packages that runs can use in place of those that accel-bench is installed with."""

    python: str = ""
    """Interpreter of an environment that is there, with accel-bench and the plugins in it."""

    requirements: tuple[str, ...] = Field((), strict=False)
    """Requirements (PEP 508) of an environment that is built once, beside accel-bench and plugins.
    """

    index: str = ""
    """Further package index of the requirements: a URL, or PyTorch's name of one, such as `cu126`.
    """

    @model_validator(mode="after")
    def _is_there_or_built(self) -> PythonEnvironment:
        if bool(self.python) == bool(self.requirements):
            raise ValueError("give either `python`, a path, or `requirements`, a list")
        if self.python and self.index:
            raise ValueError("`index` belongs to `requirements`; `python` is an environment as is")
        return self


class Inference(Described):
    """What is asked of a model in `mode: inference`; all stacks answer the same requests."""

    batch_size: int = Field(1, ge=1, le=1_000_000)
    """Requests that are answered together on each device; with a `rate`, the most of them."""

    prompt_tokens: int = Field(128, ge=2, le=16_777_216)
    """Tokens of the longest prompt; shorter ones are padded to it, on the left."""

    new_tokens: int = Field(32, ge=2, le=1_000_000)
    """Tokens that are generated for each request; no token ends a text before."""

    decoding: Literal["greedy", "sampling"] = "greedy"
    """`greedy` takes the likeliest token; `sampling` draws from the whole distribution."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of what sampling draws, of the times at which requests arrive, and of the tokens with
    which prompts begin."""

    cache: Literal["dynamic", "static"] = "dynamic"
    """Kind of key-value cache: it grows by each token, or has its whole size from the start."""

    rate: float | None = Field(None, gt=0, le=1e9, allow_inf_nan=False)
    """Requests that arrive per second on each device, as a Poisson process that waits for no
    answer; null asks for the next ones when the last are answered."""

    assistant: str | None = Field(None, min_length=1)
    """A smaller model that drafts tokens for the model to verify, as `model.id` names one; null
    generates without."""


class Measure(Described):
    """How a run is measured."""

    warmup: Annotated[int, Field(ge=1, le=MAXIMUM_SAMPLES)] | Literal["auto"] = "auto"
    """Steps before the window; `auto` looks for a plateau in round 1 and freezes the largest count.
    """

    steps: int = Field(20, ge=1, le=MAXIMUM_SAMPLES)
    """Steps of the measured window."""

    phase_steps: int = Field(5, ge=0, le=10_000)
    """Steps after the window that are split into data, forward, backward and optimizer; 0: none. Of
    a training two whole steps are taken in any case."""

    rounds: Annotated[int, Field(ge=1, le=10_000)] | Literal["auto"] = 5
    """Rounds: each runs every stack once, in fresh processes. `auto`: 5, then up to 12 of the
    stacks whose verdict is still open, while there is time."""

    exact_update_bytes: int = Field(2**28, ge=0, le=2**40)
    """Largest file in which a run keeps the change of its trained weights, 4 bytes each, until it
    is compared with the baseline's; above it, and with 0, sketches alone are compared."""

    sync: Literal["window", "each"] = "window"
    """Device synchronisations by the harness: one for the window, or one each step (for parity)."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the order of stacks within the rounds."""

    timeout_seconds: float = Field(1800.0, gt=0, le=10_000_000, allow_inf_nan=False)
    """Wall-clock limit of one process, imports and warm-up included."""


class Evaluate(Described):
    """How the model is evaluated on the samples of `data.held_out`, and its learning curve."""

    batches: int | None = Field(None, ge=0, le=1_000_000)
    """Forward passes of an evaluation, per device; null takes all held-out samples, 0 evaluates
    nothing."""

    micro_batch_size: int | None = Field(None, ge=1, le=1_000_000)
    """Samples in one forward pass of an evaluation, per device; null: as many as in training."""

    steps: int = Field(0, ge=0, le=MAXIMUM_SAMPLES)
    """Steps of training after the measured window, for a learning curve; no speed is made of them.
    """

    every: int | None = Field(None, ge=1, le=MAXIMUM_SAMPLES)
    """Evaluate after each so many of these steps; null: before training, after the window and after
    the last step alone."""


class TagRule(Described):
    """What a tag is made of; without `keys` and `format` the values of all swept keys."""

    off: bool = False
    """No tags, and no folders for sweep points; written as `tag: off`."""

    keys: tuple[str, ...] | None = Field(None, min_length=1, strict=False)
    """Dotted keys whose values make the tag, swept or not."""

    format: str | None = Field(None, min_length=1, max_length=1000)
    """Text with dotted keys in braces, such as `{preset}.{world_size}.bs_{train.micro_batch_size}`.

    `preset` is the scenario that the file extends, else its own name; `world_size` the number of
    ranks; `stack` the stack's name.
    """

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, raw: Any) -> Any:
        """Turn `off`, of which other readers of YAML make false, into `{off: true}`."""
        if raw == "off" or raw is False:
            return {"off": True}
        if isinstance(raw, str):
            raise ValueError("write `off`, or a mapping with `keys` or with `format`")
        return raw

    @field_validator("format", mode="before")
    @classmethod
    def _is_text(cls, raw: Any) -> Any:
        if isinstance(raw, dict):
            raise ValueError("write the format in quotes; without, its braces are a mapping")
        return raw

    @model_validator(mode="after")
    def _one_of_both(self) -> TagRule:
        if self.keys is not None and self.format is not None:
            raise ValueError("give `keys` or `format`, not both")
        return self
