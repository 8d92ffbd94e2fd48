"""The reference's step, as it stands."""

import reference


def step(model, optimizer, batch):
    return reference.step(model, optimizer, batch)
