"""The task `dpo`: direct preference optimization (Rafailov et al., 2023)."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from accel_bench import Batch, Experiment, Held, Loss, Options, Run, Task, held_tokens, hookimpl

WHOLE = frozenset({"none", "ddp"})
"""Values of `parallel` with which every device holds the whole model, so that it can be copied."""


class DPOOptions(Options):
    """How far the policy may go from the reference, and what else is in the loss."""

    beta: float = Field(0.1, gt=0, allow_inf_nan=False)
    """How strongly the policy is held near the reference."""

    nll_scale: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Weight of the negative log-likelihood of the chosen answers, a mean over the tokens of the
    step, in the loss."""

    length_normalization: bool = False
    """Divide the log-probability of each answer by its tokens."""

    reference_model: str | None = Field(None, min_length=1)
    """The reference, as in `model.id`, with the same `model.weights`; null: the policy before its
    first step, which is the base without its adapter where one is trained."""

    reference_tensor_parallel_size: int = Field(1, ge=1)
    """Devices that hold one reference together: 1, on each device a whole one."""


class DPO(Task[DPOOptions]):
    """Trains a policy to prefer chosen answers to rejected ones; a pair is a sample."""

    Options = DPOOptions
    families = frozenset({"text-generation"})

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterable[str]:
        """Refuse a reference that cannot be held as the options say."""
        options, scenario = self.options, experiment.scenario
        size = options.reference_tensor_parallel_size
        if size != 1:
            yield (
                f"reference_tensor_parallel_size: {size}: the reference is held whole on each "
                "device; set 1, and model.dtype or a smaller reference_model where it does not fit"
            )
        copied = options.reference_model is None and scenario.adapter.use == "none"
        if copied and scenario.parallel.use not in WHOLE:
            yield (
                f"the reference is a copy of the policy, which parallel: {scenario.parallel.use} "
                "divides; train an adapter, whose base is the reference, or name a reference_model"
            )

    def held(self, batch: Batch) -> Held | None:
        """Return the tokens of both sequences of all pairs; labels are shifted by the loss."""
        return held_tokens(batch, shifts=True)

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import what the loss needs, so that its memory is not that of the model."""
        from accel_bench.builtin.tasks import dpo_impl  # noqa: F401

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the loss, with the reference that it compares with."""
        from accel_bench.builtin.tasks.dpo_impl import PreferenceLoss

        loss = PreferenceLoss(run, self.options)
        run.on_evidence(loss.evidence)
        return loss
