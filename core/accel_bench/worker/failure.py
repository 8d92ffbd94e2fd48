"""Conversion of a worker's exception into a status, reasons and sizes of memory.

An out-of-memory error gives memory sizes (requested, free ones) and the part of the step.
"""

from __future__ import annotations

import errno
import re
import resource
import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import Literal, TypeAlias

from accel_bench.analysis.wording import size
from accel_bench.documents.canonical import whole_text
from accel_bench.errors import AccelBenchError, HookError, InvalidRunError, PluginError
from accel_bench.job import STEP_PHASES
from accel_bench.machine.devices import started_device
from accel_bench.machine.out_of_memory import out_of_memory
from accel_bench.result import Failure, Status

_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

OBSERVING = "while steps were observed; the measured window is complete"
"""Addition to the reason for errors that were raised while plugins observed steps."""

_SIZE = r"(\d+(?:\.\d*)?) ?(bytes|[KMGT]i?B)"
_UNITS = {
    "bytes": 1,
    **{
        f"{letter}{i}B": 2 ** (10 * power)
        for power, letter in enumerate("KMGT", 1)
        for i in ("", "i")
    },
}
"""Bytes of each unit; some allocators write `GB` for `GiB`, but all count by 1024."""

_WORDINGS: Mapping[str, tuple[str, ...]] = {
    "bytes_asked": (rf"[Tt]ried to allocate {_SIZE}", rf"Unable to allocate {_SIZE}"),
    "bytes_free": (rf"of which {_SIZE} is free",),
    "bytes_total": (rf"has a total capacity of {_SIZE}", rf"max allowed: {_SIZE}"),
    "bytes_in_use": (rf"this process has {_SIZE} memory in use",),
    "bytes_allocated": (rf"{_SIZE} is allocated by PyTorch", rf"MPS allocated: {_SIZE}"),
    "bytes_reserved_unallocated": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
}
"""Memory figures by name, with their patterns in errors of torch's allocators and of numpy."""

_BACKWARD = ("torch/_tensor.py", "torch/autograd/__init__.py", "torch/autograd/graph.py")
_OPTIMIZER = ("torch/nn/utils/clip_grad.py",)
_SCALER = ("torch/amp/grad_scaler.py",)
_SCALER_STEPS = ("step", "unscale_", "update")
_MODULE = ("torch/nn/modules/module.py",)

StepPart: TypeAlias = Literal["forward", "backward", "optimizer"]
"""Part of a step in which memory may run out."""


def status_of(error: BaseException) -> Status:
    """Return `oom` if an error or a cause of it is out of memory, else the status for its class."""
    if out_of_memory(error) is not None:
        return Status.OOM
    if isinstance(error, InvalidRunError):
        return Status.INVALID
    if isinstance(error, HookError | PluginError):
        return Status.PLUGIN_ERROR
    if isinstance(error, KeyboardInterrupt):
        return Status.INTERRUPTED
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
        return Status.INFRA_ERROR
    return Status.FAILED


def reasons_of(error: BaseException, phase: str = "") -> tuple[str, ...]:
    """Return the reasons, one line each, for the status of a run that an error in `phase` ended."""
    if isinstance(error, InvalidRunError):
        return tuple(map(whole_text, error.reasons))
    guilty = out_of_memory(error)
    reasons = [_line(error)] if guilty is not error else []
    if guilty is not None:
        place = _step_part(error, phase) or phase
        reasons.insert(0, sentence(memory_figures(guilty), place))
    if phase == "observe_steps" and not isinstance(error, HookError):
        reasons[0] += f" ({OBSERVING})"
    return tuple(map(whole_text, reasons))


