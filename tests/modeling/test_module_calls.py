"""Contexts around the calls of modules, and which modules are compiled."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from accel_bench.modeling.module_calls import around_modules, is_compiled


def compiled_call(module: nn.Module) -> nn.Module:
    """Compile a module in place."""
    module.compile(backend="eager")
    return module


def compiled_forward(module: nn.Module) -> nn.Module:
    """Compile the forward function of a module alone."""
    module.forward = torch.compile(module.forward, backend="eager")
    return module


def wrapped(module: nn.Module) -> nn.Module:
    """Wrap a module in a compiled one."""
    found: nn.Module = torch.compile(module, backend="eager")
    return found


@pytest.mark.parametrize("way", [compiled_call, compiled_forward, wrapped])
def test_a_module_is_compiled_by_any_way_to_compile_one(way) -> None:  # type: ignore[no-untyped-def]
    module = nn.Sequential(nn.Linear(2, 2))
    assert not is_compiled(module)
    assert is_compiled(way(module))


def test_nothing_is_entered_within_a_module_whose_forward_is_compiled() -> None:
    model = nn.Sequential(compiled_forward(nn.Sequential(nn.Linear(2, 2))))
    with around_modules(model, lambda _: nullcontext()):
        assert model[0]._forward_hooks
        assert not model[0][0]._forward_hooks
