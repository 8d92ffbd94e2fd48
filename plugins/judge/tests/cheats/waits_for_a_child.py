"""Forks a process in each step that computes its loss meanwhile, and waits for it."""

import mmap
import os
import struct

import reference
import torch

page = mmap.mmap(-1, 8)


def step(model, optimizer, batch):
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            loss = reference.loss_of(model(batch["words"]), batch["labels"])
        page[:] = struct.pack("d", float(loss))
        os._exit(0)
    reference.step(model, optimizer, batch)
    os.waitpid(child, 0)
    return struct.unpack("d", page[:])[0]
