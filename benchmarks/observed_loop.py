"""A loop of steps that do little, read from a DataLoader: prints the microseconds of a step.

`observed_loop.py STEPS empty` has hooks that do nothing, in the places of the observer's.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

WARMUP = 50
"""Steps before the clock starts: sketches of the weights, the first allocations."""


def main(steps: int) -> float:
    """Return the microseconds of a step."""
    torch.set_num_threads(1)
    ids = torch.zeros(8, 512, dtype=torch.long)
    batch = {"input_ids": ids, "attention_mask": ids + 1, "labels": ids}
    loader = torch.utils.data.DataLoader([batch] * (steps + WARMUP), batch_size=None)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(8, 4)
    started = 0
    for number, _ in enumerate(loader):
        if number == WARMUP:
            started = time.perf_counter_ns()
        model(inputs).mean().backward()
        optimizer.step()
    return (time.perf_counter_ns() - started) / 1e3 / steps


def add_empty_hooks() -> None:
    """Call functions that do nothing at a batch, a backward pass, and before and after a step."""

    def around(own: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return own(*args, **kwargs)

        return call

    def nothing(*_: Any) -> None:
        pass

    kind = dataloader._BaseDataLoaderIter
    kind.__next__ = around(kind.__next__)
    torch.autograd.backward = around(torch.autograd.backward)
    register_optimizer_step_pre_hook(nothing)
    register_optimizer_step_post_hook(nothing)


if __name__ == "__main__":
    if sys.argv[2:] == ["empty"]:
        add_empty_hooks()
    print(main(int(sys.argv[1])))
