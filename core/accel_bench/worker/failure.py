"""Turn an exception of the worker into a status, the phase it happened in, and what is worth
keeping."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterator
from typing import Any

from accel_bench.errors import AccelBenchError, HookError, InvalidRunError
from accel_bench.result import Status

_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_BYTES = re.compile(r"([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_OUT_OF_MEMORY_NAMES = ("OutOfMemoryError", "MemoryError")
_OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def status_of(error: BaseException) -> Status:
    """Out of memory wherever it hides, else by whose fault it is."""
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


def reasons_of(error: BaseException) -> tuple[str, ...]:
    """What to tell in a line each."""
    if isinstance(error, InvalidRunError):
        return error.reasons
    if isinstance(error, AccelBenchError):
        return (str(error),)
    text = str(error).strip().splitlines()
    return (f"{type(error).__name__}: {text[0] if text else ''}".removesuffix(": "),)


def describe(error: BaseException) -> dict[str, Any]:
    """Type, message and traceback; for an out-of-memory error also the bytes asked for and free."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    found: dict[str, Any] = {
        "type": type(error).__name__,
        "message": str(error)[:4000],
        "traceback": "".join(lines)[-16000:],
    }
    guilty = out_of_memory(error)
    if guilty is not None:
        found |= _memory_figures(str(guilty))
    if isinstance(error, HookError):
        found |= {
            "plugin": error.plugin,
            "distribution": error.distribution,
            "hook": error.hook,
        }
    return found


def out_of_memory(error: BaseException) -> BaseException | None:
    """The out-of-memory error among an exception and its causes; None when there is none."""
    for link in _chain(error):
        names = {kind.__name__ for kind in type(link).__mro__}
        if names.intersection(_OUT_OF_MEMORY_NAMES):
            return link
        if isinstance(link, RuntimeError) and any(t in str(link) for t in _OUT_OF_MEMORY_TEXTS):
            return link
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes and contexts, and the members of groups; each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]


def _memory_figures(text: str) -> dict[str, Any]:
    """Bytes asked for and free, as torch words them on a GPU and on a CPU."""
    asked = re.search(r"[Tt]ried to allocate " + _BYTES.pattern, text)
    cpu = re.search(r"you tried to allocate (\d+) bytes", text)
    free = re.search(r"of which " + _BYTES.pattern + " is free", text)
    return {
        "bytes_asked": int(cpu[1]) if cpu else _bytes(asked),
        "bytes_free": _bytes(free),
    }


def _bytes(match: re.Match[str] | None) -> int | None:
    return int(float(match[1]) * _UNITS[match[2]]) if match else None
