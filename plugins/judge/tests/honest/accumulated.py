"""Two micro-batches, whose gradients add up."""

import reference


def step(model, optimizer, batch):
    optimizer.zero_grad()
    total = 0.0
    for words, labels in zip(batch["words"].split(2), batch["labels"].split(2), strict=True):
        loss = reference.loss_of(model(words), labels) / 2
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total
