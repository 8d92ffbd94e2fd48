"""Train with a plain loop without accel-bench: the reference for the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from accel_bench import Batch


def take_steps(  # noqa: PLR0913, PLR0917 - what a training loop needs
    model: Any,
    optimizer: Any,
    batches: Iterator[Batch],
    device: str,
    steps: int,
    synchronize: Callable[[], None],
) -> tuple[float, int]:
    """Take optimizer steps of one micro-batch each; return their seconds and their real tokens."""
    tokens = 0
    synchronize()
    started = time.monotonic()
    for batch in islice(batches, steps):
        inputs = {name: t.to(device, non_blocking=True) for name, t in batch.inputs.items()}
        model(**inputs, num_items_in_batch=batch.supervised_in_step).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += batch.tokens.real
    synchronize()
    return time.monotonic() - started, tokens
