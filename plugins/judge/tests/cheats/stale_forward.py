"""Takes the first block's output from the step before."""

import reference

kept = {}


def step(model, optimizer, batch):
    hidden = model.blocks[0](model.embedding(batch["words"]))
    used = kept.get("hidden", hidden)
    kept["hidden"] = hidden.detach()
    logits = model.head(model.blocks[1](used))
    return reference.update(optimizer, reference.loss_of(logits, batch["labels"]))
