"""Writing of a checkpoint of model and optimizer, with measurements of time, size and memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch import distributed
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

from accel_bench import Metric, Run
from accel_bench.modeling.kept_elsewhere import kept_elsewhere
from accel_bench_metrics.checkpoint import CheckpointOptions


def write_checkpoint(run: Run, options: CheckpointOptions) -> Iterable[Metric]:
    """Write the checkpoint on all ranks, and yield its metrics; null with a reason if it fails."""
    folder = Path(run.folder) / "checkpoint"
    problem = _first_problem(_obstacle(run, folder))
    run.trace.reset_peak_memory()
    before = run.trace.resident_bytes()
    run.barrier()
    began = time.monotonic()
    if not problem:
        problem = _first_problem(_problem_of(lambda: _write(run, options, folder)))
    seconds, peak = time.monotonic() - began, run.trace.peak_resident_bytes()
    size = _size(folder)
    run.barrier()
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    above = None if before is None or peak is None else max(0, peak - before)
    kind, reason = options.format, problem and f"the checkpoint was not written: {problem}"
    more: Any = {"better": "lower", "kind": kind, "reason": reason, "degrades": bool(problem)}
    yield Metric(
        name="checkpoint_seconds",
        value=None if problem else seconds,
        unit="seconds",
        scope="global",
        **more,
    )
    if run.rank == 0:
        value = None if problem else size
        yield Metric(name="checkpoint_bytes", value=value, unit="bytes", scope="global", **more)
    value = None if problem else above
    name = "checkpoint_host_memory_bytes"
    yield Metric(name=name, value=value, unit="bytes", scope="rank", **more)


def _obstacle(run: Run, folder: Path) -> str:
    """Create the folder; return the reason why this rank cannot write, or an empty text."""
    if any(kept_elsewhere(parameter) for parameter in run.unwrapped_model.parameters()):
        return "a library keeps the weights in tensors of its own, which it alone can write"
    return _problem_of(lambda: folder.mkdir(exist_ok=True))


def _problem_of(action: Callable[[], object]) -> str:
    """Call `action`, and return its exception as one line; an empty text if it succeeds."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""


def _size(folder: Path) -> int:
    """Return the total bytes of the checkpoint's files of all ranks.

    The ranks' folder may be shared or local to each rank.
    """
    mine = {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}
    if not distributed.is_initialized():
        return sum(mine.values())
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, mine)
    return sum({name: size for files in parts for name, size in files.items()}.values())


def _write(run: Run, options: CheckpointOptions, folder: Path) -> None:
    """Write the training state in the checkpoint's format, and sync its files to the disk."""
    full = options.format == "full"
    state = _state(run, options, full)
    if not full:
        torch.distributed.checkpoint.save(
            state, checkpoint_id=folder, no_dist=not distributed.is_initialized()
        )
    elif run.rank == 0:
        torch.save(state, folder / "checkpoint.pt")
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _state(run: Run, options: CheckpointOptions, full: bool) -> dict[str, Any]:
    """Return the state of model and optimizer: this rank's part, or all on rank 0 if `full`."""
    how = StateDictOptions(
        full_state_dict=full,
        cpu_offload=full,
        ignore_frozen_params=not options.frozen_weights,
    )
    state: dict[str, Any] = {"model": get_model_state_dict(run.model, options=how)}
    if options.optimizer and isinstance(run.optimizer, torch.optim.Optimizer):
        state["optimizer"] = get_optimizer_state_dict(run.model, run.optimizer, options=how)
    return state


def _first_problem(mine: str) -> str:
    """Return the first nonempty problem of all ranks; `mine` is this rank's problem."""
    if not distributed.is_initialized():
        return mine
    problems: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(problems, mine)
    return next(filter(None, problems), "")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
