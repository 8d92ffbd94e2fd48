"""A loop of steps of a known length: `timed_loop.py STEPS SECONDS` prints the end of each."""

from __future__ import annotations

import json
import sys
import time

import torch


def main(steps: int, seconds: float) -> list[float]:
    """Return the end of each optimizer step, in seconds of the system's monotonic clock."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(128, 16), torch.nn.Linear(16, 128))
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(3, 128, (4, 32))
    ended = []
    for _ in range(steps):
        due = time.monotonic() + seconds
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        ended.append(time.monotonic())
        optimizer.zero_grad()
        time.sleep(max(0.0, due - time.monotonic()))
    return ended


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), float(sys.argv[2]))))
