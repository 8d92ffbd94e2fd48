"""Each row on its own, summed."""

import reference
import torch


def step(model, optimizer, batch):
    logits = torch.cat([model(row) for row in batch["words"].split(1)])
    return reference.update(optimizer, reference.loss_of(logits, batch["labels"]))
