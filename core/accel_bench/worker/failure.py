"""Turn an exception of the worker into a status, reasons, and what else is worth keeping."""

from __future__ import annotations

import errno
import traceback

from accel_bench.documents.canonical import whole_text
from accel_bench.errors import AccelBenchError, HookError, InvalidRunError, PluginError
from accel_bench.job import STEP_PHASES
from accel_bench.machine.out_of_memory import out_of_memory
from accel_bench.result import Failure, Status
from accel_bench.worker import oom

_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

OBSERVING = "while steps were observed; the measured window is complete"
"""When an error came that ended steps that are observed."""


def status_of(error: BaseException) -> Status:
    """Return `oom` for an out-of-memory error among the causes, else the status of the error."""
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
    """Return the reasons, a line each; `phase` is what the worker was doing."""
    if isinstance(error, InvalidRunError):
        return tuple(map(whole_text, error.reasons))
    guilty = out_of_memory(error)
    reasons = [_line(error)] if guilty is not error else []
    if guilty is not None:
        place = _step_part(error, phase) or phase
        reasons.insert(0, oom.sentence(oom.memory_figures(guilty), place))
    if phase == "observe_steps" and not isinstance(error, HookError):
        reasons[0] += f" ({OBSERVING})"
    return tuple(map(whole_text, reasons))


def failure_of(error: BaseException, phase: str = "") -> Failure:
    """Return what is kept of an error; `phase` is what the worker was doing."""
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
        **(oom.memory_figures(guilty) if guilty is not None else {}),
    )


def _line(error: BaseException) -> str:
    if isinstance(error, AccelBenchError):
        return str(error)
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}".removesuffix(": ")


def _step_part(error: BaseException, phase: str) -> oom.StepPart | None:
    within = phase in STEP_PHASES and not isinstance(error, HookError)
    return oom.step_part(error) if within else None
