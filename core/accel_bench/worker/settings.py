"""What core sets in the worker for every stack alike: threads, seeds, the process group."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from accel_bench.errors import InvalidRunError
from accel_bench.run_context import Run
from accel_bench.scenario.environment import OPENMP_DEFAULTS

SAME_FOR_ALL = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Variables that some libraries set when they are imported, so that having a library installed
would change every stack; what a scenario or the user sets comes first."""

ALLOCATOR_ALIASES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Older names that torch still reads, before `PYTORCH_ALLOC_CONF`: they are watched, not set."""


BACKEND_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Variable by which torch imports whatever is installed for `torch.backends`, in every process."""


def set_environment(asked: Mapping[str, str]) -> None:
    """Give every stack the same allocator, order of devices and way of waiting.

    Called before anything is imported that reads them. `asked` is what the scenario sets: torch
    imports what distributions have registered with it only where that says so.
    """
    for name, value in {**SAME_FOR_ALL, **OPENMP_DEFAULTS}.items():
        os.environ.setdefault(name, value)
    os.environ[BACKEND_AUTOLOAD] = asked.get(BACKEND_AUTOLOAD, "0")


OBJECTS_BETWEEN_COLLECTIONS = 1_000_000
"""How many objects are made before the garbage collector looks, while libraries are imported."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely within the block, where libraries are imported.

    They leave next to none, and a fifth of an import's time would go into looking for it. No later
    collection looks at what they made until the window has closed. What a plugin sets within the
    block stays.
    """
    before, *others = gc.get_threshold()
    rare = (OBJECTS_BETWEEN_COLLECTIONS, *others)
    gc.set_threshold(*rare)
    try:
        yield
    finally:
        gc.freeze()
        if gc.get_threshold() == rare:
            gc.set_threshold(before, *others)


LAUNCHED_BY_ACCELERATE = "ACCELERATE_MIXED_PRECISION"
"""Variable that `accelerate launch` always sets."""

MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Variables in which implementations of MPI say how many processes they have started."""


RENDEZVOUS = "ACCEL_BENCH_RENDEZVOUS"
"""Variable by which a launcher says where ranks meet that share no folder: `tcp://HOST:PORT`."""


def apply_settings(run: Run) -> None:
    """Seed everything, and set torch up where `prepare_process` has imported it.

    Raises InvalidRunError where the launcher says that it has not started every rank.
    """
    started = started_processes() or str(run.world_size)
    if started != str(run.world_size):  # those that a launcher has not started never come
        said = f"the scenario says {run.world_size}"
        way_out = "have the launcher start one for each rank, or set resources.devices"
        raise InvalidRunError([f"{started} processes were started, {said}; {way_out}"])
    random.seed(run.scenario.train.seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(run.scenario.train.seed % 2**32)
    if "torch" in sys.modules:
        _set_up_torch(run)


def started_processes() -> str:
    """Return how many processes the launcher says it has started; empty where it does not say.

    `accelerate launch` gives their number in MPI's variables where MPI starts them, and in none
    where it starts one process, which it also does on CPUs where it was asked for more.
    """
    variables = MPI_SIZES if LAUNCHED_BY_ACCELERATE in os.environ else ()
    found = (os.environ[name] for name in ("WORLD_SIZE", *variables) if name in os.environ)
    return next(found, "1" if variables else "")


def agree(run: Run, ready: bool) -> bool:
    """Return whether all ranks are ready; with one rank, or without torch, whether this one is."""
    if run.world_size == 1 or not has_process_group():
        return ready
    import torch

    flag = torch.tensor([int(ready)], device=str(run.device))
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN)
    return bool(flag.item())


def leave_process_group() -> None:
    """Destroy the process group, so that no rank dies of it at exit."""
    if has_process_group():
        sys.modules["torch"].distributed.destroy_process_group()


def _set_up_torch(run: Run) -> None:
    """Set threads, precision of matmuls, seeds, device and process group."""
    import torch

    train = run.scenario.train
    if run.scenario.resources.threads is not None:
        torch.set_num_threads(run.scenario.resources.threads)
    torch.set_float32_matmul_precision(train.matmul_precision)
    torch.manual_seed(train.seed)
    run.device_type.prepare()
    run.device_type.use(run.device.index)
    if run.world_size > 1:
        _join_process_group(run)


def _join_process_group(run: Run) -> None:
    """Meet the other ranks through a file in the run's folder, where there is no port that could be
    taken; without a folder that all can reach, where the launcher says."""
    import torch

    from accel_bench.modeling.process_group import backends_for

    meeting = os.environ.get(RENDEZVOUS) or f"file://{Path(run.folder) / 'rendezvous'}"
    torch.distributed.init_process_group(
        backends_for(run.device_type),
        init_method=meeting,
        rank=run.rank,
        world_size=run.world_size,
        timeout=timedelta(seconds=run.scenario.measure.timeout_seconds),
    )
    run.barrier = torch.distributed.barrier


def has_process_group() -> bool:
    """Return whether this process has joined others by torch.distributed."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.distributed.is_available() and torch.distributed.is_initialized())
