"""Settings of a scenario: training, resources, measurement and tags."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from accel_bench.documents.base import Described

MAXIMUM_SAMPLES = 100_000
"""Largest number of steps times ranks of a stored run, warm-up and discarded windows included."""

LONGEST_WARMUP = 30
"""Number of warm-up steps after which `auto` stops: on a noisy machine there is no plateau."""

PACE_STEPS = 2
"""Least number of whole steps after the window, for comparison with the window's."""

MOST_DISCARDED = 2
"""Largest number of unstable windows that are discarded; the next one is kept."""

MAXIMUM_THREADS = 4096
"""Largest number of threads of a process; no machine has as many cores."""


REPORTED_MEMORY = 0.93
"""Least fraction of nominal memory that a device reports: error correction takes up to a sixteenth,
the driver a little more."""

MASTER_WEIGHTS = "bf16-master-weights"
"""Value of `train.precision` that computes with copies of the weights."""


Samples: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
"""Number of samples in a micro-batch."""


class Train(Described):
    """Settings of training; sizes are per device unless stated otherwise."""

    micro_batch_size: Samples | Literal["auto"] = 1
    """Samples in one forward pass, per device; `auto`: the largest power of two with which every
    stack fits in memory, by an estimate and a trial step before round 1."""

    gradient_accumulation: int = Field(1, ge=1, le=1_000_000)
    """Forward passes in one optimizer step."""

    global_batch_size: int = Field(1, ge=1, le=1_000_000_000)
    """Samples in one optimizer step over all devices: two of the three sizes give the third.
    Devices that compute one batch together (`resources.data_parallel`) count once."""

    precision: Literal["as-is", "bf16-autocast", "fp16-autocast", "bf16-master-weights"] = "as-is"
    """Precision of matmuls; `as-is` is the dtype of the weights.

    `bf16-master-weights` computes with bfloat16 copies of weights that are kept, and updated, in
    `model.dtype`; it needs a plugin that makes the copies.
    """

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them (non-reentrant)."""

    max_grad_norm: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Total norm to which gradients are clipped; null does not clip."""

    learning_rate: float = Field(1e-3, ge=0, allow_inf_nan=False)
    """Constant learning rate."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of random weights, adapters and dropout, the same for every stack."""

    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Precision of float32 matmuls in torch: `highest` is exact, others allow tf32 or bf16."""

    @property
    def keeps_master_weights(self) -> bool:
        """True if training computes with bfloat16 copies of the updated weights."""
        return self.precision == MASTER_WEIGHTS

    @property
    def work_dtype(self) -> Literal["bfloat16", "float16"] | None:
        """Dtype of matmuls; None if it is the weights' dtype."""
        return "bfloat16" if self.keeps_master_weights else self.autocast_dtype

    @property
    def autocast_dtype(self) -> Literal["bfloat16", "float16"] | None:
        """Dtype of matmuls under autocast; None without autocast."""
        if self.precision in ("as-is", MASTER_WEIGHTS):
            return None
        return "bfloat16" if self.precision == "bf16-autocast" else "float16"


class SizedTrain(Train):
    """Settings of training with all sizes computed."""

    micro_batch_size: Samples = 1
    """Samples in one forward pass, per device."""


