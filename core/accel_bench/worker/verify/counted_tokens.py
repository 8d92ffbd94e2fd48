"""Check in the first warm-up step that the tokens that were counted are those that were trained on.

The counts of `Batch` are the plugin's own, and every speed is made of them. They are compared with
the batches' tensors, and with what the model's input embedding and output projection see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from accel_bench.engine import Batch
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.module_calls import is_compiled
from accel_bench.run_context import Run
from accel_bench.task import Held, token_mask
from accel_bench.worker.verify.gradient_flow import NO_BACKWARD


class CountedTokens:
    """Compares a run's counts with its tensors at the first lap, then removes its hooks.

    What is computed again in the backward pass is not seen twice. A compiled region is not watched:
    a hook in it would be compiled, and its removal would compile again.
    """

    def __init__(self, run: Run) -> None:
        self._task, self._counts = run.task, run.scenario.counts
        self.first_batch: Batch | None = None
        """The first micro-batch of the run, once it has been trained on."""

        self._embedded: list[torch.Tensor] = []
        self._projected: list[int] = []
        model = run.unwrapped_model
        watched = (
            (_part(model, "get_input_embeddings") or _only_embedding(model), self._see_ids),
            (_part(model, "get_output_embeddings"), self._see_projected),
        )
        self._handles = [
            module.register_forward_pre_hook(see, with_kwargs=True)
            for module, see in watched
            if module is not None and not is_compiled(run.model) and not _in_compiled(module, model)
        ]

    def at_first_lap(self, lap: Callable[..., None]) -> Callable[..., None]:
        """Return the lap, which ends a step, such that the first one is checked before it ends."""
        first = True

        def checked_lap(batches: Sequence[Batch], loss: Any) -> None:
            nonlocal first
            if first:
                first = False
                self.first_batch = batches[0] if batches else None
                self.remove()
                self.check(batches)
            lap(batches, loss)

        return checked_lap

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def check(self, batches: Sequence[Batch]) -> None:
        """Raise InvalidRunError where counts are not those of the tensors, or of the model."""
        reasons = [*self._against_tensors(batches), *self._against_model(batches)]
        self._embedded = []
        if reasons:
            raise InvalidRunError(reasons)

    def _see_ids(self, module: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        ids = next(iter((*inputs, *keywords.values())), None)
        if _is_watched() and isinstance(ids, torch.Tensor):
            self._embedded.append(ids.detach())

    def _see_projected(self, module: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        hidden = next(iter((*inputs, *keywords.values())), None)
        if _is_watched() and isinstance(hidden, torch.Tensor):
            self._projected.append(hidden.numel() // max(1, hidden.shape[-1]))

    def _against_tensors(self, batches: Sequence[Batch]) -> Iterator[str]:
        """Compare the counts of a step with what the task says that its micro-batches hold."""
        held = [self._task.held(batch) for batch in batches] if self._task else []
        if not held or None in held:
            return
        for kind in Held._fields:
            counted = sum(getattr(batch.tokens, kind) for batch in batches)
            least, most = (sum(getattr(one, kind)[end] for one in held) for end in (0, 1))
            if not least <= counted <= most:
                holds = most if counted > most else least
                what = f"{kind} {self._counts}"
                yield f"step 0 counted {counted:,} {what}, and its batches hold {holds:,}"

    def _against_model(self, batches: Sequence[Batch]) -> Iterator[str]:
        """Compare counts with what the model saw; a module that was never called says nothing.

        A model may leave padding out, and the last token of a sequence, which predicts nothing.
        """
        if not all(_has_ids(batch) for batch in batches):
            return
        real = sum(batch.tokens.real for batch in batches)
        if self._embedded and (missing := self._missing(batches)) > _may_miss(batches):
            yield (
                f"step 0 counted {real:,} real tokens, and the model's embedding saw "
                f"{max(0, real - missing):,} of them"
            )
        supervised = sum(batch.tokens.supervised for batch in batches)
        if self._projected and sum(self._projected) < supervised:
            yield (
                f"step 0 counted {supervised:,} supervised tokens, and the model's output "
                f"projection saw {sum(self._projected):,} tokens"
            )

    def _missing(self, batches: Sequence[Batch]) -> int:
        """Return how many of the batches' real tokens the embedding did not see.

        Ids are only compared where it saw fewer tokens than there are: a plugin may number them
        anew.
        """
        seen = sum(ids.numel() for ids in self._embedded)
        if seen >= sum(batch.inputs["input_ids"].numel() for batch in batches):
            return 0
        missing: Counter[int] = Counter()
        for batch in batches:
            missing.update(_real_ids(batch).tolist())
        for ids in self._embedded:
            missing.subtract(ids.flatten().tolist())
        return sum(count for count in missing.values() if count > 0)


def _is_watched() -> bool:
    """Return whether a call is a forward pass that computes something for the first time."""
    return not torch.compiler.is_compiling() and (torch._C._current_graph_task_id() == NO_BACKWARD)


def _has_ids(batch: Batch) -> bool:
    return isinstance(batch.inputs.get("input_ids"), torch.Tensor)


def _real_ids(batch: Batch) -> torch.Tensor:
    ids: torch.Tensor = batch.inputs["input_ids"]
    mask = token_mask(batch)
    return ids.flatten() if mask is None else ids[mask]


def _may_miss(batches: Sequence[Batch]) -> int:
    """Return how many of `_real_ids` an honest model may leave out."""
    padding = sum(_real_ids(batch).numel() - batch.tokens.real for batch in batches)
    return max(0, padding) + sum(batch.sequences for batch in batches)


def _part(model: Any, getter: str) -> Any:
    """Return a module that the model names by a method, None where it has none."""
    try:
        return getattr(model, getter, lambda: None)()
    except (AttributeError, NotImplementedError):
        return None


def _only_embedding(model: Any) -> Any:
    """Return the model's embedding, None where it has several: one may be of positions."""
    found = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return found[0] if len(found) == 1 else None


def _in_compiled(module: Any, model: Any) -> bool:
    """Return whether a module of the model is compiled, or lies in one that is."""
    return any(
        is_compiled(outer) and any(inner is module for inner in outer.modules())
        for outer in model.modules()
    )
