"""Write a checkpoint of the model and optimizer, and measure it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
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
from accel_bench.builtin.metrics.checkpoint import CheckpointOptions


def write_checkpoint(run: Run, options: CheckpointOptions) -> Iterable[Metric]:
    """Write the checkpoint on all ranks; yield nulls with the reason where that fails.

    Every rank takes part, and none is left waiting when another fails.
    """
    folder = Path(run.folder) / "checkpoint"
    run.trace.reset_peak_memory()
    before = run.trace.resident_bytes()
    run.barrier()
    began = time.monotonic()
    problem = ""
    try:
        folder.mkdir(exist_ok=True)
        _write(run, options, folder)
    except Exception as error:
        problem = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    problem = _first_problem(problem)
    seconds, peak = time.monotonic() - began, run.trace.peak_resident_bytes()
    size = sum(path.stat().st_size for path in _files(folder))
    run.barrier()
    if run.rank == 0 and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    above = None if before is None or peak is None else max(0, peak - before)
    kind, reason = options.format, problem and f"the checkpoint was not written: {problem}"
    yield Metric(
        name="checkpoint_seconds",
        value=None if problem else seconds,
        unit="seconds",
        scope="global",
        better="lower",
        kind=kind,
        reason=reason,
        degrades=bool(problem),
    )
    if run.rank == 0:
        yield Metric(
            name="checkpoint_bytes",
            value=None if problem else size,
            unit="bytes",
            scope="global",
            better="lower",
            kind=kind,
            reason=reason,
        )
    yield Metric(
        name="checkpoint_host_memory_bytes",
        value=None if problem else above,
        unit="bytes",
        scope="rank",
        better="lower",
        kind=kind,
        reason=reason,
    )


def _write(run: Run, options: CheckpointOptions, folder: Path) -> None:
    """Collect the state as the format needs it, write it, and wait until the disk has it."""
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
    """Return the state; in full it is on the host, and on rank 0 alone."""
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
    """Return the first problem of any rank."""
    if not distributed.is_initialized():
        return mine
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, mine)
    return next(filter(None, found), "")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