class Resources(Described):
    """Resources of one run."""

    device: str = Field("auto", pattern=r"^[a-z][a-z0-9_]{0,31}$")
    """Device type: `cpu`, `cuda`, `rocm`, `mps`, or one that another distribution adds. `auto` is a
    GPU if there is one; the resolved scenario states which."""

    device_type: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9 .+-]{0,63}$")
    """Words in the name of every device, such as `l4`; null takes any device. A launcher that
    submits jobs requests devices of this type."""

    device_memory_gib: int | None = Field(None, ge=1, le=100_000)
    """Nominal memory of every device in GiB: 24, 48, 80. A device of 24 GiB reports at least 93 %
    of that. Null takes any."""

    devices: int = Field(1, ge=1, le=1024)
    """Number of devices on each node, with one process each."""

    nodes: int = Field(1, ge=1, le=10_000)
    """Number of nodes (machines)."""

    devices_by_node: tuple[Annotated[int, Field(ge=1, le=1024)], ...] | None = Field(
        None, strict=False
    )
    """Number of devices on each node in order, where nodes differ, such as `[8, 4]`; it gives
    `nodes`, and `devices`, the largest number. Null: `devices` on each node."""

    host_memory_gib: int | None = Field(None, ge=1, le=1_000_000)
    """Host memory that each node needs, in GiB; null takes any."""

    first_node_host_memory_gib: int | None = Field(None, ge=1, le=1_000_000)
    """Host memory that the first node needs, in GiB, since its rank 0 gathers checkpoints; null: as
    much as the others."""

    environment: str = ""
    """Name of one of `environments`; empty runs with accel-bench's own packages."""

    data_parallel: int | None = Field(None, ge=1, le=10_240_000)
    """Number of groups of devices that each take batches of their own; null: one for each device.
    The plugin that parallelizes sets it if devices compute one batch together, as in tensor
    parallelism."""

    threads: int | None = Field(None, ge=1, le=MAXIMUM_THREADS)
    """CPU threads of each process; null divides the cores among the processes of a node."""

    backend: str | None = Field(None, pattern=r"^[a-z][a-z0-9_]{0,31}$")
    """Backend of the process group for tensors on the devices: `nccl`, `gloo`, `ucc`, `mpi`, or
    another of torch's; null takes the device type's own."""

    @model_validator(mode="after")
    def _others_have_memory(self) -> Resources:
        if self.first_node_host_memory_gib is not None and self.host_memory_gib is None:
            raise ValueError("first_node_host_memory_gib needs host_memory_gib, of the other nodes")
        return self

    @model_validator(mode="after")
    def _nodes_differ(self) -> Resources:
        listed = self.devices_by_node
        if listed is not None and len({*listed}) < 2:
            raise ValueError("devices_by_node is for nodes that differ; else set devices and nodes")
        if listed is not None and (max(listed), len(listed)) != (self.devices, self.nodes):
            raise ValueError(
                f"devices_by_node {[*listed]} has {len(listed)} nodes with at most {max(listed)} "
                "devices; leave devices and nodes out, or set them to that"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, raw: Any) -> Any:
        """Set `devices` and `nodes` from `devices_by_node`, if that is given."""
        listed = raw.get("devices_by_node") if isinstance(raw, dict) else None
        if not (isinstance(listed, list | tuple) and listed and set(map(type, listed)) == {int}):
            return raw
        return {"devices": max(listed), "nodes": len(listed), **raw}

    def devices_of(self, node: int) -> int:
        """Return the number of devices on the node with the index `node`."""
        return self.devices_by_node[node] if self.devices_by_node else self.devices

    @property
    def world_size(self) -> int:
        """Number of processes, one per device."""
        return sum(map(self.devices_of, range(self.nodes)))

    def host_memory_of(self, node: int) -> int | None:
        """Return the GiB of host memory that the node with the index `node` needs; None for any."""
        first = None if node else self.first_node_host_memory_gib
        return first or self.host_memory_gib

    def lacks_memory(self, node: int, memory_bytes: int) -> str:
        """Return a message if a node needs more than its `memory_bytes`, else an empty text."""
        needed = self.host_memory_of(node)
        if needed is None or memory_bytes >= needed * 2**30:
            return ""
        key = "host_memory_gib" if needed == self.host_memory_gib else "first_node_host_memory_gib"
        return f"has {memory_bytes / 2**30:.1f} GiB of host memory, and resources.{key} is {needed}"

    @property
    def device_memory_bytes(self) -> int | None:
        """Least bytes of memory that every device reports; None if any size will do."""
        if self.device_memory_gib is None:
            return None
        return int(self.device_memory_gib * 2**30 * REPORTED_MEMORY)

    def is_device(self, name: str) -> bool:
        """Return whether a device's name matches `device_type`: `NVIDIA L4` matches `l4`, and
        `NVIDIA L40S` does not."""
        return set(device_words(self.device_type or "")) <= set(device_words(name))


def device_words(name: str) -> tuple[str, ...]:
    """Return the words of a device's name in one spelling, in order. `A100-80G`, `a100 80gb` and
    `A100 80 GB` have the same words; `NVIDIA A100-SXM4-80GB` has them too."""
    plain = re.sub(r"[\s_-]+", " ", name.lower())
    return tuple(re.sub(r"\b(\d+) ?gi?b?\b", r"\1gb", plain).split())


class PythonEnvironment(Described):
    """A Python environment that runs use in place of accel-bench's own."""

    python: str = ""
    """Path of an existing environment's interpreter, with accel-bench and its plugins installed."""

    requirements: tuple[str, ...] = Field((), strict=False)
    """Requirements (PEP 508) of an environment that is built once, with accel-bench and plugins."""

    index: str = ""
    """Additional package index of the requirements: a URL, or PyTorch's name such as `cu126`."""

    @model_validator(mode="after")
    def _is_there_or_built(self) -> PythonEnvironment:
        if bool(self.python) == bool(self.requirements):
            raise ValueError("give either `python`, a path, or `requirements`, a list")
        if self.python and self.index:
            raise ValueError("`index` belongs to `requirements`; `python` is an environment as is")
        return self


