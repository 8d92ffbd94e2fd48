"""Recognition of out-of-memory errors of all libraries."""

from __future__ import annotations

from collections.abc import Iterator

_NAMES = ("OutOfMemoryError", "MemoryError")
_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory: you tried to allocate",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "HIPBLAS_STATUS_ALLOC_FAILED",
)


def out_of_memory(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error in the chain of an exception and its causes, or None."""
    for link in _chain(error):
        names = {kind.__name__ for kind in type(link).__mro__}
        if names.intersection(_NAMES):
            return link
        if isinstance(link, RuntimeError) and any(text in str(link) for text in _TEXTS):
            return link
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and the exceptions of groups, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
