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
        for path, module in _eager_modules(model):
            if path:
                stack.enter_context(_around(module, path, around))
        yield


@contextmanager
def _around(module: torch.nn.Module, path: str, around: Around) -> Iterator[None]:
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


def _eager_modules(model: torch.nn.Module, path: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules whose calls Python makes; of compiled ones the outermost."""
    yield path, model
    if isinstance(model, OptimizedModule) or model._compiled_call_impl is not None:
        return
    for name, child in model.named_children():
        yield from _eager_modules(child, f"{path}.{name}" if path else name)
