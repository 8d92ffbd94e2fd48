"""The stack plugin `attention`: backends of `scaled_dot_product_attention` in order of priority.

`model.attention` sets the implementation, which any stack can change and core verifies. This plugin
restricts the backends (kernels) of the implementation `sdpa`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator

from accel_bench import (
    Experiment,
    Machine,
    Options,
    Plugin,
    Run,
    Scenario,
    hookimpl,
    model_config,
)

Backend: TypeAlias = Literal["flash", "cudnn", "efficient", "math"]

HALF = frozenset({"float16", "bfloat16"})
"""Dtypes that the flash and cudnn backends support on a GPU."""

OLDEST: dict[str, tuple[int, int]] = {"flash": (8, 0), "cudnn": (8, 0), "efficient": (5, 0)}
"""Oldest CUDA compute capability of each backend; backends not listed run on any GPU."""

CALL_TOKENS = 64
"""Sequence length in tokens of the probe call that reports the effective kernels."""


class AttentionOptions(Options):
    """Options of `attention`: the backends of sdpa."""

    backends: tuple[Backend, ...] = Field(min_length=1)
    """Backends of sdpa in order of priority. The first that supports the inputs, such as their
    mask, is used; others are disabled, and a run fails if none supports them. CPUs have `flash` and
    `math`."""

    @field_validator("backends")
    @classmethod
    def _each_once(cls, backends: tuple[Backend, ...]) -> tuple[Backend, ...]:
        if len(set(backends)) < len(backends):
            raise ValueError("a backend is named twice")
        return backends


def _has_heads(config: Mapping[str, Any]) -> bool:
    """Return whether a model configuration, or one nested in it, has attention heads."""
    parts = [value for value in config.values() if isinstance(value, Mapping)]
    return any("head" in key for key in config) or any(map(_has_heads, parts))


def _missing_on_cpu(backends: tuple[Backend, ...]) -> Iterator[str]:
    for backend in backends:
        if backend not in ("flash", "math"):
            yield f"backend {backend} is a kernel of GPUs; a CPU has flash and math"
    if backends[:2] == ("math", "flash"):
        yield "on a CPU torch tries flash before math, whatever the order; name one of them"


def _missing_on_gpu(
    backends: tuple[Backend, ...], scenario: Scenario, machine: Machine
) -> Iterator[str]:
    dtype = scenario.compute_dtype
    for backend in backends:
        if backend in ("flash", "cudnn") and dtype not in HALF:
            yield (
                f"backend {backend} computes in float16 and bfloat16, and attention is in {dtype}; "
                "set model.dtype, or use efficient or math"
            )
        oldest = OLDEST.get(backend, (0, 0))
        for gpu in machine.gpus[: scenario.resources.devices]:
            if gpu.compute_capability < oldest:
                yield (
                    f"backend {backend} needs compute capability {oldest[0]}.{oldest[1]}, "
                    f"{gpu.name} has {gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
                )


class AttentionBackends(Plugin[AttentionOptions]):
    """Choose the kernels of scaled_dot_product_attention, by priority, for the whole process."""

    Options = AttentionOptions
    devices = frozenset({"cpu", "cuda"})

    # Another kernel adds up in another order. Over 30 steps of the small llama on a CPU, losses of
    # flash and math differed by 1e-7 in float32 and 4.5e-4 in bfloat16: a factor of ten is left.
    loss_tolerance: ClassVar[float | None] = 5e-3

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why the scenario cannot use the chosen backends: model, device or dtype."""
        scenario = experiment.scenario
        config = model_config(scenario.model)
        if config is not None and not _has_heads(config):
            yield f"{scenario.model.id} has no attention"
        if scenario.model.attention != "sdpa":
            yield (
                f"orders the kernels of sdpa, and model.attention is {scenario.model.attention}; "
                "set model.attention to sdpa"
            )
        if scenario.resources.device == "cpu":
            yield from _missing_on_cpu(self.options.backends)
        else:
            yield from _missing_on_gpu(self.options.backends, scenario, machine)

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Enable the chosen backends for the process: torch has no setting for one model.

        The evidence lists the backends in order, and the kernel of a probe call with the model's
        attention heads. For models that are not compiled, the effective configuration has the
        kernel of the model's own calls.
        """
        run.on_close(enable(self.options.backends))

        def evidence() -> dict[str, Any]:
            kernel = _kernels_of_one_call(run)
            return {"backends": list(self.options.backends), "kernel_of_one_call": kernel}

        run.on_evidence(evidence)


def enable(backends: Sequence[str]) -> Callable[[], None]:
    """Enable only these backends of sdpa, in order of priority; return a function to undo this."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    stack = contextlib.ExitStack()
    stack.enter_context(sdpa_kernel([kernels[name] for name in backends], set_priority=True))
    return stack.close


def _kernels_of_one_call(run: Run) -> list[str] | None:
    """Return the names of the attention kernels that run in one trial call.

    The call has the number and the size of the model's heads; None if these are unknown.
    """
    import torch

    from accel_bench.modeling.attention_kernels import attention_kernels
    from accel_bench.modeling.contract import text_config

    config = getattr(run.unwrapped_model, "config", None)
    text = text_config(config)
    heads, hidden = (getattr(text, key, None) for key in ("num_attention_heads", "hidden_size"))
    if not heads or not hidden:
        return None
    size = getattr(text, "head_dim", None) or hidden // heads
    groups = getattr(text, "num_key_value_heads", None) or heads
    dtype = run.scenario.compute_dtype

    def zeros(count: int) -> Any:
        shape, place = (1, count, CALL_TOKENS, size), str(run.device)
        return torch.zeros(shape, device=place, dtype=getattr(torch, dtype), requires_grad=True)

    with torch.enable_grad():
        output = torch.nn.functional.scaled_dot_product_attention(
            zeros(heads), zeros(groups), zeros(groups), is_causal=True, enable_gqa=groups != heads
        )
    return sorted(attention_kernels(output))
