"""Check in two steps that the token counts of batches are the tokens on which the model trains.

The data plugin states the counts of a `Batch`, and every speed depends on them. They are compared
with the batch's tensors, with the labels that the model gets, and with the inputs of its embedding
and output projection, in the first warm-up step and in a step after the measured window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from accel_bench.engine import Batch
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.module_calls import is_compiled
from accel_bench.run_context import Run
from accel_bench.task import Held, token_mask
from accel_bench.worker.verify.forward_pass import Watch, at_first_lap
from accel_bench.worker.verify.gradient_flow import NO_BACKWARD

LABELS = ("labels", "shift_labels")
"""Inputs of a model that mark the supervised tokens."""


class CountedTokens(Watch):
    """Check of the token counts of a step's batches against the tensors that the model gets.

    Recomputation in the backward pass is not counted twice. A compiled region is not watched: a
    hook in it would be compiled, and its removal would compile again.
    """

    def __init__(self, run: Run) -> None:
        self._task, self._counts = run.task, run.scenario.counts
        self.first_batch: Batch | None = None
        """First micro-batch of the run; None until the model has trained on it."""

        self._run = run
        self._ends: frozenset[int] = frozenset()
        """Ends of the task's range of supervised tokens (0 the least, 1 the most) that equal the
        count of the first step; empty before that step, and for a count within the range."""

        self._embedded: list[torch.Tensor] = []
        self._projected: list[int] = []
        self._given: list[dict[str, torch.Tensor]] = []
        self.watch()

    def watch(self) -> None:
        """Register hooks on the model, its embedding and its output projection for a step."""
        run, model = self._run, self._run.unwrapped_model
        watched = (
            (_part(model, "get_input_embeddings") or _only_embedding(model), self._see_ids),
            (_part(model, "get_output_embeddings"), self._see_projected),
            (model, self._see_labels),
        )
        self._handles = [
            module.register_forward_pre_hook(see, with_kwargs=True)
            for module, see in watched
            if module is not None and not is_compiled(run.model) and not _in_compiled(module, model)
        ]

    def at_first_lap(self, lap: Callable[..., None]) -> Callable[..., None]:
        """Return a function that runs `lap`, which ends a step; its first call runs `check` too."""
        return at_first_lap(lap, self.check)

    def check(self, batches: Sequence[Batch]) -> None:
        """Raise InvalidRunError if token counts differ from the tensors or the model's inputs."""
        self.first_batch = batches[0] if batches else None
        if reasons := self.reasons(batches):
            raise InvalidRunError([f"step 0 {reason}" for reason in reasons])

    def reasons(self, batches: Sequence[Batch]) -> list[str]:
        """Return a text for each count that differs from the tensors or from the model's inputs."""
        self.remove()
        reasons = [
            *self._against_tensors(batches, "its batches hold", Held._fields),
            *self._against_model(batches),
        ]
        if not reasons and (given := self._as_given(batches)):
            reasons += self._against_tensors(given, "the model was given", ("supervised",))
        self._embedded, self._projected, self._given = [], [], []
        return reasons

    def _see_ids(self, module: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        ids = next(iter((*inputs, *keywords.values())), None)
        if _is_watched() and isinstance(ids, torch.Tensor):
            self._embedded.append(ids.detach())

    def _see_projected(self, module: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        hidden = next(iter((*inputs, *keywords.values())), None)
        if _is_watched() and isinstance(hidden, torch.Tensor):
            self._projected.append(hidden.numel() // max(1, hidden.shape[-1]))

    def _see_labels(self, module: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        known = {name: keywords.get(name) for name in LABELS}
        if _is_watched():
            tensors = {k: v.detach() for k, v in known.items() if isinstance(v, torch.Tensor)}
            self._given.append(tensors)

    def _as_given(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return the batches, with their labels replaced by those that the model got.

        The list is empty if the model was called without labels, or not once for each batch.
        """
        if len(self._given) != len(batches) or not all(self._given):
            return []
        pairs = zip(batches, self._given, strict=True)
        return [replace(batch, inputs={**batch.inputs, **labels}) for batch, labels in pairs]

    def _against_tensors(
        self, batches: Sequence[Batch], holder: str, kinds: Sequence[str]
    ) -> Iterator[str]:
        """Yield a text for each token count of a step that its batches' tensors do not allow.

        `kinds` names the counts, such as `supervised`. In a text `holder` stands before the allowed
        count, as in `its batches hold 8`. Two counts are allowed if a row's first label may count
        or not; a later step must have the same of the two as the first step.
        """
        held = [self._task.held(batch) for batch in batches] if self._task else []
        if not held or None in held:
            return
        for kind in kinds:
            counted = sum(getattr(batch.tokens, kind) for batch in batches)
            ends = [sum(getattr(bounds, kind)[end] for bounds in held) for end in (0, 1)]
            fits = ends[0] <= counted <= ends[1]
            if kind == "supervised" and fits:
                here = {place for place in (0, 1) if counted == ends[place]}
                fits = not self._ends or bool(self._ends & here)
                self._ends = self._ends or frozenset(here)
            if not fits:
                exact = kind == "supervised" and self._ends
                holds = ends[min(self._ends) if exact else counted > ends[0]]
                yield f"counted {counted:,} {kind} {self._counts}, and {holder} {holds:,}"

    def _against_model(self, batches: Sequence[Batch]) -> Iterator[str]:
        """Yield a text for each count above the number of tokens that the model's modules got.

        A model may leave out padding, and the last token of a sequence, which predicts nothing.
        """
        if not all(_has_ids(batch) for batch in batches):
            return
        real = sum(batch.tokens.real for batch in batches)
        if self._embedded and (missing := self._missing(batches)) > _may_miss(batches):
            yield (
                f"counted {real:,} real tokens, and the model's embedding saw "
                f"{max(0, real - missing):,} of them"
            )
        supervised = sum(batch.tokens.supervised for batch in batches)
        if self._projected and sum(self._projected) < supervised:
            yield (
                f"counted {supervised:,} supervised tokens, and the model's output "
                f"projection saw {sum(self._projected):,} tokens"
            )

    def _missing(self, batches: Sequence[Batch]) -> int:
        """Return the number of real tokens of the batches that the embedding did not get.

        Token ids are compared only if the embedding got fewer tokens than the batches have, since a
        plugin may renumber ids.
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
    """Return whether a forward pass runs, rather than a recomputation in a backward pass."""
    return not torch.compiler.is_compiling() and (torch._C._current_graph_task_id() == NO_BACKWARD)


def _has_ids(batch: Batch) -> bool:
    return isinstance(batch.inputs.get("input_ids"), torch.Tensor)


def _real_ids(batch: Batch) -> torch.Tensor:
    ids: torch.Tensor = batch.inputs["input_ids"]
    mask = token_mask(batch)
    return ids.flatten() if mask is None else ids[mask]


def _may_miss(batches: Sequence[Batch]) -> int:
    """Return the number of tokens that a model may leave out: padding, and each sequence's last."""
    padding = sum(_real_ids(batch).numel() - batch.tokens.real for batch in batches)
    return max(0, padding) + sum(batch.sequences for batch in batches)


def _part(model: Any, getter: str) -> Any:
    try:
        return getattr(model, getter, lambda: None)()
    except (AttributeError, NotImplementedError):
        return None


def _only_embedding(model: Any) -> Any:
    """Return the model's only embedding; None if it has several: one may be of positions."""
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return embeddings[0] if len(embeddings) == 1 else None


def _in_compiled(module: Any, model: Any) -> bool:
    return any(
        is_compiled(outer) and any(inner is module for inner in outer.modules())
        for outer in model.modules()
    )
