"""Four micro-batches, in the float64 of the reference."""

import reference


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = 0.0
    for given in batch["given"].split(8):
        part = reference.loss_of(model, given) / 4
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss
