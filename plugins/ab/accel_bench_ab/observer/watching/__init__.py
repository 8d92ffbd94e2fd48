"""Observer of a training process: records each optimizer step in a memory-mapped file.

The observed command's own Python imports this package by path. The observer uses only the standard
library and torch, never synchronizes with the device and prints nothing. Numbers of a step are in
shared memory as soon as the step has ended, so that they survive any signal.
`accel_bench_ab.record` reads the files.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from .hooks import untraced, watch_autocast, watch_backward, watch_loader, watch_scaler
from .watch import Watch

WATCHES: list[Watch] = []
"""The observer of this process, once torch is imported; at most one."""


def start(torch: Any, folder: str) -> None:
    """Observe the optimizers, losses and batches of this process and its forked children.

    `torch` is the imported module. The observer writes its files to `folder`.
    """
    watch = Watch(torch, folder)
    WATCHES.append(watch)
    optimizers = sys.modules["torch.optim.optimizer"]
    optimizers.register_optimizer_step_pre_hook(untraced(torch, watch.before_step))
    optimizers.register_optimizer_step_post_hook(untraced(torch, watch.after_step))
    watch_backward(torch, watch)
    watch_scaler(torch, watch)
    watch_autocast(torch, watch)
    watch_loader(watch)
    os.register_at_fork(after_in_child=watch.forget)
    atexit.register(watch.close)
