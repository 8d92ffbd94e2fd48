"""Enter a context around each call of a module, without having anything compiled again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch._dynamo.eval_frame import OptimizedModule

Around: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""Makes the context of a call, by the path of the module."""


@contextmanager
def around_modules(model: torch.nn.Module, around: Around) -> Iterator[None]:
    """Enter `around(path)` for each call of a module within the block; not for `model` itself.

    A compiled module is entered as one: nothing is added to what is compiled.
    """
    with ExitStack() as stack:
        for path, module in called_modules(model):
            if path:
                stack.enter_context(around_module(module, path, around))
        yield


def called_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield each module whose calls Python makes, once, with its path; the model itself first.

    Of what is compiled that is the outermost module alone.
    """
    inside: set[int] = set()
    for path, module in model.named_modules():
        if id(module) in inside:
            continue
        if is_compiled(module):
            inside |= {id(one) for one in module.modules()}
        yield path, module


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether calls of a module run compiled code, by any way to compile one."""
    return (
        getattr(module, "_compiled_call_impl", None) is not None
        or isinstance(module, OptimizedModule)
        or hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")
    )


@contextmanager
def around_module(module: torch.nn.Module, path: str, around: Around) -> Iterator[None]:
    """Enter `around(path)` for each call of one module within the block, however it ends.

    Checkpointing ends its second forward pass by an exception.
    """
    compiled: Any = getattr(module, "_compiled_call_impl", None)
    if compiled is not None:

        def call(*args: Any, **kwargs: Any) -> Any:
            with around(path):
                return compiled(*args, **kwargs)

        with patch.object(module, "_compiled_call_impl", call):
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
