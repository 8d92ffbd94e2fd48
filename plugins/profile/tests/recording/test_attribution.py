"""Time of a step by module, kind and direction, which adds up."""

from __future__ import annotations

import time
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from accel_bench_profile.figures.modules import DATA, OUTSIDE, ROOT, ModuleTimes
from accel_bench_profile.figures.spans import Cycle, Span, SpanKind, in_order
from accel_bench_profile.recording.attribution import attribute, folded
from accel_bench_profile.recording.ranges import (
    ModuleRanges,
    mark_phase,
    plain_path,
    unlike_siblings,
)
from accel_bench_profile.recording.recorder import span_of
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

WIDTH = 64

NAP = 0.02
"""Seconds that a planted module sleeps, many times those of the others."""


class RMSNorm(nn.Module):
    """A norm of several operations, as models of transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    """Eager attention of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(states).chunk(3, dim=-1)
        return torch.softmax(query @ key.transpose(1, 2), -1) @ value


class Block(nn.Module):
    """A layer of a small transformer."""

    def __init__(self, nap: float = 0.0) -> None:
        super().__init__()
        self.norm = RMSNorm()
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.nap = nap

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if self.nap:
            time.sleep(self.nap)
        return states + self.mlp(self.attention(self.norm(states)))


class Model(nn.Module):
    """Two layers and a loss."""

    def __init__(self, checkpointed: bool = False, nap: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block(nap)])
        self.checkpointed = checkpointed

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.checkpointed:
                states = checkpoint(layer, states, use_reentrant=False)
            else:
                states = layer(states)
        labels = torch.zeros(states.shape[0], dtype=torch.long)
        return nn.functional.cross_entropy(states.mean(1), labels)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train on one random batch."""
    model(torch.randn(4, 32, WIDTH)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def profiled(model: nn.Module, steps: int = 2, warmup: int = 1, **more: Any) -> ModuleTimes:
    """Train a model, with its last steps profiled."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(warmup):
        take_step(model, optimizer)
    ranges = ModuleRanges(model, **more)
    cycles: list[Cycle] = []

    def keep(profiler: Any) -> None:
        spans = filter(None, map(span_of, profiler.profiler.kineto_results.events()))
        cycles.append(Cycle(in_order(spans)))

    schedule = torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1)
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, schedule=schedule, on_trace_ready=keep) as profiler:
        for _ in range(1 + steps):
            take_step(model, optimizer)
            profiler.step()
    ranges.remove()
    found = attribute(cycles, ranges.roles, ranges.unlike)
    assert found is not None
    return found


def seconds(times: ModuleTimes, **wanted: str) -> float:
    """Return the seconds of all parts with the given values."""
    return sum(
        one.seconds
        for one in times.times
        if all(getattr(one, name) == value for name, value in wanted.items())
    )


@pytest.fixture(scope="module")
def plain() -> ModuleTimes:
    """Profile the unchanged model."""
    return profiled(Model())


def test_parts_add_up_to_the_step(plain: ModuleTimes) -> None:
    assert sum(one.seconds for one in plain.times) == pytest.approx(plain.step_seconds, rel=1e-9)
    assert plain.steps == 2


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("layers.*.mlp.0", "matmul"),
        ("layers.*.mlp.1", "memory-bound"),
        ("layers.*.attention.qkv", "matmul"),
        ("layers.*.attention", "attention"),
        ("layers.*.norm", "norm"),
        (ROOT, "loss"),
    ],
)
def test_both_passes_of_a_module_are_its_own(plain: ModuleTimes, module: str, kind: str) -> None:
    assert seconds(plain, module=module, kind=kind, direction="forward") > 0
    assert seconds(plain, module=module, kind=kind, direction="backward") > 0


def test_a_module_has_no_kind_that_is_not_in_it(plain: ModuleTimes) -> None:
    assert seconds(plain, module="layers.*.norm", kind="matmul") == 0
    assert seconds(plain, module="layers.*.attention", kind="matmul") == 0
    assert seconds(plain, module="layers.*.mlp.0", kind="attention") == 0


