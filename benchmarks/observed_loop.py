"""A loop of steps that do little, read from a DataLoader: prints the microseconds of a step."""

from __future__ import annotations

import sys
import time

import torch

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


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
