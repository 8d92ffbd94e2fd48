"""Effective configuration: read before the first measured window, compared with the scenario."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from accel_bench.analysis.wording import count, join_names
from accel_bench.effective import Compilation, EffectiveConfiguration
from accel_bench.errors import InvalidRunError
from accel_bench.machine.info import Device
from accel_bench.machine.libraries import accelerator_modules
from accel_bench.modeling.checkpointing import CHECKPOINTING_WORDS
from accel_bench.modeling.compilation import read_compilation
from accel_bench.modeling.contract import has_attention
from accel_bench.modeling.module_calls import calls_past_hooks, is_compiled
from accel_bench.modeling.process_group import backend_of
from accel_bench.modeling.tensors import elements_by_dtype
from accel_bench.run_context import Run
from accel_bench.scenario.environment import recorded
from accel_bench.worker.record import RankRecord
from accel_bench.worker.settings import ALLOCATOR_ALIASES, SAME_FOR_ALL, has_process_group
from accel_bench.worker.verify.drift import read_dropout
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.kernels import (
    enabled_attention_backends,
    read_experts,
    read_linear_kernels,
)
from accel_bench.worker.verify.recomputation import read_checkpointing
from accel_bench.worker.verify.wrapping import is_sharding, read_wrapping

PACKED = frozenset({"uint8", "int8", "int32"})
"""Dtypes of base weights that hold packed or quantized numbers."""


def read_effective(
    run: Run,
    probe: FirstStepProbe | None = None,
    environment: Mapping[str, str] | None = None,
    synchronizations: int | None = None,
) -> EffectiveConfiguration:
    """Return the effective configuration: dtypes, kernels, strategy, compiler and so on. `probe`
    has watched the first step; `environment` has the variables at the process's start;
    `synchronizations` is the device's number of synchronizations in a step."""
    model = run.unwrapped_model
    config = getattr(model, "config", None)
    effective = EffectiveConfiguration(
        **_of_process(run, environment),
        model_class=_model_class(model),
        weight_dtypes=elements_by_dtype(p for p in model.parameters() if not p.requires_grad),
        trained_dtypes=elements_by_dtype(p for p in model.parameters() if p.requires_grad),
        attention=_attention(config),
        attention_backends=tuple(enabled_attention_backends()),
        linear_kernels=read_linear_kernels(model),
        experts=read_experts(model),
        use_cache=bool(getattr(config, "use_cache", False)),
        gradient_checkpointing=_recomputes(model),
        checkpointed_blocks=read_checkpointing(model),
        dropout=read_dropout(model),
        random_operations="" if run.task is None else run.task.random_operations(model),
        compilation=Compilation(**read_compilation()) if "torch._dynamo" in sys.modules else None,
        **read_wrapping(run),
        optimizer=None if run.optimizer is None else type(run.optimizer).__name__,
        device=str(next(model.parameters()).device),
        training=bool(model.training),
        synchronizations_per_step=synchronizations,
    )
    return effective if probe is None else effective.model_copy(update=_seen(probe))


def read_process(run: Run, environment: Mapping[str, str]) -> EffectiveConfiguration:
    """Return the effective configuration of the process, for a model that core cannot read.

    The device is the scenario's, since an engine of another library refuses any other device. A
    process group of this process alone counts as none.
    """
    fields = _of_process(run, environment)
    if run.world_size == 1:
        fields["backend"] = None
    return EffectiveConfiguration(**fields, device=str(run.device))