def test_the_optimizer_is_a_direction_of_its_own(plain: ModuleTimes) -> None:
    assert seconds(plain, kind="optimizer", direction="optimizer") > 0
    assert seconds(plain, kind="optimizer") == seconds(plain, direction="optimizer")


def test_without_checkpointing_nothing_is_computed_again(plain: ModuleTimes) -> None:
    assert seconds(plain, direction="recompute") == 0


def test_checkpointing_computes_the_modules_again() -> None:
    found = profiled(Model(checkpointed=True))
    again = [one for one in found.times if one.direction == "recompute"]
    assert {one.module for one in again} >= {"layers.*.norm", "layers.*.attention.qkv"}
    assert seconds(found, module="layers.*.norm", direction="backward") > 0
    assert sum(one.seconds for one in found.times) == pytest.approx(found.step_seconds, rel=1e-9)


def keep_all(*_: Any, **__: Any) -> CheckpointPolicy:
    """Return the policy that recomputes no operation."""
    return CheckpointPolicy.MUST_SAVE


def test_ranges_disturb_no_selective_checkpointing() -> None:
    model = Model()
    keep = partial(create_selective_checkpoint_contexts, keep_all)
    for layer in model.layers:
        plain = layer.forward
        layer.forward = partial(checkpoint, plain, use_reentrant=False, context_fn=keep)
    moments = count()

    def mark_now_and_then() -> None:  # As other work on the machine makes the profile do.
        if next(moments) % 7 > 3:
            mark_phase("forward")

    found = profiled(model, check=mark_now_and_then)
    assert seconds(found, direction="recompute") > 0


def test_a_pause_of_a_module_is_idle_time_of_that_module() -> None:
    found = profiled(Model(nap=NAP))
    assert seconds(found, module="layers.*", kind="idle", direction="forward") >= NAP


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_module_is_one_and_keeps_its_graph() -> None:
    from torch._dynamo.backends.debugging import aot_eager

    compiled: list[Any] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return aot_eager(graph, inputs)

    model = Model()
    for layer in model.layers:
        layer.compile(backend=compiler)
    take_step(model, torch.optim.AdamW(model.parameters()))
    before = len(compiled)
    found = profiled(model, warmup=0)
    assert len(compiled) == before > 0
    assert found.compiled == ("layers.*",)
    assert seconds(found, module="layers.*", kind="matmul", direction="forward") > 0
    assert seconds(found, module="layers.*", kind="matmul", direction="backward") > 0
    assert not any(one.module.startswith("layers.*.") for one in found.times)
    torch.compiler.reset()


def test_ranges_leave_no_trace_behind() -> None:
    model = Model()
    model.layers[0].compile(backend="eager")
    compiled = model.layers[0]._compiled_call_impl
    ranges = ModuleRanges(model)
    assert model.layers[0]._compiled_call_impl is not compiled
    ranges.remove()
    assert model.layers[0]._compiled_call_impl is compiled
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("", ROOT),
        ("base_model.model.model.layers.0.self_attn.q_proj.base_layer",
         "model.layers.0.self_attn.q_proj"),
        ("base_model.model", ROOT),
        ("_orig_mod.layers.3._checkpoint_wrapped_module.mlp", "layers.3.mlp"),
    ],
)  # fmt: skip
def test_wrapped_modules_have_the_paths_of_plain_ones(name: str, path: str) -> None:
    assert plain_path(name, adapted=True) == path


def test_layers_of_all_numbers_are_folded() -> None:
    assert folded("model.layers.11.mlp.experts.3.w1") == "model.layers.*.mlp.experts.*.w1"
    assert folded("layer1.conv2d") == "layer1.conv2d"


def test_only_siblings_of_one_class_are_folded() -> None:
    unlike = unlike_siblings(Model())
    assert unlike == {f"layers.{layer}.mlp.{number}" for layer in (0, 1) for number in (0, 1, 2)}
    assert folded("layers.1.mlp.2", unlike) == "layers.*.mlp.2"
    wrapped = Model()
    wrapped.layers[0] = checkpoint_wrapper(wrapped.layers[0])
    assert "layers.0" not in unlike_siblings(wrapped)


