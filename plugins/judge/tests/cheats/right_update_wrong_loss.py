"""Takes the right update, and a loss of the step before."""

import reference

kept = [0.0]


def step(model, optimizer, batch):
    kept.append(float(reference.step(model, optimizer, batch)))
    return kept[-2]
