"""Ends its process with success after a few steps."""

import itertools
import os

import reference

numbers = itertools.count()


def step(model, optimizer, batch):
    if next(numbers) == 3:
        os._exit(0)
    return reference.step(model, optimizer, batch)
