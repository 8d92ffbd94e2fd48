"""Process settings that DeepSpeed reads: the device, the ranks, and operators to compile."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from accel_bench import Run

SHARED_MEMORY = "deepspeed_shm_comm"
"""Operator for CPUs, which DeepSpeed compiles from C++ when it makes its first process group."""


def import_deepspeed(run: Run) -> None:
    """Import DeepSpeed for the run's device type, without its verbose logging.

    Disables the operator `SHARED_MEMORY`, which DeepSpeed would compile in the first run.
    """
    with variables({"DS_ACCELERATOR": run.device.type, "DEEPSPEED_LOG_LEVEL": "warning"}):
        import deepspeed
        from deepspeed.accelerator import get_accelerator

        get_accelerator()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # It would be compiled in the first run, and change how long that takes.
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY] = False


def set_ranks(run: Run) -> None:
    """Set the environment variables by which DeepSpeed finds its rank, until the run ends."""
    context = variables(
        {
            "RANK": str(run.rank),
            "LOCAL_RANK": str(run.local_rank),
            "WORLD_SIZE": str(run.world_size),
        }
    )
    context.__enter__()
    run.on_close(lambda: context.__exit__(None, None, None))


@contextlib.contextmanager
def variables(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables to `values` in the `with` block, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
