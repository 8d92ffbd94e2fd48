"""Effective configuration: the state of a run when the clock started, read back from torch."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from accel_bench.documents.base import Frozen
from accel_bench.machine.scheduling import Scheduling

Texts = Annotated[tuple[str, ...], Field(strict=False)]

DROPOUT = "dropout"
"""Name of the source of randomness in a run whose only random operation is dropout."""

WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
"""Parts of a tensor's name that compiling or wrapping a module adds, such as `_orig_mod`."""


def plain_name(tensor: str) -> str:
    """Return a tensor's name without parts that compiling or wrapping adds, such as `_orig_mod`."""
    return WRAPPERS.sub("", tensor)


class CheckpointedBlocks(Frozen):
    """Numbers of decoder blocks, and of blocks whose activations the backward pass recomputes."""

    checkpointed: int
    blocks: int

    policy: str | None = None
    """Policy of selective activation checkpointing; null for torch's default, whole blocks."""


class Compilation(Frozen):
    """Counters of torch's compiler; null for a number that torch does not keep."""

    compile_seconds: float | None = None
    """Wall-clock seconds of tracing and compiling, forward and backward."""

    graphs: int | None = None

    graph_breaks: int | None = None
    """Number of graph breaks."""

    graph_break_reasons: Texts = ()
    """Reasons for the first graph breaks."""

    uncompiled_frames: int | None = None
    """Number of functions that the compiler left to Python's interpreter."""

    recompiles: int | None = None
    """Number of compilations of functions that had been compiled before."""

    recompile_reasons: Texts = ()
    """Reasons for the first recompilations, such as a changed shape."""

    graph_cache_hits: int | None = None
    """Number of graphs that inductor took from its cache on disk."""

    graph_cache_misses: int | None = None
    """Number of graphs that inductor compiled because its cache had none."""


class GradientFlow(Frozen):
    """Gradients in the first real optimizer step, and whether that step changed the parameters."""

    trained_tensors: int

    tensors_with_gradient: int
    """Number of trained tensors whose gradient is not zero."""

    modules_without_gradient: tuple[str, ...] = ()
    """Trained modules without any gradient, which make the run invalid."""

    experts_without_tokens: tuple[str, ...] = ()
    """Modules of experts without a gradient, as expected since they got no tokens."""

    gradient_norms: dict[str, float | None] = Field(default_factory=dict)
    """L2 norm of each trained tensor's gradient; null without a gradient, or when not finite."""

    parameters_changed: bool | None = None
    """True if the step changed any parameter; null if the step did not end."""


class OptimizerProgress(Frozen):
    """Numbers of optimizer steps up to the window's end, and the optimizer's settings in force."""

    steps: int
    """Steps that the engine ended: warm-up, discarded windows and the window."""

    counted_steps: int | None = None
    """Steps by the optimizer's own counters; null for one that keeps none."""

    observed_steps: int | None = None
    """Number of steps by the version counters of trained tensors; null if kernels bypass them."""

    learning_rates: dict[str, int] = Field(default_factory=dict)
    """Number of trained tensors by the learning rate in force, the commonest first."""

    weight_decays: dict[str, int] = Field(default_factory=dict)
    """Number of trained tensors by the weight decay in force."""

    hyperparameters: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Number of trained tensors by each other number of the optimizer in force, such as `betas`."""

    state_dtypes: dict[str, int] = Field(default_factory=dict)
    """Number of elements of the optimizer's state by the dtype in which they are stored."""


class EffectiveConfiguration(Frozen):
    """Effective configuration of one rank; a value that is not known is null or empty."""

    python: str | None = None
    """Version of Python in the rank's process."""

    torch: str | None = None
    """Version of torch in the rank's process."""

    model_class: str | None = None

    weights_fingerprint: str | None = None
    """Digest of the weights that were loaded, before anything quantized them."""

    weight_dtypes: dict[str, int] = Field(default_factory=dict)
    """Number of elements of frozen weights by dtype, the commonest first."""

    trained_dtypes: dict[str, int] = Field(default_factory=dict)

    float32_matmul_precision: str | None = None
    """Torch's precision of float32 matmuls: `highest`, `high` or `medium`."""

    attention: str | None = None

    attention_backends: tuple[str, ...] = ()
    """Kernels that `scaled_dot_product_attention` may choose."""

    linear_kernels: dict[str, int] = Field(default_factory=dict)
    """Number of linear layers by class, adapters left out."""

    experts: str | None = None
    """Kernels that multiply experts, such as `grouped_mm`; null without experts."""

    use_cache: bool | None = None
    """True if the model keeps a key-value cache: as seen in the first forward, else its setting."""

    gradient_checkpointing: bool | None = None
    checkpointed_blocks: CheckpointedBlocks | None = None

    compilation: Compilation | None = None
    """Activity of torch's compiler; null if it was not loaded."""

    strategy: str | None = None
    """Strategy by which ranks share the work: the class of the outermost wrapper, or `none`."""

    sharding: dict[str, int] = Field(default_factory=dict)
    """Number of parameters' elements by placement, such as `shard 2: Shard(0)`; `whole` for those
    on every rank. Empty without sharding."""

    held_elements: int | None = None
    """Number of parameters' elements that lie in this rank's memory."""

    sharing_ranks: int | None = None
    """Largest number of ranks that share one parameter; null without sharding."""

    nested_wrapping: Texts = ()
    """Outer and inner strategy of a model that is wrapped twice; else empty."""

    synchronized_buffer_bytes: int | None = None
    """Bytes of buffers that replicas send to one another before every forward."""

    world_size: int | None = None
    backend: str | None = None
    optimizer: str | None = None
    device: str | None = None
    threads: int | None = None
    training: bool | None = None

    scheduling: Scheduling | None = None
    """Priority, policy and CPUs of the thread that trains, read after the window."""

    libraries: tuple[str, ...] = ()
    """Imported modules that can change a model's speed or results."""

    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that change a run's speed."""

    environment_changes: dict[str, tuple[str | None, str | None]] = Field(default_factory=dict)
    """Environment variables that the worker changed, each with its value before and after."""

    matmul_dtype: str | None = None
    """Dtype of the output projection's result; null if it could not be seen."""

    matmul_dtypes: dict[str, int] = Field(default_factory=dict)
    """Number of linear layers by the dtype of their matmul in the first forward pass, without
    quantized layers and adapters; empty if it could not be seen."""

    dropout: dict[str, int] = Field(default_factory=dict)
    """Number of modules by dropout probability, without those of probability 0."""

    random_operations: str = ""
    """Random operations of a step beside dropout, as the task declares them."""

    optimizer_progress: OptimizerProgress | None = None
    """Optimizer steps, and rates in force; null if the window was not reached."""

    padding_free: bool | None = None
    """True if the first forward pass packed several sequences into one row."""

    attention_kernels: dict[str, int] | None = None
    """Number of attention kernels in the first forward pass by name; null if none is seen."""

    gradient_flow: GradientFlow | None = None
    """Gradients of the first optimizer step; null without one."""

    synchronizations_per_step: int | None = None
    """Number of device synchronizations of the work in the last warm-up step; null on a CPU."""

    @property
    def drawn(self) -> str:
        """Names of the random operations in a step, such as `dropout`; empty if there are none."""
        parts = [DROPOUT if self.dropout else "", self.random_operations]
        return " and ".join(filter(None, parts))
