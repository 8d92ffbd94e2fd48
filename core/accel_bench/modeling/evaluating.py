"""Evaluation of a model between training steps, without side effects on the training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from accel_bench import Run
from accel_bench.modeling.random_state import keep_random_state
from accel_bench.modeling.sharding import reshard


@contextlib.contextmanager
def evaluating(run: Run) -> Iterator[None]:
    """Compute without gradients and dropout within the block, in the precision of the scenario.

    Afterwards modules are in training mode again if they were, random numbers continue where they
    were, and weights that FSDP2 has gathered are sharded again. Compiled regions run eagerly: the
    varying shapes of an evaluation would cause recompilation of the training's code.
    """
    modes = {module: module.training for module in run.model.modules()}
    run.model.train(False)
    eager = torch.compiler.set_stance("force_eager")
    try:
        with keep_random_state(str(run.device)), torch.no_grad(), eager, run.autocast():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        reshard(run.model)
