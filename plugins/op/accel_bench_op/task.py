"""The task `operation`: nothing is trained, one operation is called on its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_bench import Batch, Held, Loss, Options, Run, Task, hookimpl


class Operation(Task[Options]):
    """Counts calls of one operation, in the place of tokens; an engine such as `op` makes them."""

    counts = "calls"

    def held(self, batch: Batch) -> Held | None:
        """Return nothing: calls are in no tensor."""
        return None

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return a loss of 0: a call has none."""
        return no_loss


def no_loss(operation: Any, inputs: Mapping[str, Any], supervised_in_step: int) -> float:
    """Return 0."""
    return 0.0