def failure_of(error: BaseException, phase: str = "") -> Failure:
    """Return the `Failure` to store for an error that was raised in a worker's phase `phase`."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    guilty = out_of_memory(error)
    hook = error if isinstance(error, HookError) else None
    return Failure(
        type=type(error).__name__,
        message=whole_text(str(error)[:4000]),
        traceback=whole_text("".join(lines)[-16000:]),
        message_suffices=isinstance(error, AccelBenchError) and hook is None,
        step_part=_step_part(error, phase),
        plugin=hook.plugin if hook else None,
        distribution=hook.distribution if hook else None,
        hook=hook.hook if hook else None,
        **(memory_figures(guilty) if guilty is not None else {}),
    )


def _line(error: BaseException) -> str:
    if isinstance(error, AccelBenchError):
        return str(error)
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}".removesuffix(": ")


def _step_part(error: BaseException, phase: str) -> StepPart | None:
    within = phase in STEP_PHASES and not isinstance(error, HookError)
    return step_part(error) if within else None


def memory_figures(error: BaseException) -> dict[str, int | None]:
    """Return memory sizes in bytes by name, from the text of an out-of-memory error if it has them.

    They are `bytes_asked`, `bytes_free`, `bytes_total`, `bytes_in_use` by this process,
    `bytes_allocated` to tensors, and `bytes_reserved_unallocated`. Sizes from the text are rounded;
    others are from the allocator, or None if unknown.
    """
    text = str(error)
    sizes = {name: _first(wordings, text) for name, wordings in _WORDINGS.items()}
    in_use, total = sizes["bytes_in_use"], sizes["bytes_total"]
    if in_use is not None and total is not None and in_use > total:
        # In a container that hides processes torch prints 2**64, the sum of what it could not read.
        sizes["bytes_in_use"] = None
    on_host = isinstance(error, MemoryError) or "DefaultCPUAllocator" in text
    known = _host_memory() if on_host else _device_memory()
    return {name: known.get(name) if value is None else value for name, value in sizes.items()}


def step_part(error: BaseException) -> StepPart | None:
    """Return the part of a step in which an error was raised: that of the outermost call of torch.

    An inner call may be misleading: a backward pass may compute a forward pass again. Clipping
    belongs to the optimizer. Returns None for an error elsewhere, such as in making a batch.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        path = PurePath(frame.f_code.co_filename).as_posix()
        name = frame.f_code.co_name
        if path.endswith(_BACKWARD) and "backward" in name:
            return "backward"
        if path.endswith(_OPTIMIZER) or "/torch/optim/" in path:
            return "optimizer"
        if path.endswith(_SCALER) and name in _SCALER_STEPS:
            return "optimizer"
        if path.endswith(_MODULE) and name.endswith("_call_impl"):
            return "forward"
    return None


def sentence(figures: Mapping[str, int | None], where: str) -> str:
    """Return a text such as `out of memory in forward: asked 2 GiB`; `where` is `forward` in it."""
    parts = []
    if (asked := figures.get("bytes_asked")) is not None:
        parts.append(f"asked {size(asked)}")
    if (free := figures.get("bytes_free")) is not None:
        total = figures.get("bytes_total")
        parts.append(f"{size(free)} free" + (f" of {size(total)}" if total is not None else ""))
    if (unused := figures.get("bytes_reserved_unallocated")) is not None:
        parts.append(f"{size(unused)} reserved but not allocated")
    place = f" in {where}" if where else ""
    return f"out of memory{place}" + (f": {', '.join(parts)}" if parts else "")


def _first(wordings: tuple[str, ...], text: str) -> int | None:
    matches = (re.search(wording, text) for wording in wordings)
    match = next(filter(None, matches), None)
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _device_memory() -> dict[str, int]:
    """Return sizes of the device's memory in bytes by name; empty if torch started no device."""
    device = started_device()
    if device is None:
        return {}
    try:
        left, held = device.free_memory(), device.memory()
    except RuntimeError:
        # After some errors a device does not respond.
        return {}
    sizes = {} if left is None else {"bytes_free": left[0], "bytes_total": left[1]}
    if (allocated := held.get("device_allocated_bytes")) is not None:
        sizes["bytes_allocated"] = allocated
        if (reserved := held.get("device_reserved_bytes")) is not None:
            sizes["bytes_reserved_unallocated"] = reserved - allocated
    return sizes


def _host_memory() -> dict[str, int]:
    """Return free and total bytes of the host, limited by RLIMIT_AS, and bytes of this process."""
    import psutil

    memory, own = psutil.virtual_memory(), psutil.Process().memory_info()
    free, total = memory.available, memory.total
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free, total = min(free, max(0, limit - own.vms)), min(total, limit)
    return {"bytes_free": free, "bytes_total": total, "bytes_in_use": own.rss}
