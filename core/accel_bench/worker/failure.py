"""Turn an exception of the worker into a status, reasons, and what else is worth keeping."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator

from accel_bench.errors import AccelBenchError, HookError, InvalidRunError
from accel_bench.result import Failure, Status
from accel_bench.worker import oom

_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_OUT_OF_MEMORY_NAMES = ("OutOfMemoryError", "MemoryError")
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory: you tried to allocate",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "HIPBLAS_STATUS_ALLOC_FAILED",
)


def status_of(error: BaseException) -> Status:
    """Return `oom` for an out-of-memory error among the causes, else the status of the error."""
    if out_of_memory(error) is not None:
        return Status.OOM
    if isinstance(error, InvalidRunError):
        return Status.INVALID
    if isinstance(error, HookError):
        return Status.PLUGIN_ERROR
    if isinstance(error, KeyboardInterrupt):
        return Status.INTERRUPTED
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
        return Status.INFRA_ERROR
    return Status.FAILED


def reasons_of(error: BaseException, phase: str = "") -> tuple[str, ...]:
    """Return the reasons, a line each; `phase` is what the worker was doing."""
    if isinstance(error, InvalidRunError):
        return error.reasons
    guilty = out_of_memory(error)
    if guilty is None:
        return (_line(error),)
    reason = oom.sentence(oom.memory_figures(guilty), _step_part(error, phase) or phase)
    return (reason,) if guilty is error else (reason, _line(error))


def failure_of(error: BaseException, phase: str = "") -> Failure:
    """Return what is kept of an error; `phase` is what the worker was doing."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    guilty = out_of_memory(error)
    hook = error if isinstance(error, HookError) else None
    return Failure(
        type=type(error).__name__,
        message=str(error)[:4000],
        traceback="".join(lines)[-16000:],
        step_part=_step_part(error, phase),
        plugin=hook.plugin if hook else None,
        distribution=hook.distribution if hook else None,
        hook=hook.hook if hook else None,
        **(oom.memory_figures(guilty) if guilty is not None else {}),
    )


def out_of_memory(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error among an exception and its causes; None without one."""
    for link in _chain(error):
        names = {kind.__name__ for kind in type(link).__mro__}
        if names.intersection(_OUT_OF_MEMORY_NAMES):
            return link
        if isinstance(link, RuntimeError) and any(t in str(link) for t in _OUT_OF_MEMORY_TEXTS):
            return link
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and the exceptions of groups; each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]


def _line(error: BaseException) -> str:
    if isinstance(error, AccelBenchError):
        return str(error)
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}".removesuffix(": ")


def _step_part(error: BaseException, phase: str) -> oom.StepPart | None:
    within = phase in oom.STEP_PHASES and not isinstance(error, HookError)
    return oom.step_part(error) if within else None
