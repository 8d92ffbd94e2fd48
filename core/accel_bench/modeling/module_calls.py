"""Context managers entered around each call of a module, without recompiling the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch._dynamo.eval_frame import OptimizedModule

CALL, MARK = "_compiled_call_impl", "_torchdynamo_orig_callable"
"""Module attribute with a compiled call, which replaces hooks and forward, and attribute by which
torch marks compiled objects."""

Around: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""Function that returns a context manager for a module's call, given the module's path."""


@contextmanager
def around_modules(model: torch.nn.Module, around: Around) -> Iterator[None]:
    """Enter `around(path)` for each call of a module below `model` within the block.

    A compiled module counts as one module, since nothing is added to compiled code.
    """
    with ExitStack() as stack:
        for path, module in called_modules(model):
            if path:
                stack.enter_context(around_module(module, path, around))
        yield


def called_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the path and the module of each module that Python calls, the model first.

    Python calls a compiled module, but not the modules inside it: these are left out.
    """
    inside: set[int] = set()
    for path, module in model.named_modules():
        if id(module) in inside:
            continue
        if is_compiled(module):
            inside |= {id(inner) for inner in module.modules()}
        yield path, module


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether calls of a module run compiled code, however it was compiled."""
    calls = (getattr(module, CALL, None), vars(module).get("forward"))
    return isinstance(module, OptimizedModule) or any(hasattr(call, MARK) for call in calls)


def calls_past_hooks(module: torch.nn.Module) -> bool:
    """Return whether a module's call is replaced by code that torch has not compiled.

    Torch then calls no hooks. A wrapper made by `functools.wraps` counts as the code it wraps.
    """
    call = getattr(module, CALL, None)
    # Where the compiler is switched off, torch leaves the plain call there.
    plain = getattr(call, "__func__", None) is torch.nn.Module._call_impl
    return not (call is None or plain or hasattr(call, MARK))


def after_calls(module: torch.nn.Module, see: Callable[[Any, Any, Any], None]) -> Any:
    """Call `see(module, inputs, output)` after each call of a module that is not compiled.

    Return a handle whose `remove()` ends the calls.
    """
    if not calls_past_hooks(module):
        return module.register_forward_hook(see)
    call: Any = getattr(module, CALL)

    def seen_call(*args: Any, **kwargs: Any) -> Any:
        output = call(*args, **kwargs)
        see(module, args, output)
        return output

    patched = ExitStack()
    patched.enter_context(patch.object(module, CALL, seen_call))
    return SimpleNamespace(remove=patched.close)


@contextmanager
def around_module(module: torch.nn.Module, path: str, around: Around) -> Iterator[None]:
    """Enter `around(path)` for each call of one module within the block.

    The context is also left if the call raises: checkpointing ends its second forward by raising.
    """
    compiled: Any = getattr(module, CALL, None)
    if compiled is not None:

        @wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            with around(path):
                return compiled(*args, **kwargs)

        with patch.object(module, CALL, call):
            yield
        return
    entered: list[AbstractContextManager[Any]] = []

    def enter(*_: Any) -> None:
        entered.append(around(path))
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        entered.pop().__exit__(None, None, None)

    before = module.register_forward_pre_hook(enter, prepend=True)
    after = module.register_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
