"""Step markers for CUDA graphs, and counts of the graphs that torch recorded."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

REASONS = 3
"""Maximum number of reported reasons for skipped CUDA graphs."""


class StepMarker:
    """Hooks that mark the first forward pass of each optimizer step for torch, with any engine.

    The next step overwrites the memory of a CUDA graph's outputs. By default torch regards each
    compiled call after a backward pass as a new step. Then accumulated micro-batches would
    overwrite gradients, and recomputed blocks the inputs of later blocks.
    """

    def __init__(self, model: nn.Module) -> None:
        """Register hooks on the steps of all optimizers and the calls of `model`, compiled or
        not."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.steps = 0
        self._stepped = True
        self._handles = [register_optimizer_step_post_hook(self._after_step)]
        self._model, self._compiled = model, model._compiled_call_impl
        if self._compiled is None:
            self._handles.append(model.register_forward_pre_hook(self._before_forward))
        else:  # A hook of the model itself would be compiled with it.
            model._compiled_call_impl = self._marked(self._compiled)

    def remove(self) -> None:
        """Remove the hooks, and free all recorded graphs, which hold memory."""
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        self._model._compiled_call_impl = self._compiled
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        reset_cudagraph_trees()

    def _after_step(self, *_: Any) -> None:
        self._stepped = True

    def _before_forward(self, *_: Any) -> None:
        """Mark a new step for torch at its first forward pass; recomputed blocks mark none."""
        if self._stepped:
            from torch.compiler import cudagraph_mark_step_begin

            self._stepped = False
            self.steps += 1
            cudagraph_mark_step_begin()

    def _marked(self, compiled: Any) -> Any:
        """Return a whole model's compiled call, wrapped so that it first marks a new step."""

        @functools.wraps(compiled)
        def call(*inputs: Any, **keywords: Any) -> Any:
            self._before_forward()
            return compiled(*inputs, **keywords)

        return call


@dataclass(frozen=True)
class Recordings:
    """Numbers of CUDA graphs that torch holds for one device: in total, and replayed in a step."""

    graphs: int
    """Number of recorded graphs: one for each call of a compiled function within a step."""

    in_last_step: int
    """Number of graphs that the last step replayed; 0 during warm-up and recording."""


def read_recordings(device_index: int) -> Recordings | None:
    """Return the numbers of graphs in torch's tree of graphs; None if this torch has no tree.

    `device_index` is the index of the CUDA device.
    """
    try:
        from torch._inductor.cudagraph_trees import ExecutionState, get_manager

        manager = get_manager(device_index, create_if_none_exists=False)
        if manager is None:
            return Recordings(0, 0)
        waiting, graphs = [*manager.get_roots()], 0
        while waiting:
            node = waiting.pop()
            graphs += 1
            waiting += [child for children in node.children.values() for child in children]
        replays = manager.path_state is ExecutionState.EXECUTION
        return Recordings(graphs, len([*manager.current_node._path_from_root]) if replays else 0)
    except (ImportError, AttributeError):
        return None


class Capture:
    """Counts of the CUDA graphs recorded and replayed on one device at a window's start and end."""

    def __init__(self, device_index: int) -> None:
        self._device_index = device_index
        self._before: Recordings | None = None
        self._after: Recordings | None = None

    def start(self) -> None:
        """Read the counts of CUDA graphs at the start of the window."""
        self._before = read_recordings(self._device_index)

    def finish(self) -> None:
        """Read the counts of CUDA graphs at the end of the window."""
        self._after = read_recordings(self._device_index)

    @property
    def graphs(self) -> int | None:
        """Number of graphs recorded until the window's end; None if torch does not count them."""
        return None if self._after is None else self._after.graphs

    def problem(self) -> str:
        """Return a reason if the window recorded CUDA graphs or replayed none; else an empty
        text."""
        if self._before is None or self._after is None:
            return "this torch does not tell how many CUDA graphs it has recorded"
        if not self._after.graphs:
            reasons = "; ".join(_skip_reasons())
            return "CUDA graphs were asked for and none was recorded" + _after_colon(reasons)
        if more := self._after.graphs - self._before.graphs:
            return f"{more} CUDA graphs were recorded inside the window, where all should be there"
        if not self._after.in_last_step:
            return "the last step of the window replayed no CUDA graph"
        return ""

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence: recorded, replayed and skipped graphs, with reasons for skips."""
        from torch._dynamo.utils import counters

        inductor, after, before = counters["inductor"], self._after, self._before
        return {
            "recorded": self.graphs,
            "recorded_in_window": after.graphs - before.graphs if after and before else None,
            "replayed_in_last_step": after.in_last_step if after else None,
            "copied_inputs": inductor["cudagraph_recorded_non_static_inputs"],
            "skips": inductor["cudagraph_skips"],
            "skip_reasons": _skip_reasons(),
        }


def _skip_reasons() -> list[str]:
    """Return the first distinct reasons that torch logged for functions without CUDA graphs.

    There are at most `REASONS`, of one line each; the list is empty if this torch logs none.
    """
    try:
        from torch._dynamo.utils import get_compilation_metrics

        logged = [entry.cudagraph_skip_reason for entry in get_compilation_metrics()]
    except (ImportError, AttributeError):
        return []
    reasons = dict.fromkeys(reason.strip().splitlines()[0] for reason in logged if reason)
    return list(reasons)[:REASONS]


def _after_colon(text: str) -> str:
    return f": {text}" if text else ""
