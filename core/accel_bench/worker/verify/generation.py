"""Verification of a run that answers requests: its configuration, and its token counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accel_bench.engine import Batch
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.module_calls import is_compiled
from accel_bench.modeling.tensors import dtype_name
from accel_bench.result import Window
from accel_bench.run_context import Run
from accel_bench.worker.record import RankRecord
from accel_bench.worker.verify.effective import read_effective, record_effective
from accel_bench.worker.verify.forward_pass import Watch, at_first_lap

NO_FLOPS = "FLOPs of inference are not counted"
"""Reason why the workload of a run that answers requests is not known."""


class GenerationCheck(Watch):
    """Checks of a run that answers requests; what they find is stored in `record`.

    Their hooks observe the first step of the warm-up. They are removed before the second step, so
    that nothing is compiled with them.
    """

    def __init__(self, run: Run, record: RankRecord) -> None:
        self._run, self._record = run, record
        self._matmul_dtype: str | None = None
        self._used_cache: bool | None = None
        self._seen = 0
        self._handles = [*self._watch()]

    def between_laps(self, lap: Callable[..., None]) -> Callable[..., None]:
        """Return a function that runs `lap`, which ends a step; its first call checks tokens."""
        return at_first_lap(lap, self._check_tokens)

    def before_window(self, strategy: str | None, synchronizations: int | None) -> None:
        """Record the effective configuration, before the first window opens. A plugin for parallel
        training declares `strategy`; `synchronizations` is the number of device synchronizations in
        a step. Raises InvalidRunError if the configuration contradicts the scenario."""
        run, record = self._run, self._record
        record.workload_reason = run.workload_reason = NO_FLOPS
        effective = read_effective(run, None, record.environment, synchronizations)
        # Whether there is a cache is not what the configuration says, which is for training.
        seen: dict[str, Any] = {"use_cache": self._used_cache}
        if self._matmul_dtype is not None:
            seen["matmul_dtype"] = self._matmul_dtype
        record_effective(run, record, effective.model_copy(update=seen), strategy)

    later = None
    """Stage that repeats checks after the measured window; None, since no model trains."""

    def after_all_steps(self, nodes: Sequence[int]) -> None:
        """Do nothing: the steps after the measured window are not checked."""

    def after_window(self, window: Window) -> list[str]:
        """Return a reason why the run is `invalid`, if the model is in training mode; else none."""
        return ["the model is in training mode"] if self._run.model.training else []

    def read_steps(self, steps: int) -> None:
        """Do nothing: a run that answers requests has no optimizer."""

    def sketch_update(self, steps: int) -> None:
        """Do nothing: a run that answers requests changes no weight."""

    def _watch(self) -> list[Any]:
        """Register hooks on model, embedding and output projection; return the hooks' handles."""
        model = self._run.unwrapped_model
        if any(is_compiled(module) for module in model.modules()):
            return []
        handles = [model.register_forward_hook(self._see_call)]
        embedding = getattr(model, "get_input_embeddings", lambda: None)()
        output = getattr(model, "get_output_embeddings", lambda: None)()
        if embedding is not None:
            handles.append(embedding.register_forward_hook(self._see_ids))
        if output is not None:
            handles.append(output.register_forward_hook(self._see_matmul))
        return handles

    def _see_call(self, module: Any, inputs: Any, output: Any) -> None:
        self._used_cache = getattr(output, "past_key_values", None) is not None

    def _see_ids(self, module: Any, inputs: Any, output: Any) -> None:
        self._seen += inputs[0].numel() if inputs and torch.is_tensor(inputs[0]) else 0

    def _see_matmul(self, module: Any, inputs: Any, output: Any) -> None:
        self._matmul_dtype = dtype_name(output.dtype)

    def _check_tokens(self, batches: Sequence[Batch]) -> None:
        """Raise InvalidRunError if the embedding got fewer tokens than the batches count.

        The embedding gets all counted tokens except the last token of each answer.
        """
        watched = bool(self._handles)
        self.remove()
        expected = sum(batch.tokens.processed - batch.sequences for batch in batches)
        if watched and self._seen and self._seen < expected:
            raise InvalidRunError(
                [
                    f"step 0 counted {expected:,} tokens of prompts and answers, and the model's "
                    f"embedding saw {self._seen:,}"
                ]
            )
