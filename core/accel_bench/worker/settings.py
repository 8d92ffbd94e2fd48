"""Settings of the worker that are equal for all stacks: threads, seeds, the process group."""

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
"""Environment variables set for every stack. Some libraries set them on import, and would change
every stack once installed. Settings of the scenario or the user come first."""

ALLOCATOR_ALIASES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Former names of `PYTORCH_ALLOC_CONF` that torch still reads; they are recorded, not set."""


BACKEND_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Variable that controls whether torch imports distributions registered for `torch.backends`."""


def set_environment(asked: Mapping[str, str]) -> None:
    """Set variables by which all stacks have the same allocator, device order and OpenMP waiting.

    Call this before any import that reads the variables. `asked` are the scenario's variables: only
    if `TORCH_DEVICE_BACKEND_AUTOLOAD` is among them does torch import registered distributions.
    """
    for name, value in {**SAME_FOR_ALL, **OPENMP_DEFAULTS}.items():
        os.environ.setdefault(name, value)
    os.environ[BACKEND_AUTOLOAD] = asked.get(BACKEND_AUTOLOAD, "0")


OBJECTS_BETWEEN_COLLECTIONS = 1_000_000
"""Number of new objects between garbage collections while libraries are imported."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python collect garbage rarely within the block, in which libraries are imported.

    Imports leave next to no garbage, and the search for it would take a fifth of their time. Until
    the window has closed, no collection visits the objects of this block again. A threshold that a
    plugin sets within the block stays.
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
"""Environment variable that `accelerate launch` always sets."""

MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables of MPI implementations for the number of started processes."""


RENDEZVOUS = "ACCEL_BENCH_RENDEZVOUS"
"""Environment variable of a launcher for the ranks' meeting point: `tcp://HOST:PORT`."""


def apply_settings(run: Run) -> None:
    """Seed all random generators, and configure torch if `prepare_process` has imported it.

    Raises InvalidRunError if the launcher states another number of processes than of ranks.
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
    """Return the number of processes that the launcher states as text; empty if it states none.

    `accelerate launch` uses MPI's variables if MPI starts the processes. It states no number if it
    starts one process, which it also does on CPUs when asked for more.
    """
    variables = MPI_SIZES if LAUNCHED_BY_ACCELERATE in os.environ else ()
    counts = (os.environ[name] for name in ("WORLD_SIZE", *variables) if name in os.environ)
    return next(counts, "1" if variables else "")


def agree(run: Run, ready: bool) -> bool:
    """Return whether `ready` is true on all ranks; without a process group, `ready` itself."""
    if run.world_size == 1 or not has_process_group():
        return ready
    import torch

    flag = torch.tensor([int(ready)], device=str(run.device))
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN)
    return bool(flag.item())


def leave_process_group() -> None:
    """Destroy the process group, if any, so that no rank fails at exit."""
    if has_process_group():
        sys.modules["torch"].distributed.destroy_process_group()


def _set_up_torch(run: Run) -> None:
    """Set torch's number of threads, matmul precision, seeds, device and process group."""
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
    """Join the ranks' process group at the launcher's address. If there is no address, the ranks
    meet by a file in the run's folder, which needs no free port."""
    import torch

    from accel_bench.modeling.process_group import backends_for

    meeting = os.environ.get(RENDEZVOUS) or f"file://{Path(run.folder) / 'rendezvous'}"
    torch.distributed.init_process_group(
        backends_for(run.device_type, run.scenario.resources.backend),
        init_method=meeting,
        rank=run.rank,
        world_size=run.world_size,
        timeout=timedelta(seconds=run.scenario.measure.timeout_seconds),
    )
    run.barrier = torch.distributed.barrier


def has_process_group() -> bool:
    """Return whether this process has joined a process group of torch.distributed."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.distributed.is_available() and torch.distributed.is_initialized())