class Inference(Described):
    """Requests to a model in `mode: inference`, the same for all stacks."""

    batch_size: int = Field(1, ge=1, le=1_000_000)
    """Requests in one batch on each device; with a `rate`, the maximum."""

    prompt_tokens: int = Field(128, ge=2, le=16_777_216)
    """Tokens of the longest prompt; shorter prompts are padded to it on the left."""

    new_tokens: int = Field(32, ge=2, le=1_000_000)
    """Number of tokens generated for each request, whatever token ends a text."""

    decoding: Literal["greedy", "sampling"] = "greedy"
    """`greedy` decoding takes the likeliest token; `sampling` draws from all tokens."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of sampling, of the requests' arrival times, and of the tokens at which prompts
    begin."""

    cache: Literal["dynamic", "static"] = "dynamic"
    """Key-value cache: `dynamic` grows by each token, `static` has its full size at once."""

    rate: float | None = Field(None, gt=0, le=1e9, allow_inf_nan=False)
    """Requests that arrive per second on each device, as a Poisson process independent of answers;
    null sends the next requests after the last answers."""

    assistant: str | None = Field(None, min_length=1)
    """Smaller model that drafts tokens for the model to verify, named like `model.id`; null
    generates without."""


class Measure(Described):
    """Settings of the measurement."""

    warmup: Annotated[int, Field(ge=1, le=MAXIMUM_SAMPLES)] | Literal["auto"] = "auto"
    """Steps before the window; `auto` finds a plateau in round 1 and keeps the largest count."""

    steps: int = Field(20, ge=1, le=MAXIMUM_SAMPLES)
    """Number of steps in the measured window."""

    phase_steps: int = Field(5, ge=0, le=10_000)
    """Number of steps after the window that are split into data, forward, backward and optimizer;
    0: none. A training takes two whole steps in any case."""

    rounds: Annotated[int, Field(ge=1, le=10_000)] | Literal["auto"] = 5
    """Number of rounds; each runs every stack once, in fresh processes. `auto`: 5, then up to 12 of
    the stacks whose verdict is still open, while there is time."""

    exact_update_bytes: int = Field(2**28, ge=0, le=2**40)
    """Largest file for the change of a run's trained weights, 4 bytes each, which is kept until it
    is compared with the baseline's; for larger changes, and with 0, only sketches are compared."""

    compare: str | None = Field(None, min_length=1)
    """Quantity that stacks are judged by: a figure of a run such as `peak_memory_bytes`, or a
    plugin's metric as NAME or PLUGIN.NAME; null for the speed, or at a rate the latency."""

    prune: bool = True
    """True to leave out points of a sweep that are larger than one at which the same stack ran out
    of memory, all else being equal."""

    sync: Literal["window", "each"] = "window"
    """Device synchronizations by the harness: one for the window, or one each step (for parity)."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the order of stacks within the rounds."""

    timeout_seconds: float = Field(1800.0, gt=0, le=10_000_000, allow_inf_nan=False)
    """Wall-clock limit of one process, imports and warm-up included."""


class Evaluate(Described):
    """Evaluation of the model on the samples of `data.held_out`, and its learning curve."""

    batches: int | None = Field(None, ge=0, le=1_000_000)
    """Forward passes of an evaluation, per device; null takes all held-out samples, 0 disables
    evaluation."""

    micro_batch_size: int | None = Field(None, ge=1, le=1_000_000)
    """Samples in one forward pass of an evaluation, per device; null: as in training."""

    steps: int = Field(0, ge=0, le=MAXIMUM_SAMPLES)
    """Training steps after the measured window, for a learning curve, in no figure of speed."""

    every: int | None = Field(None, ge=1, le=MAXIMUM_SAMPLES)
    """Number of `steps` between evaluations; null evaluates only before training, after the window
    and after the last step."""


class TagRule(Described):
    """Rule for tags; without `keys` and `format` a tag has the values of all swept keys."""

    off: bool = False
    """True for no tags, and no folders for sweep points; written as `tag: off`."""

    keys: tuple[str, ...] | None = Field(None, min_length=1, strict=False)
    """Dotted keys whose values form the tag, swept or not."""

    format: str | None = Field(None, min_length=1, max_length=1000)
    """Format of the tag, with dotted keys in braces:
    `{preset}.{world_size}.bs_{train.micro_batch_size}`.

    `preset` is the scenario's name; `world_size` the number of ranks; `stack` the stack's name.
    """

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, raw: Any) -> Any:
        """Turn `off`, which some YAML readers parse as false, into `{off: true}`."""
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
