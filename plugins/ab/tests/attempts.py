"""Trainings that mislead an observer: `attempts.py FOLDER` runs each in a process forked from it.

Each leaves its records in FOLDER/NAME; how it ended stands in FOLDER/names.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # As an optimizer does: once here in the place of once in each process.

STEPS = 5


class Ours:
    """A tiny training: a linear layer, five batches of four samples."""

    def __init__(self, kind: Any = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = kind(self.model.parameters(), lr=0.1)
        self.inputs = torch.randn(STEPS, 4, 4)

    def loss(self, step: int) -> Any:
        """Return the loss of a step's batch."""
        return self.model(self.inputs[step]).square().mean()


def plain() -> None:
    ours = Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()


def twice_a_batch() -> None:
    ours = Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()
        ours.optimizer.step()


def two_losses_a_batch() -> None:
    ours = Ours()
    for step in range(STEPS):
        for _ in range(2):
            ours.loss(step).backward()
            ours.optimizer.step()


def two_optimizers() -> None:
    ours = Ours()
    weight, bias = ours.model.weight, ours.model.bias
    both = [torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([bias], lr=0.1)]
    for step in range(STEPS):
        ours.loss(step).backward()
        for one in both:
            one.step()


def optimizers_in_turns() -> None:
    ours, other = Ours(), Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()
        other.loss(step).backward()
        other.optimizer.step()


def replaced_step() -> None:
    ours = Ours()

    def step_of_our_own() -> None:
        with torch.no_grad():
            for one in ours.model.parameters():
                one.sub_(0.1 * one.grad)

    ours.optimizer.step = step_of_our_own
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()


def wrapped_step() -> None:
    ours = Ours()
    own = ours.optimizer.step
    ours.optimizer.step = lambda: own()  # noqa: PLW0108 - it has no attributes of its own
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()


def replaced_for_the_class() -> None:
    own = torch.optim.SGD.step
    torch.optim.SGD.step = lambda self: own(self)  # noqa: PLW0108
    plain()


def without_optimizer() -> None:
    ours = Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        with torch.no_grad():
            for one in ours.model.parameters():
                one.sub_(0.1 * one.grad)


def closures() -> None:
    ours = Ours()
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            ours.optimizer.zero_grad()
            loss = ours.loss(step)
            loss.backward()
            return loss

        ours.optimizer.step(closure)


def in_backward() -> None:
    ours = Ours()
    for one in ours.model.parameters():
        own = torch.optim.SGD([one], lr=0.1)
        one.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    for step in range(STEPS):
        ours.loss(step).backward()


def scaled() -> None:
    ours = Ours()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(STEPS):
        ours.optimizer.zero_grad()
        scaler.scale(ours.loss(step)).backward()
        if step == 2:
            ours.model.weight.grad.fill_(torch.inf)
        scaler.step(ours.optimizer)
        scaler.update()


def in_a_fork() -> None:
    plain()
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        plain()


def killed() -> None:
    plain()
    os.kill(os.getpid(), 9)


CASES = [
    plain,
    twice_a_batch,
    two_losses_a_batch,
    two_optimizers,
    optimizers_in_turns,
    replaced_step,
    wrapped_step,
    replaced_for_the_class,
    without_optimizer,
    closures,
    in_backward,
    scaled,
    in_a_fork,
    killed,
]


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = {}
    for case in CASES:
        folder = Path(sys.argv[1]) / case.__name__
        folder.mkdir()
        child = os.fork()
        if not child:
            sys.modules["_accel_bench_ab_watch"].WATCHES[0].folder = str(folder)
            case()
            sys.exit()
        names[case.__name__] = os.waitpid(child, 0)[1]
    Path(sys.argv[1], "names.json").write_text(json.dumps(names))