def _of_process(run: Run, environment: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the fields of the effective configuration that concern no model, such as versions."""
    group = has_process_group()
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "weights_fingerprint": run.weights_fingerprint or None,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "world_size": torch.distributed.get_world_size() if group else 1,
        "backend": backend_of(run.device) if group else None,
        "threads": torch.get_num_threads(),
        "libraries": tuple(sorted(name for name in accelerator_modules() if name in sys.modules)),
        "environment": recorded(os.environ),
        "environment_changes": {} if environment is None else environment_changes(environment),
    }


def _attention(config: Any) -> str | None:
    if config is None or not has_attention(config):
        return None
    return getattr(config, "_attn_implementation", None)


def _seen(probe: FirstStepProbe) -> dict[str, Any]:
    names = ("matmul_dtype", "matmul_dtypes", "padding_free", "attention_kernels")
    seen = {name: getattr(probe, name) for name in names} | {"gradient_flow": probe.flow}
    return seen if probe.use_cache is None else {**seen, "use_cache": probe.use_cache}


def environment_changes(before: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return the variables that this process has changed, with the values before and now."""
    now = recorded(os.environ)
    names = sorted({*before, *now})
    return {
        name: (before.get(name), now.get(name))
        for name in names
        if before.get(name) != now.get(name)
    }


def differences(
    run: Run, effective: EffectiveConfiguration, strategy: str | None = None
) -> tuple[list[str], list[str]]:
    """Return two lists of texts on how `effective` differs from the scenario: why the run is
    `degraded`, and why it is `invalid`. A plugin for parallel training declares `strategy`, or none
    does."""
    invalid = [*_wrong_ranks(run, effective, strategy)]
    if torch.device(str(effective.device)).type != run.device.type:
        invalid.append(f"the model is on {effective.device}, the scenario says {run.device}")
    if effective.padding_free and effective.use_cache:
        invalid.append(
            "sequences lie in one row and the model keeps a cache, so they attend to one another; "
            "set use_cache to false"
        )
    if effective.training is run.scenario.generates:
        no = "" if effective.training else "not "
        invalid.append(f"the model is {no}in training mode")
    return [*_other_work(run, effective), *_side_effects(effective)], invalid


def record_effective(
    run: Run, record: RankRecord, effective: EffectiveConfiguration, strategy: str | None
) -> None:
    """Record the effective configuration and the device. Raises InvalidRunError if the
    configuration contradicts the scenario."""
    record.device, record.effective = used_device(run), effective
    degraded, invalid = differences(run, effective, strategy)
    record.degraded += degraded
    if invalid:
        raise InvalidRunError(invalid)


def _wrong_ranks(
    run: Run, effective: EffectiveConfiguration, strategy: str | None
) -> Iterator[str]:
    """Yield reasons why the run is `invalid`: ranks do not train together as the scenario says."""
    if effective.world_size != run.world_size:
        yield f"{effective.world_size} processes train, the scenario says {run.world_size}"
    backend = run.scenario.resources.backend
    if None not in (backend, effective.backend) and effective.backend != backend:
        yield f"the process group uses {effective.backend}, the scenario says {backend}"
    if run.world_size > 1 and effective.strategy == "none" and not run.scenario.generates:
        yield f"nothing joins the gradients of {run.world_size} processes"
    elif strategy is not None and effective.strategy != strategy:
        yield f"the strategy is {effective.strategy}, and its plugin says {strategy}"
    if effective.sharing_ranks not in (None, run.world_size):
        yield (
            f"the model is divided over {effective.sharing_ranks} of {run.world_size} processes, "
            "and nothing joins the others"
        )
    if effective.strategy == "DataParallel":
        yield "DataParallel spreads each batch over every device that the process can see"
    if effective.nested_wrapping:
        outer, inner = effective.nested_wrapping
        yield f"the model is wrapped twice: {outer} around {inner}"


def _other_work(run: Run, effective: EffectiveConfiguration) -> Iterator[str]:
    """Yield a text for each property of model, precision or threads that is not the scenario's."""
    scenario = run.scenario
    if effective.attention not in (None, scenario.model.attention):
        yield f"attention is {effective.attention}, the scenario says {scenario.model.attention}"
    # Blocks that say by which policy they are computed again were set up so by the stack.
    blocks = effective.checkpointed_blocks
    by_stack = blocks is not None and blocks.policy is not None
    if effective.gradient_checkpointing != (scenario.train.gradient_checkpointing or by_stack):
        yield (
            f"gradient checkpointing is {effective.gradient_checkpointing}, "
            f"the scenario says {scenario.train.gradient_checkpointing}"
        )
    stored = {**effective.weight_dtypes, **effective.trained_dtypes}
    # A quantized base is stored as it is quantized; what is left of it may be computed in float32.
    quantized = not PACKED.isdisjoint(effective.weight_dtypes)
    allowed, precision = effective.float32_matmul_precision, scenario.train.matmul_precision
    if allowed not in (None, precision):
        yield f"matmul precision is {allowed}, the scenario says {precision}"
    # Unless it is told how many, a library may use fewer than it is allowed to: MKL one a core.
    threads = scenario.resources.threads
    if None not in (effective.threads, threads) and effective.threads != threads:
        yield f"{effective.threads} threads compute, the scenario says {threads}"
    if scenario.model.dtype not in stored and not quantized:
        yield f"no weight is {scenario.model.dtype}, as asked: {', '.join(stored)}"
    computed = scenario.train.work_dtype
    said = f"the scenario says {scenario.train.precision}"
    if computed and effective.matmul_dtype not in (None, computed):
        yield f"matmuls compute in {effective.matmul_dtype}, {said}"
    yield from _other_dtypes(run, effective)
    yield from _unseen_calls(run, effective)
    grouped = "grouped_mm" in (effective.experts or "")
    autocast = scenario.train.autocast_dtype
    if grouped and autocast not in (None, scenario.model.dtype):
        yield (
            f"experts compute in {scenario.model.dtype}, {said}: "
            f"grouped_mm does not follow autocast; set model.dtype: {autocast}"
        )
    if effective.use_cache and not effective.padding_free and not run.scenario.generates:
        yield "the model keeps a key-value cache while it trains"
    if effective.use_cache is False and run.scenario.generates:
        yield "the model keeps no key-value cache: it computes the whole text for each token"


def _other_dtypes(run: Run, effective: EffectiveConfiguration) -> Iterator[str]:
    """Yield a text for each dtype of linear layers that is not the requested one and not larger.

    Some layers, such as the router of experts, have a larger dtype by design.
    """
    asked, counts = run.scenario.compute_dtype, effective.matmul_dtypes
    size = getattr(torch, asked).itemsize
    for dtype, layers in counts.items():
        if dtype != asked and getattr(torch, dtype).itemsize <= size:
            yield (
                f"{layers} of {sum(counts.values())} linear modules compute in {dtype}, the "
                f"scenario says {asked}"
            )


def _unseen_calls(run: Run, effective: EffectiveConfiguration) -> Iterator[str]:
    """Yield a text on modules that torch.compile should have compiled, but has not."""
    modules = dict(run.unwrapped_model.named_modules())
    own = [name or "the model" for name, module in modules.items() if calls_past_hooks(module)]
    if own:
        yield (
            f"{count(len(own), 'module')} ({join_names(own)}) have a `_compiled_call_impl` that "
            "torch.compile has not made: what they compute is not seen; replace `forward`, or use "
            "functools.wraps around what it has made"
        )
    compiled = sum(map(is_compiled, modules.values()))
    if compiled and effective.compilation is not None and effective.compilation.graphs == 0:
        yield f"{count(compiled, 'module')} were to be compiled, and torch's compiler made no graph"


def _side_effects(effective: EffectiveConfiguration) -> Iterator[str]:
    """Yield a text for each costly effect that no scenario sets, such as a changed variable."""
    if sent := effective.synchronized_buffer_bytes:
        yield f"the ranks send one another {sent} bytes of buffers before every forward"
    for name, (_, now) in effective.environment_changes.items():
        if name in (*SAME_FOR_ALL, *ALLOCATOR_ALIASES):
            yield (
                f"{name} was changed to {now!r} by what was imported; set it in the scenario's "
                "`environment`, for all stacks"
            )


def used_device(run: Run) -> Device:
    """Return the device that this rank computes on, with the name that its driver states."""
    name, uuid = run.device_type.identify(run.device.index)
    index = run.local_rank if run.device_type.on_host else run.device.index
    return Device(run.device.type, index, name, uuid)


def _model_class(model: torch.nn.Module) -> str:
    """Return the name of the model's own class, also if FSDP2 has put another in its place."""
    return next(kind.__name__ for kind in type(model).__mro__ if not is_sharding(kind))


def _recomputes(model: torch.nn.Module) -> bool:
    for word in CHECKPOINTING_WORDS:
        value = getattr(model, f"is_{word}_checkpointing", None)
        if value is not None:
            return bool(value)
    return False
