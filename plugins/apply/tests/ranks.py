"""A script of several ranks: it prints the losses of a stack, or why its ranks train apart."""

from __future__ import annotations

import sys
import warnings

import torch
from scripts import small_llama
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import accel_bench
from accel_bench.errors import InvalidRunError

SAMPLES = [list(range(1 + first, 20 + first)) for first in range(16)]


def losses(stack: str, wraps: bool) -> list[float]:
    """Return the losses of three steps over all ranks."""
    found = []
    with accel_bench.accelerate(
        small_llama(), stack, overrides={"train.micro_batch_size": 2}
    ) as accelerated:
        model = accelerated.model
        if wraps and any(part.name == "parallel" for part in accelerated.outside):
            model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step, batch in zip(range(3), accelerated.batches(SAMPLES), strict=False):
            loss = model(**batch.inputs).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            distributed.all_reduce(total)
            found.append(round(float(total) / distributed.get_world_size(), 4))
            if step == 0:
                accelerated.check()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    for stack in sys.argv[1:]:
        plain = stack.removeprefix("apart:")
        try:
            said: object = losses(plain, wraps=plain == stack)
        except InvalidRunError as error:
            said = error
        distributed.barrier()
        if distributed.get_rank() == 0:
            print(stack, said, flush=True)
    distributed.destroy_process_group()