def test_an_operation_counts_once_however_many_calls_it_takes(plain: ModuleTimes) -> None:
    (linear,) = (one for one in plain.times
                 if (one.module, one.kind, one.direction)
                 == ("layers.*.attention.qkv", "matmul", "forward"))  # fmt: skip
    assert linear.calls == 2  # One in each of two layers.
    assert linear.events > linear.calls


def test_getting_batches_has_a_place_of_its_own() -> None:
    spans = [
        Span("ProfilerStep#1", "range", 0, 100, lane=1),
        Span("aten::stack", "operation", 10, 20, lane=1),
        Span("phase: data", "range", 49, 50, lane=1),
        Span("module: (model)", "range", 55, 80, lane=1),
    ]
    found = attribute([Cycle(in_order(spans))], {})
    assert found is not None
    assert seconds(found, module=DATA, kind="data") == pytest.approx(50e-9)
    kernel = Span("sm90_gemm", "kernel", 70, 90, lane=7)
    found = attribute([Cycle(in_order([*spans, kernel]))], {})
    assert found is not None and found.device
    assert seconds(found, module=DATA, kind="data") == pytest.approx(49e-9)
    assert seconds(found, kind="idle") == pytest.approx(31e-9)


def test_events_are_those_recorded_within_a_place() -> None:
    spans = [
        Span("ProfilerStep#1", "range", 0, 100, lane=1),
        Span("module: mlp", "range", 10, 90, lane=1),
        Span("aten::linear", "operation", 20, 60, lane=1),
        Span("aten::t", "operation", 25, 30, lane=1),
        Span("aten::addmm", "operation", 30, 50, lane=1),
    ]
    found = attribute([Cycle(in_order(spans))], {})
    assert found is not None
    assert {(one.module, one.kind): (one.events, one.calls) for one in found.times} == {
        ("mlp", "matmul"): (2, 1),
        ("mlp", "idle"): (1, 0),
        (OUTSIDE, "idle"): (1, 0),
    }


def device_cycle() -> Cycle:
    """Return a step of a device: a matmul, a gap, a norm, and a collective that outlasts it."""

    def span(name: str, kind: SpanKind, start: int, end: int, **more: Any) -> Span:
        return Span(name, kind, start, end, **more)

    return Cycle(
        in_order(
            [
                span("ProfilerStep#1", "range", 0, 1000),
                span("module: layers.0.mlp", "range", 10, 100),
                span("aten::mm", "operation", 20, 60, operation=7),
                span("module: layers.0.norm", "range", 200, 300),
                span("aten::mul", "operation", 210, 250, operation=8),
                span("c10d::allreduce_", "operation", 300, 320, operation=9),
                span("sm90_gemm", "kernel", 100, 300, lane=7, operation=7),
                span("vectorized_elementwise", "kernel", 400, 500, lane=7, operation=8),
                span("ncclDevKernel_AllReduce", "kernel", 450, 700, lane=9, operation=9),
            ]
        )
    )


def test_a_device_is_divided_by_its_kernels() -> None:
    found = attribute([device_cycle()], {"layers.0.norm": "norm"})
    assert found is not None and found.device
    nanoseconds = {
        (one.module, one.kind): round(one.seconds * 1e9) for one in found.times
    }  # fmt: skip
    assert nanoseconds == {
        ("layers.*.mlp", "matmul"): 200,
        ("layers.*.mlp", "idle"): 100,  # before its kernel
        ("layers.*.norm", "idle"): 100,
        ("layers.*.norm", "norm"): 100,
        (OUTSIDE, "communication"): 200,  # what nothing hides
        (OUTSIDE, "idle"): 300,
    }


def test_a_collective_that_the_host_waits_for_is_communication() -> None:
    spans = [
        Span("ProfilerStep#1", "range", 0, 100, lane=1),
        Span("aten::mm", "operation", 10, 20, lane=1),
        Span("gloo:all_reduce", "operation", 15, 80, lane=1, is_async=True),
    ]
    found = attribute([Cycle(in_order(spans))], {})
    assert found is not None
    assert seconds(found, kind="communication") == pytest.approx(60e-9)
    assert seconds(found, kind="matmul") == pytest.approx(10e-9)
